"""Dense lower-triangular strategies, for C without a smaller description."""

import dataclasses
import math
from typing import ClassVar

import numpy as np
import scipy

from fl_dpftrl.mechanisms import base, schemas
from fl_dpftrl.mechanisms.sensitivities import gram_search, kinds, patterns

_ROUNDING = 1e-12


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Dense(base.Strategy):
  """A lower-triangular C, entry by entry.

  Attributes:
    coefficients: C, shape [num_rounds, num_rounds], float64; 0 above the diagonal, positive on it.

  Source: Denisov et al. 2022, theorem 2.1: any factorisation has an equivalent lower-triangular
  one, whose noise can be streamed.
  """

  coefficients: np.ndarray
  family: ClassVar[str] = 'dense'

  def __post_init__(self):
    coefficients = base.keep_array(self, 'coefficients', 'num_rounds', 'num_rounds')
    if coefficients.shape[0] != coefficients.shape[1]:
      raise ValueError(f'coefficients must be square, got shape {coefficients.shape}')
    diagonal = np.diagonal(coefficients)
    if (diagonal <= 0).any():
      raise ValueError(f'coefficients must have a positive diagonal, got {diagonal.min()!r}')
    if np.triu(coefficients, 1).any():
      raise ValueError('coefficients must be 0 above the diagonal')

  @property
  def max_rounds(self) -> int | None:
    return self.coefficients.shape[0]

  def strategy_matrix(self, num_rounds: int) -> np.ndarray:
    base.check_num_rounds(self, num_rounds)
    return self.coefficients[:num_rounds, :num_rounds].copy()

  def noising_matrix(self, num_rounds: int) -> np.ndarray:
    return base.lower_inverse(self.strategy_matrix(num_rounds))

  def sensitivity(self, schema: schemas.Schema) -> kinds.Sensitivity:
    """Computes it as for any X; also exact if entries are zero up to rounding.

    Orthogonal updates reach the sum of a pattern's diagonal of X, and equal ones the sum of all
    its entries. A bound that is no larger is exact.
    """
    gram = self.gram_matrix(schema.num_rounds)
    bound = gram_search.gram_sensitivity(gram, schema)
    if bound.kind == kinds.EXACT:
      return bound
    reached = patterns.worst_sum(np.diagonal(gram), schema)
    if bound.value <= math.sqrt(reached) * (1.0 + _ROUNDING):
      return kinds.Sensitivity(bound.value, kinds.EXACT)
    return bound


def from_gram(gram: np.ndarray) -> Dense:
  """Returns J chol(J X J)ᵀ J, J reversing rounds, with CᵀC = X; LinAlgError for other X."""
  factor = scipy.linalg.cholesky(gram[::-1, ::-1], lower=True)
  return Dense(factor.T[::-1, ::-1])
