"""Size limits of plain containers that are traversed completely."""

MOST_LEVELS = 16
"""Maximum nesting of containers."""

MOST_VALUES = 50_000_000
"""Maximum number of values of a traversal; shared values count each time."""

_CONTAINER = 8  # a step into a container counts as so many values


class TooLargeError(Exception):
  """Raised for an object that is too large to be traversed."""


def check(value: object) -> None:
  """Traverses an object, which may share parts or contain itself.

  Raises:
    TooLargeError: if it exceeds MOST_LEVELS or MOST_VALUES.
  """
  count = 1
  levels = [iter((value,))]
  while levels:
    for item in levels[-1]:
      if isinstance(item, dict):
        count += _CONTAINER + 2 * len(item)
        item = item.values()
      elif isinstance(item, (list, tuple)):
        count += _CONTAINER + len(item)
      else:
        continue
      if count > MOST_VALUES:
        raise TooLargeError(f'it has more than {MOST_VALUES} values, shared ones each time')
      levels.append(iter(item))
      if len(levels) > MOST_LEVELS + 1:
        raise TooLargeError(f'it has more than {MOST_LEVELS} containers within each other')
      break
    else:
      levels.pop()
