"""Banded lower-triangular Toeplitz strategies."""

import dataclasses
import operator
from typing import Any, ClassVar

import numpy as np
import scipy.linalg

from fl_dpftrl.families import base
from fl_dpftrl.families import power_series


@dataclasses.dataclass(frozen=True, eq=False)
class BandedToeplitz:
  """A C whose every column is the same few coefficients from its diagonal down.

  The last columns are cut short by the end of the run, and so are shorter than
  the others. With normalized_rounds, every column of the C of so many rounds is
  scaled to norm 1: C = T D, D diagonal.

  Attributes:
    coefficients: c, shape [num_bands], float64; c₀ is positive.
    normalized_rounds: the number of rounds for which columns are normalised, and
      the most that it can run; None for none.

  Raises:
    ValueError: for coefficients of another shape, not finite or with a c₀ that is
      not positive, and for normalized_rounds that is not a number of rounds.

  Source: Choquette-Choo et al. 2024 (scaling up banded matrix factorisation),
  section 3.2, "column normalization" included.
  """

  coefficients: np.ndarray
  normalized_rounds: int | None = None
  family: ClassVar[str] = 'banded_toeplitz'

  def __post_init__(self):
    coefficients = np.array(self.coefficients, dtype=np.float64)
    if coefficients.ndim != 1 or not coefficients.size:
      raise ValueError(
          'coefficients must have shape [num_bands], got shape'
          f' {coefficients.shape}'
      )
    if not np.isfinite(coefficients).all():
      raise ValueError('coefficients must be finite')
    if coefficients[0] <= 0.0:
      raise ValueError(
          'coefficients must begin with a positive one, got'
          f' {float(coefficients[0])!r}'
      )
    coefficients.setflags(write=False)
    object.__setattr__(self, 'coefficients', coefficients)
    if self.normalized_rounds is None:
      return
    try:
      rounds = operator.index(self.normalized_rounds)
    except TypeError:
      rounds = 0
    if rounds < 1 or isinstance(self.normalized_rounds, bool):
      raise ValueError(
          'normalized_rounds must be a whole number of at least 1 or None, got'
          f' {self.normalized_rounds!r}'
      )
    object.__setattr__(self, 'normalized_rounds', rounds)

  @property
  def max_rounds(self) -> int | None:
    return self.normalized_rounds

  @property
  def num_bands(self) -> int:
    return self.coefficients.size

  def num_noise_rows(self, num_rounds: int) -> int:
    return num_rounds

  def memory_copies(self, num_rounds: int) -> int:
    del num_rounds
    return self.num_bands - 1

  def late_norms(self) -> np.ndarray:
    """What columns are divided by, shape [num_bands].

    Entry j is for the column with j more rounds after it, the last one for all
    columns with more.
    """
    if self.normalized_rounds is None:
      return np.ones(self.num_bands)
    return np.sqrt(np.cumsum(np.square(self.coefficients)))

  def column_norms(self, num_rounds: int) -> np.ndarray:
    """What each column is divided by, D⁻¹, shape [num_rounds]."""
    base.check_num_rounds(self, num_rounds)
    after = (self.normalized_rounds or num_rounds) - 1 - np.arange(num_rounds)
    return self.late_norms()[np.minimum(after, self.num_bands - 1)]

  def inverse_coefficients(self, num_rounds: int) -> np.ndarray:
    """The first column of T⁻¹, C's inverse where columns are as they are."""
    base.check_num_rounds(self, num_rounds)
    return power_series.reciprocal(self.coefficients, num_rounds)

  def strategy_matrix(self, num_rounds: int) -> np.ndarray:
    base.check_num_rounds(self, num_rounds)
    column = np.zeros(num_rounds)
    column[: self.num_bands] = self.coefficients[:num_rounds]
    matrix = scipy.linalg.toeplitz(column, np.zeros(num_rounds))
    return matrix / self.column_norms(num_rounds)

  def noising_matrix(self, num_rounds: int) -> np.ndarray:
    matrix = scipy.linalg.toeplitz(
        self.inverse_coefficients(num_rounds), np.zeros(num_rounds)
    )
    return self.column_norms(num_rounds)[:, None] * matrix

  def parameters(self) -> dict[str, Any]:
    return {
        'coefficients': self.coefficients,
        'normalized_rounds': self.normalized_rounds,
    }
