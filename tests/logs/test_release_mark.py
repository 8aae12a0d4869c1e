"""The log's metadata say how many rounds' results may have been used."""

import pyarrow.parquet as pq
import pytest

from fl_dpftrl.logs import digests, keys, refusals
from fl_dpftrl.logs import writer as writer_lib


def test_is_kept_with_the_log_and_through_later_rounds(tmp_path):
  path = tmp_path / 'log.parquet'
  log = writer_lib.LogWriter(path)
  assert log.released() is None
  log.mark_released(0)
  assert not path.exists() and log.released() == 0
  log.append(0, ['a', 'b'], 1767225600)
  assert writer_lib.LogWriter(path).released() == 0
  log.mark_released(1)
  log.append(1, ['c'], 1767225700)
  again = writer_lib.LogWriter(path)
  assert (again.released(), again.num_rounds) == (1, 2)
  assert again.cohort(0).tolist() == ['a', 'b']


def test_one_log_has_the_same_bytes_however_it_came_about(tmp_path):
  for name, times in (('once.parquet', 1), ('again.parquet', 2)):
    log = writer_lib.LogWriter(tmp_path / name)
    log.append(0, ['a'], 1767225600)
    for _ in range(times):
      log = writer_lib.LogWriter(tmp_path / name)
      log.mark_released(1)
      log.close()
  assert (tmp_path / 'once.parquet').read_bytes() == (tmp_path / 'again.parquet').read_bytes()


@pytest.mark.parametrize('text', ['2', '-1', 'x', '9' * 400])
def test_a_mark_that_cannot_be_is_refused(tmp_path, text):
  path = tmp_path / 'log.parquet'
  with writer_lib.LogWriter(path) as log:
    log.append(0, ['a'], 1767225600)
  table = pq.read_table(path)
  stored = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
  del stored[digests.METADATA_KEY]
  metadata = digests.sealed({**stored, keys.RELEASED_KEY: text}, {})
  pq.write_table(table.replace_schema_metadata(metadata), path)
  with pytest.raises(refusals.LogError, match='rounds_released'):
    writer_lib.LogWriter(path)


def test_no_more_rounds_than_there_are(tmp_path):
  with pytest.raises(ValueError, match='0 to 0, got 1'):
    writer_lib.LogWriter(tmp_path / 'log.parquet').mark_released(1)
