"""The error for a log that cannot be believed, and checks of a file's columns."""

from collections.abc import Collection, Sequence

from fl_dpftrl.logs import limits
from fl_dpftrl.support.text import messages

MARK_HINT = "; if it is an id, say which texts mark one: --missing=''"


class LogError(ValueError):
  """A log that cannot be believed; the message names the file, in one line."""

  def __init__(self, message: str):
    super().__init__(messages.one_line(message))


def check_names(
  path: str, names: Sequence[str], wanted: Sequence[str], flagged: Collection[str] = ()
) -> None:
  """Raises LogError unless each wanted column is there once; a flag can rename those flagged."""
  if len(names) > limits.COLUMNS:
    raise LogError(f'{path}: has more than {limits.COLUMNS} columns')
  for name in wanted:
    if names.count(name) != 1:
      how = 'no' if name not in names else 'more than one'
      shown = ', '.join(messages.quoted(n) for n in names[:8])
      raise LogError(
        f'{path}: has {how} column {name!r}; its columns are {shown}'
        + (f' and {len(names) - 8} more' if len(names) > 8 else '')
        + (f'; say which it is: --columns={name}=NAME' if name in flagged else '')
      )
