"""Coordinates of a release: the mean of a round's updates, and extra ones beside it."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fl_dpftrl.claims import adaptive_clipping, extra_coordinates, lattice_units, run_claim
from fl_dpftrl.mechanisms import lattice, linear_noise
from fl_dpftrl.support import checks

_CHUNK = 1 << 16  # coordinates that are worked on in a processor's cache


def num_extra(
  clip_norm: float | adaptive_clipping.AdaptiveClipping,
  metrics: extra_coordinates.PrivateMetrics | None,
) -> int:
  """Returns the number of coordinates beside the updates."""
  return sum(len(group.names) for group in adaptive_clipping.groups(clip_norm, metrics))


class Estimate(NamedTuple):
  """The mean of a metric over released rounds.

  Attributes:
    value: mean over the devices of the report goal and over the rounds.
    stddev: standard deviation of the noise in it; 0 without noise.
    num_rounds: number of rounds.
  """

  value: float
  stddev: float
  num_rounds: int


class Release:
  """The coordinates of a release, their units, and their conversion from whole numbers.

  Args:
    claim: that of the run.
    num_coordinates: those of an update.

  Attributes:
    unit: units of updates and of the extra coordinates.
    room: updates that a sum has room for.
    report_goal: updates that a round needs, the divisor of the sum.
    size: coordinates of all that is released.
    names: of the extra coordinates.
  """

  def __init__(self, claim: run_claim.Claim, num_coordinates: int = 1):
    """Chooses the units; ValueError where noise is too small, or sums have no room."""
    self.claim, self._num_coordinates = claim, num_coordinates
    self.report_goal = claim.report_goal or 1
    groups = adaptive_clipping.groups(
      claim.clip_norm, claim.private_metrics, claim.noise_multiplier, self.report_goal
    )
    self._groups = groups
    if claim.noise_multiplier:
      self.unit = lattice_units.Unit.of(claim.noise_multiplier, groups)
      self.room = self.unit.room(self.unit.farthest(claim.strategy))
    else:
      self.unit = lattice_units.Unit.without_noise(lattice_units.MOST_BITS, len(groups))
      self.room = self.unit.room(0)
    self.room -= claim.canaries.number if claim.canaries else 0
    if self.room < self.report_goal:
      raise ValueError(
        f'report_goal={self.report_goal} updates and their noise have no room in sums of 64 bits:'
        ' give a larger noise_multiplier, or a smaller report_goal'
      )
    self.names = tuple(name for group in groups for name in group.names)
    self.size = num_coordinates + len(self.names)

  def extra(self, counts: Sequence[int], values: np.ndarray | None) -> np.ndarray:
    """Returns the sum of the extra coordinates of devices, int64, in whole units.

    Args:
      counts: number of devices whose updates were clipped, zeroed and rejected.
      values: metrics of the devices, shape [devices, metrics]; None for zeros.
    """
    totals = np.zeros(len(self.names), np.int64)
    if self._groups and self._groups[0].is_exclusive:
      totals[: len(counts)] = self.unit.norms[0] * np.array(counts)
    if values is not None:
      group, norm = self._groups[-1], self.unit.norms[-1]
      totals[-len(group.names) :] = group.integers(values, norm).sum(axis=0)
    return totals

  def metrics(self, values: Mapping[str, Any] | None, count: int) -> np.ndarray | None:
    """Returns metrics of devices as an array, float64, shape [count, metrics]; None for none.

    Raises:
      ValueError: for other names than those of the run, and for other shapes.
    """
    names = self.metric_names
    if values is None:
      return None
    if not names:
      raise ValueError('metrics must be left out: the aggregator was given none')
    if not isinstance(values, Mapping) or set(values) != set(names):
      raise ValueError(f'metrics must have exactly the names of the run: {", ".join(names)}')
    columns = []
    for name in names:
      try:
        column = np.asarray(values[name], np.float64)
      except (TypeError, ValueError):
        raise ValueError(f'metrics: {name} must be a number for each device') from None
      if column.size != count or column.ndim > 1:
        raise ValueError(f'metrics: {name} must have one number for each of {count} devices')
      columns.append(column.reshape(count))
    return np.stack(columns, axis=1)

  def mean(self, total: np.ndarray, row: np.ndarray | None, clip_norm: float, dtype: Any) -> Any:
    """Returns the noised mean of the updates, a vector of all coordinates.

    Args:
      total: sum of all coordinates, int64, in whole units.
      row: row of noise, int64, on the lattice; None without noise.
      clip_norm: clip norm of the round.
      dtype: type of the mean.
    """
    mean = np.empty(self._num_coordinates, dtype)
    scale = self.unit.size * clip_norm / self.report_goal
    for start in range(0, mean.size, _CHUNK):
      part = slice(start, min(start + _CHUNK, mean.size))
      mean[part] = self.noised(total, row, part) * scale  # Converted last, after an exact sum.
    return mean

  def beside(self, total: np.ndarray, row: np.ndarray | None) -> dict[str, float]:
    """Returns the extra coordinates by name: counts of devices, and means of metrics."""
    noised = self.noised(total, row, slice(self._num_coordinates, None))
    return dict(zip(self.names, (noised * self._scales).tolist(), strict=True))

  @property
  def price(self) -> str:
    """Words on how much more noise the updates have for what is released beside them."""
    if not (self._groups and self.claim.noise_multiplier):
      return ''
    share = self.unit.size * 2.0**lattice.BITS / self.claim.noise_multiplier - 1.0
    return f' (updates +{100 * share:.2g} % for {len(self.names)} further figures)'

  @property
  def metric_names(self) -> tuple[str, ...]:
    """Names of the metrics, without counts."""
    metrics = self.claim.private_metrics
    return () if metrics is None else tuple(metrics.bounds)

  def estimates(
    self, columns: Mapping[str, Mapping[int, float]], last: int | None
  ) -> dict[str, Estimate]:
    """Returns the mean of each metric over released rounds.

    Args:
      columns: name → round → what it released, in order.
      last: the last released rounds only; None for all.

    Raises:
      ValueError: for last below 1, and without a release of metrics.
    """
    if last is not None:
      last = checks.whole(last=last)
    rounds = list(next(iter(columns.values()), {}))[-(last or 0) :]
    if not rounds:
      raise ValueError('metrics are there after a first round, for an aggregator with `metrics`')
    stddevs = self.stddevs(rounds)
    return {
      name: Estimate(math.fsum(column[t] for t in rounds) / len(rounds), stddevs[name], len(rounds))
      for name, column in columns.items()
    }

  def stddevs(self, rounds: Sequence[int]) -> dict[str, float]:
    """Returns name → standard deviation of the noise in its mean over some rounds."""
    if not self.claim.noise_multiplier:
      return dict.fromkeys(self.names, 0.0)
    weights = np.zeros(max(rounds) + 1)
    weights[list(rounds)] = 1.0 / len(rounds)
    noise = self.claim.strategy.noise(self.claim.strategy.max_rounds)
    norm = np.linalg.norm(linear_noise.combined_row(noise, weights))
    return dict(zip(self.names, (2.0**lattice.BITS * norm * self._scales).tolist(), strict=True))

  @functools.cached_property
  def _scales(self) -> np.ndarray:
    """Values of a unit of the lattice in each extra coordinate."""
    return extra_coordinates.scales(self._groups, self.unit, self.report_goal)

  def noised(self, total: np.ndarray, row: np.ndarray | None, part: slice) -> np.ndarray:
    """Returns sums with noise, int64, in units of the lattice: 2⁻³⁴ of the noise of Z."""
    noised = np.left_shift(total[part], self.unit.shift)
    if row is not None:
      noised += row[part]
    return noised
