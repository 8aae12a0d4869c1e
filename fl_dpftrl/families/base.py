"""What every strategy says of itself."""

from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class Strategy(Protocol):
  """An immutable strategy matrix C with its noising matrix N, in float64.

  A strategy says what C is, not how it was found. For the workload A that it
  estimates, A N C = A; for a square C, N is its inverse. C has one row for each
  row of Z, and may have more rows than there are rounds (trees do).

  Attributes:
    family: the name under which the registry and strategy files know it.
    max_rounds: the most rounds it can run; None where it can go on for ever.
  """

  family: ClassVar[str]

  @property
  def max_rounds(self) -> int | None:
    ...

  def strategy_matrix(self, num_rounds: int) -> np.ndarray:
    """C, of shape [num_noise_rows(num_rounds), num_rounds]."""
    ...

  def noising_matrix(self, num_rounds: int) -> np.ndarray:
    """N, of shape [num_rounds, num_noise_rows(num_rounds)]."""
    ...

  def num_noise_rows(self, num_rounds: int) -> int:
    """Rows of Z that the first num_rounds rounds use."""
    ...

  def memory_copies(self, num_rounds: int) -> int:
    """Vectors of the model's size that a stream keeps between rounds."""
    ...

  def parameters(self) -> dict[str, Any]:
    """What a strategy file stores: keyword arguments that rebuild it."""
    ...


def check_num_rounds(strategy: Strategy, num_rounds: int) -> None:
  """Raises ValueError unless the strategy can run for num_rounds rounds."""
  if num_rounds < 1:
    raise ValueError(f'num_rounds must be at least 1, got {num_rounds!r}')
  if strategy.max_rounds is not None and num_rounds > strategy.max_rounds:
    raise ValueError(
        f'num_rounds={num_rounds} is beyond the {strategy.max_rounds} rounds'
        f' that this {strategy.family} strategy was made for'
    )
