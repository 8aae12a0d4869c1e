"""Layout of another system's log: its columns, first round and marks of missing data."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fl_dpftrl.logs import id_columns, limits, table_columns
from fl_dpftrl.support import checks
from fl_dpftrl.support.text import messages

NAMES = ('round', 'device_id')


class Layout(NamedTuple):
  """Names, first round and marks of missing data of a log.

  Attributes:
    round: name of the column of rounds.
    device_id: name of the column of device ids; in Parquet it may hold lists, with a row
      for each cohort.
    first_round: number of the first round.
    missing: texts, and whole numbers as text, that are no ids but say that one is missing.
  """

  round: str = NAMES[0]
  device_id: str = NAMES[1]
  first_round: int = 0
  missing: tuple[str, ...] = id_columns.MISSING

  @property
  def own_names(self) -> str | None:
    """Names of the columns as `parse` takes them; None if they are those of our logs."""
    if (self.round, self.device_id) == NAMES:
      return None
    return f'round={self.round},device_id={self.device_id}'

  @property
  def own_marks(self) -> str | None:
    """Marks of missing data as `parse` takes them; None if they are those of `ids.MISSING`."""
    return None if self.missing == id_columns.MISSING else ','.join(self.missing)

  def published(self, columns: str, marks: str) -> 'Layout':
    """Returns the layout with words in place of names and marks of another system."""
    round_name, id_name = (columns, columns) if self.own_names else NAMES
    missing = (marks,) if self.own_marks else self.missing
    return Layout(round_name, id_name, self.first_round, missing)

  @property
  def columns(self) -> table_columns.TableColumns:
    """The columns of a log in its files."""
    kinds = dict(zip(NAMES, (table_columns.ROUND, table_columns.IDS)))
    names = dict(zip(NAMES, (self.round, self.device_id)))
    return table_columns.TableColumns(kinds, names, self.first_round, self.missing, has_flags=True)


PLAIN = Layout()


def parse(
  columns: str | Mapping[str, str] | None, first_round: int = 0, missing: str | None = None
) -> Layout:
  """Returns the layout that `round=NAME,device_id=NAME`, or a mapping, and `MARK,MARK` describe."""
  checks.whole(0, limits.ROUNDS - 1, first_round=first_round)
  pairs: Iterable[Sequence[Any]] = [p.partition('=')[::2] for p in str(columns).split(',')]
  if isinstance(columns, Mapping):
    pairs = columns.items()
  names: dict[str, Any] = {}
  for column, name in pairs if columns else ():
    if column not in NAMES or column in names or not (name and isinstance(name, str)):
      raise ValueError(
        f'columns={messages.quoted(columns)} must be like round=step,device_id=user_id'
      )
    names[column] = name
  if not isinstance(missing, str | None):
    raise ValueError(f'missing={messages.quoted(missing)} must be like NULL,unknown')
  marks = id_columns.MISSING if missing is None else tuple(filter(None, missing.split(',')))
  result = Layout(**names, first_round=first_round, missing=marks)
  if result.round == result.device_id:
    raise ValueError(f'columns={messages.quoted(columns)} names one column twice')
  return result
