"""The base class of every mechanism: C and N, with defaults for the rest."""

import abc
import dataclasses
import functools
import inspect
import math
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

import numpy as np
import scipy

from fl_dpftrl.mechanisms import linear_noise, schemas, workload_error, workloads
from fl_dpftrl.mechanisms.schemas import check_num_rounds as check_num_rounds
from fl_dpftrl.mechanisms.sensitivities import endless, gram_search, independent_blocks, kinds
from fl_dpftrl.support import checks
from fl_dpftrl.support.text import messages

Parameters: TypeAlias = dict[str, Any]
"""Constructor arguments by keyword: numbers, tuples and arrays."""
ENDLESS = 'identity, blt, banded_toeplitz, banded_inverse, lambda_cgd or stamped'


class Strategy(abc.ABC):
  """An immutable strategy matrix C with its noising matrix N, in float64.

  A strategy says what C is, not how it was found. For the workload A that it estimates, A N C =
  A; for a square C, N is its inverse. C has one row for each row of Z, and may have more rows
  than there are rounds (trees do).

  A family gives `family`, `strategy_matrix` and `noising_matrix`. Every other method has a
  default that is correct for any C and N, but computes from the dense matrices. A family with a
  faster or tighter method overrides it.

  A run may end early. So C of n rounds must be the first num_noise_rows(n) rows and n columns of C
  of more rounds, and the first n rows of N must read only these rows of Z. A family for which
  that does not hold overrides `depends_on_num_rounds`; such a strategy can be compared, not run.

  Attributes:
    family: the name of the family in the registry and in strategy files.
    max_rounds: the most rounds it can run; None if it can run for ever. It is an attribute, a
      field or a property.
  """

  family: ClassVar[str]
  if TYPE_CHECKING:

    @property
    def max_rounds(self) -> int | None: ...
  else:
    max_rounds = None

  def __init_subclass__(cls, **kwargs: Any) -> None:
    super().__init_subclass__(**kwargs)
    # A field without a default would otherwise take the None above for its default.
    if 'max_rounds' in inspect.get_annotations(cls) and 'max_rounds' not in vars(cls):
      cls.max_rounds = dataclasses.field()  # type: ignore[assignment]

  @abc.abstractmethod
  def strategy_matrix(self, num_rounds: int) -> np.ndarray:
    """C, of shape [num_noise_rows(num_rounds), num_rounds]."""

  @abc.abstractmethod
  def noising_matrix(self, num_rounds: int) -> np.ndarray:
    """N, of shape [num_rounds, num_noise_rows(num_rounds)]."""

  @property
  def depends_on_num_rounds(self) -> bool:
    """True if C of a shorter run is not the beginning of C of a longer one."""
    return False

  def num_noise_rows(self, num_rounds: int) -> int:
    """Returns how many rows of Z the first num_rounds rounds use."""
    return num_rounds

  def memory_copies(self, num_rounds: int) -> int:
    """Returns the number of model-sized vectors a stream keeps between rounds."""
    return self.noise(num_rounds).num_buffers

  def noise(self, num_rounds: int | None = None) -> linear_noise.LinearNoise:
    """Returns how rows of N·Z are made, one after the other.

    The default keeps no buffers: it draws the rows of Z that a row needs again. It costs as many
    draws as there are rows of Z from the first to the last that row t of N reads.
    """
    if num_rounds is None:
      raise ValueError(
        f'a {self.family} strategy has no linear noise of its own and no'
        ' max_rounds; with max_rounds, rows of Z are drawn again'
      )
    noising = functools.cache(lambda: self.noising_matrix(num_rounds))

    def step(t):
      row = noising()[t]
      needed = np.flatnonzero(row)
      first, last = int(needed[0]), int(needed[-1])
      return linear_noise.Step(
        draws=row[first : last + 1],
        earlier=self.num_noise_rows(t) - first,
        norm=float(np.linalg.norm(row)),
      )

    return linear_noise.LinearNoise(0, step)

  def parameters(self) -> Parameters:
    """Returns constructor arguments by keyword, as a strategy file has them."""
    fields = dataclasses.fields(cast(Any, self))
    return {field.name: getattr(self, field.name) for field in fields}

  def __setstate__(self, state: dict[str, Any]) -> None:
    """Restores a copy or pickle, whose arrays can be written until this makes them read-only."""
    for value in state.values():
      if isinstance(value, np.ndarray):
        value.setflags(write=False)
    self.__dict__.update(state)

  def __repr__(self) -> str:
    parts = ', '.join(f'{name}={_shown(part)}' for name, part in self.parameters().items())
    return messages.one_line(f'{type(self).__name__}({parts})', 120)

  def sensitivity(self, schema: schemas.Schema) -> kinds.Sensitivity:
    """Returns the worst ‖C u‖ under a schema, per unit of clip norm.

    The default uses the Gram matrix. It is exact if a search over patterns ends in time, and
    otherwise an upper bound.

    Raises:
      ValueError: if the schema has more rounds than the strategy can run.

    Source: Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization, section 4 and
    algorithm VecSens; see `gram.gram_sensitivity`.
    """
    return gram_search.gram_sensitivity(self.gram_matrix(schema.num_rounds), schema)

  def repeated_sensitivity(self, block_rounds: int, schema: schemas.Schema) -> kinds.Sensitivity:
    """Returns the sensitivity of independent copies of C, one after the other.

    Args:
      block_rounds: rounds of each copy; the last may be cut short.
      schema: min-sep schema with more rounds than a block.
    """
    return independent_blocks.repeated(self, block_rounds, schema)

  def gram_matrix(self, num_rounds: int) -> np.ndarray:
    """Returns X = CᵀC, shape [num_rounds, num_rounds].

    Raises:
      ValueError: if num_rounds is more than the strategy can run, or too many for a dense matrix.
    """
    workloads.check_dense(num_rounds)
    check_num_rounds(self, num_rounds)
    matrix = self.strategy_matrix(num_rounds)
    return matrix.T @ matrix

  def gram_entries(self, num_rounds: int) -> kinds.Entries:
    """Returns a function that gives single entries of X, for observed patterns.

    The default looks them up in the whole matrix.
    """
    whole = self.gram_matrix(num_rounds)
    return lambda rows, columns: whole[rows, columns]

  def endless_gram(self) -> endless.Gram:
    """Returns X of a stream with rows for ever, for a participation without an end.

    Raises:
      ValueError: if the strategy has a last round, or a device's loss has no bound without one.

    Source: docs/endless.md.
    """
    raise ValueError(
      f'a {self.family} strategy needs a last round; a run without an end takes {ENDLESS}'
    )

  def error(
    self, num_rounds: int, workload: workloads.Workload = workloads.Workload()
  ) -> workload_error.Error:
    """Returns RMS and max error; see `error.error`."""
    return workload_error.summary(self.per_query_error(num_rounds, workload))

  def per_query_error(
    self, num_rounds: int, workload: workloads.Workload = workloads.Workload()
  ) -> np.ndarray:
    """Returns the standard deviation of each query's noise.

    The default computes it from the whole of N; see `error.per_query_error`.
    """
    check_num_rounds(self, num_rounds)
    workloads.check_dense(num_rounds)
    return workload_error.row_norms(self.noising_matrix(num_rounds), workload)


def lower_inverse(matrix: np.ndarray) -> np.ndarray:
  """Returns the inverse of a lower-triangular matrix."""
  return scipy.linalg.solve_triangular(matrix, np.eye(len(matrix)), lower=True)


def tightened(
  bound: kinds.Sensitivity, strategy: Strategy, schema: schemas.Schema, most_rounds: int
) -> kinds.Sensitivity:
  """Returns a sensitivity or, up to most_rounds, that of any X where it is tighter."""
  if bound.kind == kinds.EXACT or schema.num_rounds > most_rounds:
    return bound
  general = gram_search.gram_sensitivity(strategy.gram_matrix(schema.num_rounds), schema)
  return kinds.better(bound, general)


def keep_array(strategy: Strategy, name: str, *axes: str) -> np.ndarray:
  """Makes an attribute a read-only float64 copy; ValueError unless finite, with these axes."""
  values = np.array(getattr(strategy, name), dtype=np.float64)
  if values.ndim != len(axes) or not values.size:
    raise ValueError(f'{name} must have shape [{", ".join(axes)}], got shape {values.shape}')
  if not np.isfinite(values).all():
    raise ValueError(f'{name} must be finite')
  values.setflags(write=False)
  object.__setattr__(strategy, name, values)
  return values


def keep_number(strategy: Strategy, name: str, low: float, high: float) -> None:
  """Makes an attribute of a new strategy a float; raises ValueError unless it is in range."""
  parameter = getattr(strategy, name)
  try:
    value = float(parameter)
  except (TypeError, ValueError):
    value = math.nan
  if not low <= value <= high:
    raise ValueError(f'{name} must be a number from {low:g} to {high:g}, got {parameter!r}')
  object.__setattr__(strategy, name, value)


def keep_rounds(strategy: Strategy, name: str) -> None:
  """Makes an attribute of a new strategy an int of at least 1, unless it is None, or raises."""
  if getattr(strategy, name) is not None:
    checks.keep(strategy, checks.whole, name)


def check_strategy(strategy: object) -> None:
  """Raises ValueError for a name, a class, or an object of a family that is not registered."""
  if isinstance(strategy, type) or not isinstance(strategy, Strategy):
    what_to_do = (
      f'dpftrl.load_strategy({messages.quoted(strategy)}) loads a file or an included one'
      if isinstance(strategy, str)
      else 'register a family of your own first: dpftrl.register'
    )
    raise ValueError(f'strategy must be a Strategy, got {messages.quoted(strategy)}; {what_to_do}')


def _shown(part: Any) -> str:
  """Returns a parameter as a repr shows it: numbers in six digits, arrays by their shapes."""
  if isinstance(part, np.ndarray) and part.size > 8:
    return f'<{" × ".join(map(str, part.shape))} array>'
  if isinstance(part, (np.ndarray, tuple)):
    return f'[{", ".join(map(_shown, np.asarray(part).tolist()))}]'
  return f'{part:.6g}' if isinstance(part, float) else repr(part)
