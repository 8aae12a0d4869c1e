"""Means over seeds with their confidence intervals, and differences paired by seed."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from scipy import stats

_TAIL = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
  """How much worse than the best mechanism another is on test data, paired by seed.

  Attributes:
    mean: mean over seeds of the best one's gain less that of this one.
    margin: half the width of its 95 % confidence interval (Student's t), or of a wider one where
      a study adds seeds; None for fewer than two seeds.
  """

  mean: float
  margin: float | None

  @property
  def is_clear(self) -> bool:
    """Returns whether the interval does not hold 0."""
    return self.margin is not None and abs(self.mean) > self.margin

  @property
  def verdict(self) -> str:
    if self.margin is None:
      return 'unknown: one seed'
    if self.mean - self.margin > 0:
      return 'worse'
    return 'tied with the best' if self.mean + self.margin >= 0 else 'better'


def margin(values: Sequence[float], looks: Sequence[int] = ()) -> float | None:
  """Returns half the width of the interval of a mean (Student's t); None for fewer than two values.

  Args:
    values: one for each seed.
    looks: numbers of seeds at which a study that adds seeds looked at the results; none for 95 %.
      The j-th look has the confidence 1 − 0.05 / (j (j + 1)). Fewer seeds than the last look had
      are what an earlier one saw, and more are a further look.
  """
  if len(values) < 2:
    return None
  tail = _TAIL
  if looks:
    look = sum(count < len(values) for count in looks) + 1
    tail /= look * (look + 1)
  quantile = stats.t.ppf(1.0 - 0.5 * tail, len(values) - 1)
  return float(quantile * statistics.stdev(values) / math.sqrt(len(values)))


def paired(
  best: Mapping[int, float], other: Mapping[int, float], looks: Sequence[int] = ()
) -> Difference | None:
  """Compares gains of the seeds that both have; None without such a seed.

  Args:
    best, other: gains by seed.
    looks: as of `margin`.
  """
  differences = [best[seed] - other[seed] for seed in sorted(best.keys() & other.keys())]
  if not differences:
    return None
  return Difference(mean=statistics.fmean(differences), margin=margin(differences, looks))
