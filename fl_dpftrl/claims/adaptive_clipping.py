"""Adaptive clipping: a clip norm that follows a quantile of the norms of updates.

Each device adds one vector to the sums of a round: its update in units of the clip norm, of norm
at most 1, and counts that say whether it was clipped, zeroed or rejected. The counts are further
coordinates of the same mechanism, so one noise multiplier covers everything that is released,
and the clip norm is computed only from released counts.

Source: Andrew et al. 2021, "Differentially private learning with adaptive clipping", for the
quantile and its geometric update; docs/decisions/adaptive-clipping.md for correlated noise.
"""

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from fl_dpftrl.claims import extra_coordinates
from fl_dpftrl.support import checks

# The clip norm stays within this factor of the first one, in both directions.
RANGE = 1e6
# Without a standard deviation of the counts: a share of the report goal, and at least so many
# noise multipliers, which makes the noise in the model 2.1 % larger at most.
_SHARE, _LEAST_RATIO = 0.05, 5.0
_LARGEST = 1e12
_MOST_LOG = 100.0  # More than the range of clip norms, and less than where float64 ends.


@dataclasses.dataclass(frozen=True)
class AdaptiveClipping:
  """A clip norm that follows a quantile of the norms of the updates.

  The clip norm of round 0 is `initial`. After each of the first `rounds` rounds it is multiplied
  by exp(learning_rate · (c − (1 − target_quantile))), where c is the noised share of clipped
  updates among report_goal. It then stays as it is.

  Attributes:
    initial: clip norm of round 0, from 1e-12 to 1e12.
    target_quantile: share of updates that should not be clipped, between 0 and 1.
    learning_rate: most that one round changes the logarithm of the clip norm, without noise.
    rounds: rounds after which the clip norm is kept, a whole number; 0 keeps the first, and
      None never stops. A changing clip norm lets less of the correlated noise cancel.
    clipped_count_stddev: standard deviation of the counts' noise in Z, in updates; above the
      noise multiplier. None for report_goal / 20, or five noise multipliers where that is more.
  """

  initial: float
  target_quantile: float = 0.5
  learning_rate: float = 0.2
  rounds: int | None = 100
  clipped_count_stddev: float | None = None

  def __post_init__(self):
    checks.keep(self, functools.partial(checks.between, 1 / _LARGEST, _LARGEST), 'initial')
    checks.keep(self, checks.positive, 'target_quantile', 'learning_rate')
    if self.target_quantile >= 1.0:
      raise ValueError(f'target_quantile must be between 0 and 1, got {self.target_quantile!r}')
    if self.clipped_count_stddev is not None:
      checks.keep(self, checks.positive, 'clipped_count_stddev')
    if self.rounds is not None:
      checks.keep(self, functools.partial(checks.whole, 0), 'rounds')

  def count_stddev(self, noise_multiplier: float, report_goal: int) -> float:
    """Returns the standard deviation of the counts' noise in Z, in updates; 0 without noise."""
    if not noise_multiplier:
      return 0.0
    if self.clipped_count_stddev is not None:
      return self.clipped_count_stddev
    return max(_SHARE * report_goal, _LEAST_RATIO * noise_multiplier)

  def group(self, noise_multiplier: float, report_goal: int) -> extra_coordinates.Group:
    """Returns the coordinates of the counts.

    Raises:
      ValueError: unless the counts' noise s is larger than the noise multiplier.
    """
    stddev = self.count_stddev(noise_multiplier, report_goal)
    if noise_multiplier and stddev <= noise_multiplier:
      raise ValueError(
        f'clipped_count_stddev={self.clipped_count_stddev} must be above'
        f' noise_multiplier={noise_multiplier}: the counts would use up the guarantee'
      )
    names = extra_coordinates.COUNTS
    return extra_coordinates.Group(names, (1.0,) * len(names), stddev, is_exclusive=True)

  def update_noise_multiplier(self, noise_multiplier: float, report_goal: int) -> float:
    """Returns the noise multiplier of the updates only; see `extra_coordinates`."""
    group = self.group(noise_multiplier, report_goal)
    return extra_coordinates.update_noise_multiplier(noise_multiplier, [group])

  @property
  def limits(self) -> tuple[float, float]:
    """The least and the largest clip norm, float32."""
    return float(np.float32(self.initial / RANGE)), float(np.float32(self.initial * RANGE))

  def log_factor(self, clipped_share: Any) -> Any:
    """Returns the logarithm of the clip norm's factor after a round."""
    return self.learning_rate * (clipped_share - (1.0 - self.target_quantile))

  def following(
    self, clip_norm: float, round_index: int, clipped_count: float, report_goal: int
  ) -> float:
    """Returns the clip norm after a round, a float32, from its noised count of clipped updates."""
    if self.rounds is not None and round_index >= self.rounds:
      return clip_norm
    log_factor = self.log_factor(clipped_count / report_goal)
    factor = math.exp(min(log_factor, _MOST_LOG))
    low, high = self.limits
    return float(np.float32(min(max(clip_norm * factor, low), high)))


def groups(
  clip_norm: float | AdaptiveClipping | None,
  metrics: extra_coordinates.PrivateMetrics | None,
  noise_multiplier: float = 0.0,
  report_goal: int = 1,
) -> tuple[extra_coordinates.Group, ...]:
  """Returns the coordinates beside an update: counts of an adaptive clip norm, and metrics."""
  beside = []
  if isinstance(clip_norm, AdaptiveClipping):
    beside.append(clip_norm.group(noise_multiplier, report_goal))
  if metrics is not None:
    beside.append(metrics.group(noise_multiplier))
  return tuple(beside)
