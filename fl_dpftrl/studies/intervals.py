"""Confidence intervals of means over seeds."""

import math
import statistics
from collections.abc import Sequence

from scipy import stats

_TAIL = 0.05


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
