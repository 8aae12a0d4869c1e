"""A log that states the digest of its rounds is believed only with the rows of that digest."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import ledgers, participation_log, refusals
from tests.commands import lines
from tests.logs import files

CLAIM = dpftrl.Claim(strategy='identity', noise_multiplier=1.0)
IDS = {'numbers': np.array([0, -3, 12, 2**62, 7]), 'text': np.array(['a', 'bé', '10', 'z', '9'])}
OTHER = {'numbers': 99, 'text': 'aa'}
REFUSED = 'its rows are not those of its fl_dpftrl.rounds_sha256'


def log_of(path, kind, seed=0):
  """Writes a log of 40 rounds with 0 to 4 devices, the first and the last without any."""
  rng = np.random.default_rng(seed)
  with ledgers.LogWriter(path, CLAIM) as log:
    for t, size in enumerate([0, *rng.integers(0, 5, 38), 0]):
      log.append(t, rng.choice(IDS[kind], size, replace=False), 100 + t)
  return pq.read_table(path)


def replaced(table, column, value, row=5):
  place = table.schema.get_field_index(column)
  values = table.column(place).to_pylist()
  values[row] = value
  return table.set_column(
    place, table.schema.field(place), pa.array(values, table.schema.types[place])
  )


CHANGES = {
  'a device': lambda t, other: t.filter(pc.not_equal(t['device_id'], t['device_id'][5])),
  'a round': lambda t, other: t.filter(pc.not_equal(t['round'], t['round'][5])),
  'the last row': lambda t, other: t.slice(0, t.num_rows - 1),
  'all rows': lambda t, other: t.slice(0, 0),
  'another id': lambda t, other: replaced(t, 'device_id', other),
  'another round': lambda t, other: replaced(t, 'round', 0),
  'a row more': lambda t, other: pa.concat_tables([t, replaced(t.slice(5, 1), 'round', 39, 0)]),
}


@pytest.mark.parametrize('change', CHANGES)
@pytest.mark.parametrize('kind', IDS)
def test_rows_that_are_not_those_of_the_digest_are_refused(path, kind, change):
  table = log_of(path, kind)
  files.written(path, CHANGES[change](table, OTHER[kind]))
  assert REFUSED in files.refusal(path)
  done = lines.run(['replay', '--log', path, '--strategy=identity', '--delta=1e-6'])
  assert done.returncode == 2 and REFUSED in done.stderr


@pytest.mark.parametrize('kind', IDS)
def test_rows_in_any_order_and_number_of_files_are_those_of_the_digest(tmp_path, kind):
  table = log_of(tmp_path / 'log.parquet', kind)
  rows = sorted(files.rows(tmp_path / 'log.parquet'))
  shuffled = table.take(np.random.default_rng(1).permutation(table.num_rows))
  encoded = table.set_column(1, 'device_id', table['device_id'].dictionary_encode())
  for place, parts in enumerate(
    (
      [table.slice(0, 7), table.slice(7)],
      [table.slice(7), table.slice(0, 7), table.slice(0, 0)],
      [shuffled],
      [encoded],
    )
  ):
    paths = [tmp_path / f'{place}-{number}.parquet' for number in range(len(parts))]
    for path, part in zip(paths, parts):
      files.written(path, part)
    assert sorted(files.rows(paths)) == rows
    assert len(paths) == 1 or REFUSED in files.refusal(paths[0])


def test_files_of_two_logs_are_no_shards_of_one(tmp_path):
  paths = [tmp_path / f'{seed}.parquet' for seed in range(2)]
  for seed, path in enumerate(paths):
    log_of(path, 'text', seed)
  with pytest.raises(refusals.LogError, match='1.parquet: fl_dpftrl.rounds_sha256 is .*not shards'):
    participation_log.read_log(paths)


def test_evidence_with_a_log_that_lost_rows_is_not_verified(tmp_path, path):
  table = log_of(path, 'text')
  run = dpftrl.open_run(path, 'identity')
  dpftrl.write_evidence(tmp_path / 'evidence', run, delta=1e-6)
  files.written(tmp_path / 'evidence' / 'log-1.parquet', table.slice(1))
  failed = {
    check.name: ' '.join(check.found) for check in dpftrl.verify(tmp_path / 'evidence').checks
  }
  assert REFUSED in failed['statement'] and failed['guarantee']
