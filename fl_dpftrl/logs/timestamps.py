"""Times of a log's rounds, from a column that no figure needs: order of the rounds, and pauses.

A round begins with the earliest timestamp of its rows. Timestamps are whole UTC seconds, a type of
time in Parquet, or text such as 2026-01-31T12:00:00Z; without a zone, text is taken for UTC.
"""

import copy
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.logs import layouts, ledger_format, log_tables, parquet, readers, refusals

_TIME = r'[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?'
_FORMS = {
  r'-?[0-9]{1,18}': pa.int64(),
  _TIME: pa.timestamp('us'),
  rf'{_TIME}(Z|[+-][0-9]{{2}}:?[0-9]{{2}})': pa.timestamp('us', tz='UTC'),
}
_EXAMPLE = '2026-01-31T12:00:00Z'


class RoundTimes(NamedTuple):
  """Times at which the rounds of a log began, in seconds since 1970, UTC.

  Attributes:
    first: beginning of the earliest round.
    last: beginning of the latest round.
    num_reversed: rounds that began before the round before them.
    first_reversed: number of the first of these, as the log has it; None without any.
    longest_pause: most seconds from one beginning to the next in time; 0 for a single round.
    pause_round: number of the round after the longest pause; None for a single round.
    median_pause: median of these seconds.
  """

  first: int
  last: int
  num_reversed: int
  first_reversed: int | None
  longest_pause: int
  pause_round: int | None
  median_pause: float

  def __str__(self) -> str:
    first, last = (time.strftime('%Y-%m-%d %H:%M', time.gmtime(t)) for t in (self.first, self.last))
    if self.pause_round is None:
      return f'{first} UTC'
    hours, median = self.longest_pause / 3600, self.median_pause / 3600
    pauses = f'longest pause {hours:.3g} h, before round {self.pause_round}; median {median:.3g} h'
    return f'{first} to {last} UTC; {pauses}'

  def warnings(self, path: str) -> list[str]:
    """Returns a warning where rounds are not in the order of their times."""
    if not self.num_reversed:
      return []
    return [
      f'{path}: timestamps fall from a round to the next, {self.num_reversed} times, first to round'
      f' {self.first_reversed}; if rounds were numbered anew, min-sep is wrong'
    ]


def read(sources: Sequence[readers.Source], num_rounds: int) -> RoundTimes | None:
  """Reads the times of a log's rounds; None without any row.

  Args:
    sources: files of the log, whose layout names a timestamp.
    num_rounds: upper limit that all rounds must be below.

  Raises:
    LogError: for a row whose timestamp is missing or of another form.
  """
  parts = [part for source in sources for part in _beginnings(source, num_rounds)]
  if not parts:
    return None
  rounds = pa.concat_tables(parts).rename_columns(['round', 'time']).group_by('round')
  whole = rounds.aggregate([('time', 'min')]).sort_by('round')
  numbers, starts = (whole.column(name).to_numpy() for name in ('round', 'time_min'))
  numbers = numbers + sources[0].layout.first_round
  reversed_places = np.flatnonzero(np.diff(starts) < 0)
  order = np.argsort(starts, kind='stable')
  pauses = np.diff(starts[order])
  longest = int(pauses.argmax()) if pauses.size else None
  return RoundTimes(
    first=int(starts.min()),
    last=int(starts.max()),
    num_reversed=reversed_places.size,
    first_reversed=int(numbers[reversed_places[0] + 1]) if reversed_places.size else None,
    longest_pause=0 if longest is None else int(pauses[longest]),
    pause_round=None if longest is None else int(numbers[order[longest + 1]]),
    median_pause=float(np.median(pauses)) if pauses.size else 0.0,
  )


def _beginnings(source: readers.Source, num_rounds: int) -> Iterable[pa.Table]:
  """Yields the earliest time of each round in parts of a file, as tables of two columns."""
  path, first_row = source.path, 1
  if path.endswith(ledger_format.SUFFIX):
    raise refusals.LogError(f'{path}: timestamps of a ledger are not read; close the log first')
  times, name = copy.copy(source), source.layout.timestamp or ''  # Of the same file.
  times.layout = layouts.Layout(
    source.layout.round, name, source.layout.first_round, holds_times=True
  )
  try:
    for table in readers.tables(times, num_rounds):
      seconds = _seconds(path, table.column('device_id').combine_chunks(), first_row)
      first_row += table.num_rows
      rounds = pa.table({'round': table.column('round'), 'time': seconds}).group_by('round')
      # The order of the columns depends on the release of Arrow.
      yield rounds.aggregate([('time', 'min')]).select(['round', 'time_min'])
  except refusals.LogError as error:
    raise refusals.renamed(error, 'device_id', 'timestamp') from error


def _seconds(path: str, values: pa.Array, first_row: int) -> pa.Array:
  """Returns whole seconds since 1970; LogError with the first row of another form."""
  if not pa.types.is_integer(values.type):
    values = pc.replace_substring_regex(values, ' ?UTC$', 'Z')
    matches = {form: pc.match_substring_regex(values, f'^{form}$') for form in _FORMS}
    form = next((f for f, found in matches.items() if pc.all(found).as_py()), None)
    if form is None:
      first = next((f for f, found in matches.items() if found[0].as_py()), None)
      index = pc.index(matches[first], False).as_py() if first else 0
      raise refusals.LogError(
        f'{path}, row {first_row + index}: timestamp must be whole UTC seconds or like {_EXAMPLE},'
        ' in all rows alike'
      )
    try:
      values = values.cast(_FORMS[form])
    except pa.ArrowInvalid as error:  # Such as one of a 13th month.
      raise refusals.LogError(f'{path}: a timestamp is no valid date and time') from error
    if pa.types.is_timestamp(values.type):
      values = parquet.whole_seconds(values)
  try:
    return log_tables.utc_seconds('timestamp', values)
  except ValueError as error:
    raise refusals.LogError(f'{path}: {error}') from error
