"""The error for a log that cannot be believed, and checks of a file's columns."""

import re
from collections.abc import Sequence

from fl_dpftrl.logs import limits
from fl_dpftrl.support.text import messages

MARK_HINT = "; if it is an id, say which texts mark one: --missing=''"


class LogError(ValueError):
  """A log that cannot be believed; the message names the file, in one line."""

  def __init__(self, message: str):
    super().__init__(messages.one_line(message))


def check_names(path: str, names: Sequence[str], wanted: Sequence[str]) -> None:
  """Raises LogError unless each wanted column is there once."""
  if len(names) > limits.COLUMNS:
    raise LogError(f'{path}: has more than {limits.COLUMNS} columns')
  for name in wanted:
    if names.count(name) != 1:
      how = 'no' if name not in names else 'more than one'
      shown = ', '.join(messages.quoted(n) for n in names[:8])
      raise LogError(
        f'{path}: has {how} column {name!r}; its columns are {shown}'
        + (f' and {len(names) - 8} more' if len(names) > 8 else '')
        + (f'; say which it is: columns={name}=NAME' if name in ('round', 'device_id') else '')
      )


def renamed(error: LogError, name: str, actual_name: str) -> LogError:
  """Returns an error with another name of its column, whose marks no flag changes."""
  text = re.sub(rf'((?:, row \d+)?: (?:has no )?){name}\b', rf'\1{actual_name}', str(error))
  return LogError(text.removesuffix(MARK_HINT))
