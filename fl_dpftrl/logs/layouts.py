"""Columns of a log, and of another system's: names, first round and marks of missing data."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fl_dpftrl.logs import id_columns, limits, table_columns
from fl_dpftrl.support import checks
from fl_dpftrl.support.text import messages

NAMES = ('round', 'device_id')

PLAIN = table_columns.TableColumns(
  dict(zip(NAMES, (table_columns.ROUND, table_columns.IDS))),
  dict(zip(NAMES, NAMES)),
  has_flags=True,
)
"""Columns of our logs; in Parquet, a row may be a cohort, with a list of ids."""


def parse(
  columns: str | Mapping[str, str] | None, first_round: int = 0, missing: str | None = None
) -> table_columns.TableColumns:
  """Returns the columns that `round=NAME,device_id=NAME`, or a mapping, and `MARK,MARK` tell."""
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
  names = {**PLAIN.names, **names}
  if len(set(names.values())) < len(names):
    raise ValueError(f'columns={messages.quoted(columns)} names one column twice')
  return PLAIN._replace(names=names, first_round=first_round, missing=marks)
