"""Cases of a benchmark by parts of their names."""

from typing import Sequence


def select(cases: Sequence, words: Sequence[str]) -> list:
  """Cases whose name holds one of the words; all where there are none.

  Raises:
    ValueError: for a word that no case holds.
  """
  for word in words:
    if not any(word in case.name for case in cases):
      raise ValueError(
          f'no case is called {word!r}; there are'
          f' {", ".join(case.name for case in cases)}'
      )
  return [
      case for case in cases
      if not words or any(word in case.name for word in words)
  ]
