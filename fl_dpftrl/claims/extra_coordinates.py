"""Coordinates of a release beside the update: counts of adaptive clipping, and metrics.

A device adds one vector to the sums of a round: its update in units of the clip norm, of norm at
most 1, and for each group of extra coordinates a vector of norm at most 1. All are coordinates of
one mechanism. With z_u, s_1, s_2, … the noise of the updates and of the groups, where 1/z_u² + Σ
1/s_j² = 1/z², the vector divided by its noise has norm at most 1/z. So the accounted noise
multiplier z covers all that is released.

Source: docs/decisions/adaptive-clipping.md.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fl_dpftrl.support import checks
from fl_dpftrl.support.text import messages

_NOISE_SHARE = 0.005  # More noise in the updates, for metrics without a standard deviation.
_LONGEST_NAME, _MOST_METRICS = 100, 1000
COUNTS = ('clipped_count', 'zeroed_count', 'rejected_count')
"""Counts of adaptive clipping, at most one of which is 1 for a device."""
_OTHER_COLUMNS = ('round', 'clip_norm', *COUNTS)


class Group(NamedTuple):
  """Extra coordinates that share the norm 1 of a device's vector.

  Attributes:
    names: a name for each coordinate.
    bounds: largest value of each coordinate; the least is 0.
    stddev: s, standard deviation of the noise in Z, in devices; 0 without noise.
    is_exclusive: whether a device has at most one coordinate that is not 0.
  """

  names: tuple[str, ...]
  bounds: tuple[float, ...]
  stddev: float
  is_exclusive: bool = False

  def largest(self, norm: int) -> int:
    """Returns the whole number of a coordinate's bound, where the group has norm at most `norm`."""
    return norm if self.is_exclusive else math.isqrt(norm * norm // len(self.names))

  def integers(self, values: np.ndarray, norm: int) -> np.ndarray:
    """Returns values of devices as whole numbers towards zero, int64, of the same shape.

    Args:
      values: shape [devices, coordinates]; what is out of bounds is taken for the nearest bound,
        and NaN for 0.
      norm: largest norm of a device's whole numbers.
    """
    largest = self.largest(norm)
    share = np.clip(np.nan_to_num(values / self.bounds, nan=0.0), 0.0, 1.0)
    return np.minimum((share * largest).astype(np.int64), largest)


@dataclass(frozen=True)
class PrivateMetrics:
  """Metrics of clients that are released under the same guarantee as the model.

  Attributes:
    bounds: name → public upper bound L of the metric, positive; its values are from 0 to L.
    stddev: s, standard deviation of the noise in Z, in devices, for the vector of all metrics in
      units of their bounds and of √(number of metrics); above the noise multiplier. None for the s
      that makes the noise in the updates 0.5 % larger.
  """

  bounds: Mapping[str, float]
  stddev: float | None = None

  def __post_init__(self):
    is_mapping = isinstance(self.bounds, Mapping) and 0 < len(self.bounds) <= _MOST_METRICS
    if not is_mapping:
      raise ValueError(
        f'metrics must map up to {_MOST_METRICS} names to upper bounds, got'
        f' {messages.quoted(self.bounds)}'
      )
    for name, bound in self.bounds.items():
      is_name = isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME and name.isprintable()
      if not is_name or name in _OTHER_COLUMNS:
        raise ValueError(f'metrics must have printable names, got {messages.quoted(name)}')
      checks.positive(**{f'metrics: the bound of {name}': bound})
    # One order, whatever order a restart gives them in.
    object.__setattr__(
      self, 'bounds', {name: float(self.bounds[name]) for name in sorted(self.bounds)}
    )
    if self.stddev is not None:
      object.__setattr__(self, 'stddev', checks.positive(metrics_stddev=self.stddev))

  def group(self, noise_multiplier: float) -> Group:
    """Returns the coordinates of the metrics, for a noise multiplier of all that is released."""
    stddev = self.stddev
    if stddev is None:
      stddev = noise_multiplier / math.sqrt(1.0 - (1.0 + _NOISE_SHARE) ** -2)
    names, bounds = zip(*self.bounds.items())
    return Group(names, bounds, stddev if noise_multiplier else 0.0)


def scales(groups: Sequence[Group], unit: Any, report_goal: int) -> np.ndarray:
  """Returns what a unit of the lattice is in each extra coordinate.

  Counts are of devices, and metrics are means over the report goal.
  """
  values = []
  for group, norm in zip(groups, unit.norms, strict=True):
    devices = 1 if group.is_exclusive else report_goal
    values += [bound / ((group.largest(norm) << unit.shift) * devices) for bound in group.bounds]
  return np.array(values)


def private_metrics(
  bounds: Mapping[str, float] | None, stddev: float | None
) -> PrivateMetrics | None:
  """Returns the metrics of a run; None without any."""
  if bounds is None and stddev is not None:
    raise ValueError('metrics_stddev is for metrics, and there are none')
  return None if bounds is None else PrivateMetrics(bounds, stddev)


def update_noise_multiplier(noise_multiplier: float, groups: Sequence[Group]) -> float:
  """Returns z_u, the noise multiplier of the updates only; 0 without noise.

  Args:
    noise_multiplier: z, that of all that is released, which is accounted; at least 0.
    groups: extra coordinates.

  Raises:
    ValueError: if the groups use up the guarantee.
  """
  if not noise_multiplier:
    return 0.0
  ratios = [noise_multiplier / group.stddev for group in groups]
  remaining = 1.0 - sum(ratio * ratio for ratio in ratios)
  if len(ratios) == 1:  # Without cancellation.
    remaining = (1.0 - ratios[0]) * (1.0 + ratios[0])
  if remaining <= 0.0:
    stddevs = ' and '.join(f'{group.names[0]} {group.stddev:g}' for group in groups)
    raise ValueError(
      f'the noise of what is released beside the updates ({stddevs}) must be above'
      f' noise_multiplier={noise_multiplier:g}: it would use up the guarantee'
    )
  return noise_multiplier / math.sqrt(remaining)
