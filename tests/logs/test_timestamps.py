"""Times of rounds: the same in every format, and whether rounds are in their order."""

import datetime
import re

import numpy as np
import pyarrow as pa
import pytest

from fl_dpftrl.logs import layouts, ledgers, log_tables, participation_log
from tests.logs import files

LAYOUT = layouts.parse('timestamp=at')
UTC = datetime.UTC
START = 1_767_225_600  # 2026-01-01


def drawn(seed):
  """Returns rounds, ids and seconds of rows in any order; some rounds are empty."""
  rng = np.random.default_rng(seed)
  rounds = np.sort(rng.choice(12, 30))
  begins = np.cumsum(rng.integers(-30, 100, 12))
  seconds = START + begins[rounds] + rng.integers(0, 20, 30)
  order = rng.permutation(30)
  return rounds[order], [f'd{i}' for i in range(30)], seconds[order]


def expected(rounds, seconds):
  """Returns the attributes of the times by a loop over rounds."""
  starts = {t: min(s for r, s in zip(rounds, seconds) if r == t) for t in sorted(set(rounds))}
  pairs = list(zip(starts, list(starts)[1:]))
  wrong = [b for a, b in pairs if starts[b] < starts[a]]
  in_time = sorted(starts, key=starts.get)
  pauses = [starts[b] - starts[a] for a, b in zip(in_time, in_time[1:])]
  return dict(
    first=min(starts.values()),
    last=max(starts.values()),
    num_reversed=len(wrong),
    first_reversed=wrong[0] if wrong else None,
    longest_pause=max(pauses),
    pause_round=in_time[1:][pauses.index(max(pauses))],
    median_pause=float(np.median(pauses)),
  )


def times(path, layout=LAYOUT, **options):
  return participation_log.read_log(path, layout=layout, **options).times


def texts(form, seconds):
  return [datetime.datetime.fromtimestamp(s, UTC).strftime(form) for s in seconds.tolist()]


def csv(rounds, ids, times):
  return 'round,device_id,at\n' + ''.join(f'{r},{d},{t}\n' for r, d, t in zip(rounds, ids, times))


@pytest.mark.parametrize('seed', range(4))
def test_times_are_the_same_in_every_format(tmp_path, seed):
  rounds, ids, seconds = drawn(seed)
  found = expected(rounds.tolist(), seconds.tolist())
  forms = [
    '%Y-%m-%dT%H:%M:%SZ',
    '%Y-%m-%d %H:%M:%S',
    '%Y-%m-%d %H:%M:%S UTC',
    '%Y-%m-%dT%T.25+00:00',
  ]
  contents = {f'{i}.csv': csv(rounds, ids, texts(form, seconds)) for i, form in enumerate(forms)}
  contents['whole.csv'] = csv(rounds, ids, seconds)
  for i, kind in enumerate(
    (pa.timestamp('us', 'UTC'), pa.timestamp('ns'), pa.timestamp('s', 'CET'))
  ):
    column = pa.array(seconds, pa.int64()).cast(pa.timestamp('s')).cast(kind)
    contents[f'{i}.parquet'] = {'round': rounds, 'device_id': ids, 'at': column}
  contents['whole.parquet'] = {'round': rounds, 'device_id': ids, 'at': seconds}
  for name, content in contents.items():
    assert times(files.written(tmp_path / name, content))._asdict() == found, name
  one, other = (csv(rounds[part], ids[part], seconds[part]) for part in (slice(7), slice(7, 30)))
  shards = [files.written(tmp_path / f'{n}.csv', text) for n, text in (('a', one), ('b', other))]
  assert times(shards)._asdict() == found


def test_reversed_rounds_have_pauses_of_time_and_all_files_are_named(tmp_path):
  text = [csv([t], 'a', [START - 7200 * t]) for t in range(3)]
  shards = [files.written(tmp_path / f'{t}.csv', line) for t, line in enumerate(text)]
  log = participation_log.read_log(shards, num_rounds=3, layout=LAYOUT)
  assert str(log.times).endswith('; longest pause 2 h, before round 1; median 2 h')
  (warning,) = log.warnings
  assert '0.csv and 2 more: timestamps fall from a round to the next, 2 times' in warning


def test_rounds_are_named_as_the_log_has_them(tmp_path):
  path = files.written(tmp_path / 'l.csv', csv([7, 8, 9], 'abc', [100, 90, 4000]))
  layout = layouts.parse('timestamp=at', 7)
  found = times(path, layout)
  assert (found.first_reversed, found.pause_round) == (8, 9)
  (warning,) = participation_log.read_log(path, num_rounds=3, layout=layout).warnings
  assert 'next, 1 times, first to round 8; if' in warning
  one = times(files.written(tmp_path / 'one.csv', csv([0], 'a', [100])), num_rounds=1)
  assert str(one) == '1970-01-01 00:01 UTC' and one.pause_round is None


@pytest.mark.parametrize('values, message', [
  (['', '5'], 'row 1: has no timestamp|row 1: timestamp is empty'),
  (['5', 'NULL'], 'row 2: timestamp is a mark of missing data'),
  (['5', 'noon'], 'row 2: timestamp must be whole UTC seconds or like'),
  (['noon', '5'], 'row 1: timestamp must be whole UTC seconds or like'),
  (['2026-01-01T00:00:00', '2026-01-01T00:00:00Z'], 'row 2: .* in all rows alike'),
  (['1767225600000', '5'], 'divide milliseconds by 1000'),
  (['2026-13-01T00:00:00Z', '2026-01-01T00:00:00Z'], 'l.csv: '),
])  # fmt: skip
def test_a_timestamp_of_another_form_is_refused(tmp_path, values, message):
  path = files.written(tmp_path / 'l.csv', csv([0, 1], 'ab', values))
  line = files.refusal(path, layout=LAYOUT)
  assert re.search(message, line), line
  assert '--missing' not in line  # Which would change what counts as a device id.


def test_marks_of_missing_ids_are_none_of_times(tmp_path):
  path = files.written(tmp_path / 'l.csv', csv([0, 1], 'ab', [0, -1]))
  assert times(path, layouts.parse('timestamp=at', missing='-1,0')).first == -1


def test_what_has_no_timestamps_is_refused(tmp_path, path):
  log_tables.write_log(path, rounds=[0], device_ids=['a'], num_rounds=1)
  assert "has no column 'at'" in files.refusal(path, layout=LAYOUT)
  files.written(tmp_path / 'l.parquet', {'round': [0], 'device_id': ['a'], 'at': [0.5]})
  line = files.refusal(tmp_path / 'l.parquet', layout=LAYOUT)
  lists = {'round': [0], 'device_id': [['a', 'b']], 'at': [[5, 6]]}
  path = files.written(tmp_path / 'lists.parquet', lists)
  assert 'timestamp must be one a row, not lists' in files.refusal(path, layout=LAYOUT)
  assert 'l.parquet: timestamp must be text or whole numbers' in line and 'device_id' not in line
  with ledgers.LogWriter(tmp_path / 'open.parquet') as log:
    log.begin(0, [pa.array(['a'])], 5, '')
    line = files.refusal(tmp_path / 'open.ledger', layout=LAYOUT)
    assert 'close the log first' in line
  assert times(tmp_path / 'open.parquet', layouts.parse('timestamp=timestamp')).first == 5


@pytest.mark.parametrize('name', ['l.csv', 'l.parquet'])
def test_columns_that_nothing_reads_are_named(tmp_path, name):
  rows = {'round': [0, 1], 'model': ['x', 'y'], 'device_id': ['a', 'b'], 'at': [1, 2]}
  content = rows
  if name == 'l.csv':
    content = (
      ','.join(rows) + '\n' + ''.join(f'{",".join(map(str, r))}\n' for r in zip(*rows.values()))
    )
  path = files.written(tmp_path / name, content)
  unused = lambda text: participation_log.read_log(path, layout=layouts.parse(text)).unused_columns
  assert unused(None) == ('model', 'at') and unused('timestamp=at') == ('model',)


def test_a_log_of_this_package_has_no_column_that_nothing_reads(path):
  log_tables.write_log(path, rounds=[0], device_ids=['a'], num_rounds=1, timestamps=[5])
  assert participation_log.read_log(path).unused_columns == ()
