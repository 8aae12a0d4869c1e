"""Single entries of X = CᵀC, without the whole of it."""

import functools
from typing import Callable

import numpy as np

from fl_dpftrl.families import banded
from fl_dpftrl.families import banded_toeplitz
from fl_dpftrl.families import base as strategies
from fl_dpftrl.families import blt
from fl_dpftrl.families import identity
from fl_dpftrl.families import stamped
from fl_dpftrl.sensitivity import gram

_LARGEST_TABLE = 1 << 20  # entries of each

# (i, j) → X[i, j], for arrays of rounds that broadcast together.
Entries = Callable[[np.ndarray, np.ndarray], np.ndarray]


@functools.singledispatch
def gram_entries(strategy: strategies.Strategy, num_rounds: int) -> Entries:
  """A function that gives entries of X.

  Families with a short way to an entry register theirs; others look it up in
  the whole matrix.

  Args:
    strategy: C.
    num_rounds: n, of which X has as many rows and columns.

  Raises:
    ValueError: where num_rounds is more than the strategy can run, or too many
      for a dense matrix where one is needed.
  """
  whole = gram.gram_matrix(strategy, num_rounds)
  return lambda rows, columns: whole[rows, columns]


@gram_entries.register
def _(strategy: identity.Identity, num_rounds: int) -> Entries:
  strategies.check_num_rounds(strategy, num_rounds)
  return lambda rows, columns: (rows == columns).astype(np.float64)


@gram_entries.register
def _(strategy: blt.BLT, num_rounds: int) -> Entries:
  """Products of columns are geometric sums, of cₛ cₛ₊ₗ for a lag l.

  X[i, i + l] = meets(l) + Σₐ power(a, l) · products(a, n − 1 − i − l), of which
  few values differ: tables make many entries fast.
  """
  strategies.check_num_rounds(strategy, num_rounds)
  rates = np.log(np.asarray(strategy.buffer_decay))
  scales = np.asarray(strategy.output_scale)

  def meets(lag):
    # The 1 on a diagonal meets cₗ; where the lag is 0, another 1.
    powers = (s * np.exp(r * (lag - 1)) for r, s in zip(rates, scales))
    return np.where(lag > 0, sum(powers), 1.0)

  def products(rate, scale, after):
    total = 0.0
    for other_rate, other_scale in zip(rates, scales):
      both = rate + other_rate
      total += scale * other_scale * np.expm1(both * after) / np.expm1(both)
    return total

  def tabulated(function):
    if num_rounds > _LARGEST_TABLE:
      return function
    return function(np.arange(num_rounds)).__getitem__

  on_lag = tabulated(meets)
  buffers = [
      (
          tabulated(lambda lag, r=r: np.exp(r * lag)),
          tabulated(lambda after, r=r, s=s: products(r, s, after)),
      )
      for r, s in zip(rates, scales)
  ]

  def of_rounds(rows, columns):
    lag = np.abs(rows - columns)
    after = num_rounds - 1 - np.maximum(rows, columns)
    total = on_lag(lag)
    for power, sums in buffers:
      total = total + power(lag) * sums(after)
    return total

  return of_rounds


@gram_entries.register
def _(strategy: banded_toeplitz.BandedToeplitz, num_rounds: int) -> Entries:
  strategies.check_num_rounds(strategy, num_rounds)
  coefficients = strategy.coefficients[:num_rounds]
  bands = coefficients.size
  # sums[l, t]: of cₛ cₛ₊ₗ for the first t + 1 of s.
  sums = np.zeros((bands, bands))
  for lag in range(bands):
    products = np.cumsum(coefficients[: bands - lag] * coefficients[lag:])
    sums[lag] = products[np.minimum(np.arange(bands), products.size - 1)]
  norms = strategy.column_norms(num_rounds)

  def of_rounds(rows, columns):
    lag = np.abs(rows - columns)
    after = num_rounds - 1 - np.maximum(rows, columns)
    meet = lag < bands
    entries = sums[np.where(meet, lag, 0), np.minimum(after, bands - 1)]
    return np.where(meet, entries, 0.0) / (norms[rows] * norms[columns])

  return of_rounds


@gram_entries.register
def _(strategy: banded.Banded, num_rounds: int) -> Entries:
  """By the diagonals of X, as many as C has."""
  strategies.check_num_rounds(strategy, num_rounds)
  coefficients = strategy.coefficients[:num_rounds]
  bands = min(strategy.num_bands, num_rounds)
  diagonals = np.zeros((num_rounds, bands))  # [j, l] is X[j − l, j].
  for lag in range(bands):
    for depth in range(bands - lag):
      rows = np.arange(lag + depth, num_rounds)
      diagonals[rows - depth, lag] += (
          coefficients[rows, depth] * coefficients[rows, depth + lag]
      )

  def of_rounds(rows, columns):
    lag = np.abs(rows - columns)
    entries = diagonals[np.maximum(rows, columns), np.minimum(lag, bands - 1)]
    return np.where(lag < bands, entries, 0.0)

  return of_rounds


@gram_entries.register
def _(strategy: stamped.Stamped, num_rounds: int) -> Entries:
  size = strategy.block_rounds
  blocks = strategy.blocks(num_rounds)
  of_block = {n: gram_entries(strategy.strategy, n) for n in set(blocks)}
  whole = len(blocks) - (blocks[-1] != size)

  def of_rounds(rows, columns):
    rows, columns = np.broadcast_arrays(rows, columns)
    total = np.zeros(rows.shape)
    same = rows // size == columns // size
    for n, entries in of_block.items():
      which = same & ((rows // size < whole) == (n == size))
      total[which] = entries(rows[which] % size, columns[which] % size)
    return total

  return of_rounds
