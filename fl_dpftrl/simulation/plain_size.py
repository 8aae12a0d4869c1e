"""Size of plain containers for whoever goes through all that is in them."""

MOST_LEVELS = 16
"""Containers within each other."""

MOST_VALUES = 50_000_000
"""Values that whoever goes through the object meets, shared ones each time."""

_CONTAINER = 8  # values that a step into a container counts as


class TooLargeError(Exception):
  """An object that is too large to be gone through."""


def check(value: object) -> None:
  """Walks through an object, which may share parts or contain itself.

  Raises:
    TooLargeError: beyond MOST_LEVELS or MOST_VALUES.
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
        raise TooLargeError(
            f'it has more than {MOST_VALUES} values, shared ones each time'
        )
      levels.append(iter(item))
      if len(levels) > MOST_LEVELS + 1:
        raise TooLargeError(
            f'it has more than {MOST_LEVELS} containers within each other'
        )
      break
    else:
      levels.pop()
