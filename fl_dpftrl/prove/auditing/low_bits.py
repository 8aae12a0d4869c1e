"""Test of the lowest bits of what is released: do they show that a device took part?

A sum of floating-point numbers lies on the grid of its largest term, and a row of noise alone on
its own, which is finer near 0. So the last bits of a released number can tell whether an update
entered the sum, however much noise there is. Where both are whole multiples of one unit, they tell
nothing.

Source: Mironov 2012 (On significance of the least significant bits for differential privacy).
"""

import numpy as np
import scipy

from fl_dpftrl.prove.auditing import result

_MOST_ZEROS = 8  # trailing zeros of a significand that are told apart
_LEAST_EXPECTED = 10.0  # counts of a cell


def check(present: np.ndarray, absent: np.ndarray, alpha: float) -> result.Check:
  """Compares how many zeros end the significands of numbers of one size."""
  tables = [_table(np.float32(released).ravel()) for released in (present, absent)]
  statistic, freedom = 0.0, 0
  for exponent in set(tables[0]) | set(tables[1]):
    pair = np.array([table.get(exponent, np.zeros(_MOST_ZEROS + 1)) for table in tables])
    pair = pair[:, np.argsort(pair.sum(axis=0), kind='stable')]
    expected = pair.sum(axis=0) * pair.sum(axis=1).min() / max(1, pair.sum())
    num_rare = max(  # Merged with one more column until enough is expected of all.
      (expected < _LEAST_EXPECTED).sum(), 1 + (np.cumsum(expected) < _LEAST_EXPECTED).sum()
    )
    cells = np.column_stack([pair[:, :num_rare].sum(axis=1), pair[:, num_rare:]])
    if cells.shape[1] > 1:
      test = scipy.stats.chi2_contingency(cells, correction=False)
      statistic, freedom = statistic + test.statistic, freedom + test.dof
  return result.Check(
    name='low_bits',
    statistic=float(statistic),
    highest=float(scipy.stats.chi2.isf(alpha, freedom)) if freedom else None,
    meaning='the last bits of released numbers show that a device took part',
  )


def _table(values: np.ndarray) -> dict[int, np.ndarray]:
  """Counts numbers by exponent, and there by trailing zeros of their significand."""
  significands, exponents = np.frexp(values[values != 0.0])
  wholes = np.abs(np.ldexp(significands, 24)).astype(np.int64)
  zeros = np.minimum(np.log2(wholes & -wholes).astype(np.int64), _MOST_ZEROS)
  return {
    int(exponent): np.bincount(zeros[exponents == exponent], minlength=_MOST_ZEROS + 1)
    for exponent in np.unique(exponents)
  }
