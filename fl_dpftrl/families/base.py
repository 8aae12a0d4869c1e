"""The base class of every mechanism: C and N, and defaults for all the rest."""

import abc
import dataclasses
from typing import Any, ClassVar

import numpy as np

from fl_dpftrl import error as error_lib
from fl_dpftrl import participation
from fl_dpftrl import workloads
from fl_dpftrl.sensitivity import base as sensitivity_lib
from fl_dpftrl.sensitivity import blocks
from fl_dpftrl.sensitivity import entries
from fl_dpftrl.sensitivity import gram

_CHECKED_ROUNDS = 1024
_ROUNDING = 1e-6


class Strategy(abc.ABC):
  """An immutable strategy matrix C with its noising matrix N, in float64.

  A strategy says what C is, not how it was found. For the workload A that it
  estimates, A N C = A; for a square C, N is its inverse. C has one row for each
  row of Z, and may have more rows than there are rounds (trees do).

  A family gives `family`, `strategy_matrix` and `noising_matrix`. Every other
  method has a default that is right for any C and N, at the price of writing
  them out; a family that knows a shorter or a tighter way overrides it.

  Attributes:
    family: the name under which the registry and strategy files know it.
    max_rounds: the most rounds it can run; None where it can go on for ever.
      An attribute or a property.
  """

  family: ClassVar[str]
  max_rounds: int | None = None

  @abc.abstractmethod
  def strategy_matrix(self, num_rounds: int) -> np.ndarray:
    """C, of shape [num_noise_rows(num_rounds), num_rounds]."""

  @abc.abstractmethod
  def noising_matrix(self, num_rounds: int) -> np.ndarray:
    """N, of shape [num_rounds, num_noise_rows(num_rounds)]."""

  def num_noise_rows(self, num_rounds: int) -> int:
    """Rows of Z that the first num_rounds rounds use."""
    return num_rounds

  def memory_copies(self, num_rounds: int) -> int:
    """Vectors of the model's size that a stream keeps between rounds.

    None by default: a stream draws the rows of Z that it needs again.
    """
    del num_rounds
    return 0

  def parameters(self) -> dict[str, Any]:
    """Keyword arguments that rebuild it, as a strategy file stores them."""
    return {
        field.name: getattr(self, field.name)
        for field in dataclasses.fields(self)
    }

  def sensitivity(
      self, schema: participation.MinSep
  ) -> sensitivity_lib.Sensitivity:
    """The worst ‖C u‖ under a participation schema, per unit of clip norm.

    By default that of the Gram matrix: exact where a search over patterns ends
    in time, otherwise an upper bound.

    Raises:
      ValueError: where the schema has more rounds than the strategy can run.

    Source: Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization,
    section 4 and algorithm VecSens; see `gram.gram_sensitivity`.
    """
    return gram.gram_sensitivity(self.gram_matrix(schema.num_rounds), schema)

  def repeated_sensitivity(
      self, block_rounds: int, schema: participation.MinSep
  ) -> sensitivity_lib.Sensitivity:
    """The sensitivity of independent copies of it, one after the other.

    Args:
      block_rounds: rounds of each copy; the last may be cut short.
      schema: min-sep, with more rounds than a block.
    """
    return blocks.repeated(self, block_rounds, schema)

  def gram_matrix(self, num_rounds: int) -> np.ndarray:
    """X = CᵀC, shape [num_rounds, num_rounds].

    Raises:
      ValueError: where num_rounds is more than the strategy can run, or too
        many for a dense matrix.
    """
    workloads.check_dense(num_rounds)
    check_num_rounds(self, num_rounds)
    matrix = self.strategy_matrix(num_rounds)
    return matrix.T @ matrix

  def gram_entries(self, num_rounds: int) -> entries.Entries:
    """A function that gives single entries of X, for observed patterns.

    By default it looks them up in the whole matrix.
    """
    whole = self.gram_matrix(num_rounds)
    return lambda rows, columns: whole[rows, columns]

  def error(
      self,
      num_rounds: int,
      workload: workloads.Queries = workloads.Workload(),
  ) -> error_lib.Error:
    """RMS and max error; see `error.error`."""
    return error_lib.summary(self.per_query_error(num_rounds, workload))

  def per_query_error(
      self,
      num_rounds: int,
      workload: workloads.Queries = workloads.Workload(),
  ) -> np.ndarray:
    """Standard deviation of each query's noise; see `error.per_query_error`.

    By default from the whole of N.
    """
    check_num_rounds(self, num_rounds)
    workloads.check_dense(num_rounds)
    return error_lib.row_norms(self.noising_matrix(num_rounds), workload)


def check_num_rounds(strategy: Strategy, num_rounds: int) -> None:
  """Raises ValueError unless the strategy can run for num_rounds rounds."""
  if num_rounds < 1:
    raise ValueError(f'num_rounds must be at least 1, got {num_rounds!r}')
  if strategy.max_rounds is not None and num_rounds > strategy.max_rounds:
    raise ValueError(
        f'num_rounds={num_rounds} is beyond the {strategy.max_rounds} rounds'
        f' that this {strategy.family} strategy was made for'
    )


def check_undoes(strategy: Strategy, noising: np.ndarray) -> None:
  """Raises ValueError unless N C = 1, to rounding, over the first rounds.

  What a run releases is then A (x + N Z) = A N (C x + Z), which hides as much
  of x as C's sensitivity says. With another N, no figure of C says anything.

  Args:
    strategy: C.
    noising: N of all its rounds.
  """
  num_rounds = min(len(noising), _CHECKED_ROUNDS)
  rows = strategy.num_noise_rows(num_rounds)
  matrix, own = strategy.strategy_matrix(num_rounds), noising[:num_rounds, :rows]
  shapes = matrix.shape == own.T.shape == (rows, num_rounds)
  if not shapes or noising[:num_rounds, rows:].any() or not (
      np.abs(own @ matrix - np.eye(num_rounds))
      <= _ROUNDING * (np.abs(own) @ np.abs(matrix))
  ).all():
    raise ValueError(
        f'noising_matrix of {strategy.family} does not undo its strategy_matrix,'
        ' so its noise would not be what its sensitivity is computed for'
    )
