"""The page for engineers: its programs run, and its logs are read."""

import pathlib
import re

import fl_dpftrl as dpftrl

PAGE = pathlib.Path(dpftrl.__file__).parents[1] / 'docs' / 'write-the-log.md'


def test_the_programs_of_the_page_run(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  blocks = re.findall(r'```python\n(.*?)```', PAGE.read_text(), re.DOTALL)
  programs = [block for block in blocks if 'process' not in block]
  assert len(programs) == 3
  names = {}
  for program in programs:
    exec(compile(program, PAGE.name, 'exec'), names)
  assert names['admission'].device_ids.tolist() == ['a', 'b']
  names['guard'].close()
  for log in ('participation', 'guarded'):
    run = dpftrl.open_run(f'{log}.parquet', names['strategy'])
    statement = dpftrl.replay(run, deltas=1e-10)
    assert statement.void_reason is None
  assert statement.worst_case.epsilon <= 8.0
