"""Single entries of X = CᵀC, without computing the whole of it."""

from collections.abc import Callable
from typing import Protocol

import numpy as np

# (i, j) → X[i, j], for arrays of rounds that broadcast together.
Entries = Callable[[np.ndarray, np.ndarray], np.ndarray]


class HasEntries(Protocol):
  """A mechanism that gives entries of its X."""

  def gram_entries(self, num_rounds: int) -> Entries: ...


def gram_entries(strategy: HasEntries, num_rounds: int) -> Entries:
  """Returns a function that gives entries of X.

  Families with a fast formula for an entry use it; others look the entry up in the whole
  matrix.

  Args:
    strategy: C.
    num_rounds: n, the number of rows and columns of X.

  Raises:
    ValueError: if num_rounds is more than the strategy can run, or too many for a dense matrix
      where one is needed.
  """
  return strategy.gram_entries(num_rounds)
