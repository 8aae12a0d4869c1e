"""Selection of benchmark cases by parts of their names."""

from collections.abc import Sequence


def select(cases: Sequence, words: Sequence[str]) -> list:
  """Returns the cases whose name contains a word; all without words.

  Raises:
    ValueError: if no case contains a word.
  """
  for word in words:
    if not any(word in case.name for case in cases):
      raise ValueError(
        f'no case is called {word!r}; there are {", ".join(case.name for case in cases)}'
      )
  return [case for case in cases if not words or any(word in case.name for word in words)]
