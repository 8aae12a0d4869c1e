"""Columns of a table whose values have kinds: their names in a file, or in those of its folders."""

import re
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from fl_dpftrl.logs import id_columns, refusals
from fl_dpftrl.support.text import messages

ROUND, ID, IDS = 'round', 'id', 'ids'
"""Kinds of values: a whole number of a round; an id; an id or, in Parquet, a list of ids."""

_PARTITION = re.compile(r'([^=/]+)=([^/]*)')
_WHOLE = re.compile(r'-?[0-9]{1,18}')
_NONE = '__HIVE_DEFAULT_PARTITION__'


class TableColumns(NamedTuple):
  """Columns that are read from the files of a table.

  A folder that is named KEY=VALUE gives its files a column KEY, unless they have one.

  Attributes:
    kinds: kind of each column, by the name that messages and results have; at most one is IDS.
    names: name of each column in the files.
    first_round: number of the first round.
    missing: texts, and whole numbers as text, that are no ids but say that one is missing.
    has_flags: whether flags can give other names and marks, as messages then say.
  """

  kinds: Mapping[str, str]
  names: Mapping[str, str]
  first_round: int = 0
  missing: tuple[str, ...] = id_columns.MISSING
  has_flags: bool = False

  @property
  def own_names(self) -> str | None:
    """Names in the files as a flag takes them; None if they are those of our tables."""
    if all(own == name for own, name in self.names.items()):
      return None
    return ','.join(f'{own}={name}' for own, name in self.names.items())

  @property
  def own_marks(self) -> str | None:
    """Marks of missing data as a flag takes them; None if they are those of `ids.MISSING`."""
    return None if self.missing == id_columns.MISSING else ','.join(self.missing)

  def published(self, columns: str, marks: str) -> 'TableColumns':
    """Returns the columns with words in place of names and marks of another system."""
    names = dict.fromkeys(self.names, columns) if self.own_names else self.names
    return self._replace(names=names, missing=(marks,) if self.own_marks else self.missing)

  def placed(self, path: str, names: Sequence[str]) -> tuple[dict[str, str], dict[str, int | str]]:
    """Returns the names of the columns that a file has; and the values that its folders give."""
    folders = partitions(path)
    folder_values: dict[str, int | str] = {
      own: folders[name]
      for own, name in self.names.items()
      if name in folders and name not in names
    }
    for own, value in folder_values.items():
      if self.kinds[own] == ROUND:
        if not _WHOLE.fullmatch(str(value)):
          raise refusals.LogError(
            f'{path}: {own} must be a whole number, but its folder says {messages.quoted(value)}'
          )
        folder_values[own] = int(value)
    in_file = {own: name for own, name in self.names.items() if own not in folder_values}
    refusals.check_names(path, names, tuple(in_file.values()), self.kinds if self.has_flags else ())
    return in_file, folder_values

  def repeated(self, folder_values: Mapping[str, int | str], num_rows: int) -> dict[str, pa.Array]:
    """Returns the columns that folders give, for so many rows."""
    types = {ROUND: pa.int64(), ID: pa.large_string(), IDS: pa.large_string()}
    return {
      own: pa.array([value] * num_rows, types[self.kinds[own]])
      for own, value in folder_values.items()
    }


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
