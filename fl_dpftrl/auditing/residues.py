"""Tests of the lowest bits of what is released: do they show that a device took part?

A sum of floating-point numbers lies on the grid of its largest term, and a row of noise alone on
its own, which is finer near 0. So the last bits of a released number can tell whether an update
entered the sum, however much noise there is. Where both are whole multiples of one unit, they tell
nothing.

Source: Mironov 2012 (On significance of the least significant bits for differential privacy).
"""

import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from fl_dpftrl.auditing import result, subjects

_DEVICES = 20
_NORM = 0.999  # of the target's update, in clip norms
_MOST_ZEROS = 8  # trailing zeros of a significand that are told apart
_LEAST_EXPECTED = 10.0  # counts of a cell
_RUNS = 2


class Release(NamedTuple):
  """Releases of some runs, all rounds and coordinates, as float32.

  Attributes:
    present: with the target in every round.
    absent: without it.
  """

  present: np.ndarray
  absent: np.ndarray


def measure(subject: subjects.Subject, num_rounds: int, clip_norm: float) -> Release:
  """Runs a subject with and without a target, among devices that send zeros.

  The target's update has one absolute value in all coordinates, and nearly the clip norm.
  """
  size = sum(subject.sizes)
  nothing = np.zeros(size, np.float32)
  target = np.full(size, _NORM * clip_norm / math.sqrt(size), np.float32)
  others = [nothing] * (_DEVICES - 1)
  released = [
    np.concatenate(
      [subject.run(lambda t: [*others, last], num_rounds).ravel() for _ in range(_RUNS)]  # noqa: B023
    ).astype(np.float32)
    for last in (target, nothing)
  ]
  return Release(*released)


def checks(release: Release, alpha: float) -> list[result.Check]:
  """Returns the checks of low bits and of values that come again.

  Args:
    release: releases with and without the target.
    alpha: probability of a false alarm of each check.
  """
  return [_low_bits(release, alpha), _atoms(release, alpha)]


def _low_bits(release: Release, alpha: float) -> result.Check:
  """Compares how many zeros end the significands of numbers of one size, and exact zeros."""
  cells, counts = [], np.zeros((2, 0))
  tables = [_table(values) for values in release]
  for exponent in sorted(set(tables[0]) | set(tables[1])):
    pair = np.array([table.get(exponent, np.zeros(_MOST_ZEROS + 1)) for table in tables])
    merged = _merged(pair)
    if merged.shape[1] > 1:  # Else too few, or all alike.
      counts = np.hstack([counts, merged])
      cells.append((exponent, merged))
  statistic, freedom, where = 0.0, 0, ''
  worst = 0.0
  for exponent, pair in cells:
    found = stats.chi2_contingency(pair, correction=False)
    statistic, freedom = statistic + found.statistic, freedom + found.dof
    score = found.statistic / max(1, found.dof)
    if score > worst:
      worst, where = score, f'numbers from 2^{exponent - 1} to 2^{exponent}'
  return result.Check(
    name='low_bits',
    statistic=float(statistic),
    highest=float(stats.chi2.isf(alpha, freedom)) if freedom else None,
    where=where,
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


def _merged(pair: np.ndarray) -> np.ndarray:
  """Merges columns of a table of two rows until each is expected to have enough."""
  share = pair.sum(axis=1).min() / max(1, pair.sum())
  merged: list[np.ndarray] = []
  for column in pair.T[::-1]:
    if merged and merged[-1].sum() * share < _LEAST_EXPECTED:
      merged[-1] = merged[-1] + column
    else:
      merged.append(column)
  if len(merged) > 1 and merged[-1].sum() * share < _LEAST_EXPECTED:
    last = merged.pop()
    merged[-1] = merged[-1] + last
  return np.array(merged).T


def _atoms(release: Release, alpha: float) -> result.Check:
  """Compares how many numbers are released more than once, and exact zeros among them."""
  repeated = [values.size - np.unique(values).size for values in release]
  total = sum(repeated)
  # Given their number, repetitions fall on either side with the same probability.
  quantile = float(stats.norm.isf(alpha / 2))
  limit = quantile * math.sqrt(2.0 * total + 1.0) + quantile**2
  return result.Check(
    name='atoms',
    statistic=float(abs(repeated[0] - repeated[1])),
    highest=limit,
    where=f'{repeated[0]} with a device, {repeated[1]} without',
    meaning='how often one number is released shows that a device took part',
  )
