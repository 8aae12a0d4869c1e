"""Layout of another system's log: its columns, first round and marks of missing data."""

import re
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from fl_dpftrl.logs import id_columns, limits, refusals
from fl_dpftrl.support import checks
from fl_dpftrl.support.text import messages

NAMES = ('round', 'device_id')
_PARTITION = re.compile(r'([^=/]+)=([^/]*)')
_DELIMITERS = (',', '\t', ';')
_WHOLE = re.compile(r'-?[0-9]{1,18}')
_NONE = '__HIVE_DEFAULT_PARTITION__'


class Layout(NamedTuple):
  """Names, first round and marks of missing data of a log.

  A folder that is named KEY=VALUE gives its files a column KEY, unless they have one.

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

  def columns(self, path: str, names: Sequence[str]) -> tuple[dict[str, str], dict[str, int | str]]:
    """Returns the names of `round` and `device_id` in a file; and those that its folders give."""
    folders = partitions(path)
    folder_values: dict[str, int | str] = {
      own: folders[name]
      for own in NAMES
      if (name := getattr(self, own)) in folders and name not in names
    }
    if 'round' in folder_values:
      text = str(folder_values['round'])
      if not _WHOLE.fullmatch(text):
        raise refusals.LogError(
          f'{path}: round must be a whole number, but its folder says {messages.quoted(text)}'
        )
      folder_values['round'] = int(text)
    in_file = {own: getattr(self, own) for own in NAMES if own not in folder_values}
    refusals.check_names(path, names, tuple(in_file.values()))
    return in_file, folder_values

  def renamed(self, names: Sequence[str]) -> list[str]:
    """Returns a file's names with `round` and `device_id` in place of its own for them."""
    standard_names = {self.round: NAMES[0], self.device_id: NAMES[1]}
    return [standard_names.get(name, f'other {name}' if name in NAMES else name) for name in names]


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


def partitions(path: str) -> dict[str, str]:
  """Returns the columns that the folders of a file give, by their names KEY=VALUE."""
  result = {}
  for folder in path.split('/')[:-1]:
    if match := _PARTITION.fullmatch(folder):
      try:
        result[match[1]] = (
          '' if match[2] == _NONE else urllib.parse.unquote(match[2], errors='strict')
        )
      except UnicodeDecodeError as e:  # Two of them must not become one text.
        raise refusals.LogError(f'{path}: the name of its folder is not UTF-8, {e}') from None
  return result


def repeated(folder_values: Mapping[str, int | str], num_rows: int) -> dict[str, pa.Array]:
  """Returns the columns that folders give, for so many rows."""
  kinds = {'round': pa.int64(), 'device_id': pa.large_string()}
  return {own: pa.array([value] * num_rows, kinds[own]) for own, value in folder_values.items()}


def delimiter(head: bytes) -> str:
  """Returns what separates a CSV head's names: a comma, or what stands in its place."""
  bare = re.sub(rb'"[^"]*"', b'', head)
  return next((d for d in _DELIMITERS if d.encode() in bare), ',')
