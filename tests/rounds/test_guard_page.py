"""The page for engineers: its programs run, and its logs are read."""

import fl_dpftrl as dpftrl
from tests import pages


def test_the_programs_of_the_page_run(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  programs = [text for text in pages.programs('write-the-log.md') if 'process' not in text]
  assert len(programs) == 2
  names = {}
  for program in programs:
    exec(compile(program, 'write-the-log.md', 'exec'), names)
  assert names['admission'].device_ids.tolist() == ['a', 'b']
  names['guard'].close()
  for log in ('participation', 'guarded'):
    run = dpftrl.open_run(f'{log}.parquet', 'blt-b400')
    statement = dpftrl.replay(run, deltas=1e-10)
    assert statement.void_reason is None
  assert statement.worst_case.epsilon() <= 8.0
