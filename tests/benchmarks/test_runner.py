"""Names of benchmarks, and the pattern that they share."""

import json
import sys

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import runner
from tests import made


@made.cases(
  'words, selected',
  ([], {'optimize': (), 'replay': (), 'training': ()}),
  (['replay-counted'], {'replay-counted': ()}),
  (['replay-1B', 'guard'], {'replay': ('replay-1B',), 'guard': ()}),
  (['lstm', 'blt'], {'optimize': ('blt',), 'training': ('lstm',)}),
)
def test_words_select_benchmarks_and_cases(words, selected):
  assert benchmarks.selection(words) == selected
  with pytest.raises(ValueError, match="nothing is called 'blq'"):
    benchmarks.selection([*words, 'blq'])


def test_a_large_case_is_selected_by_its_name_only():
  cases = benchmarks.module('replay').CASES
  assert 'replay-1B' not in runner.Options().select(cases)
  assert list(runner.Options(words=('1B',)).select(cases)) == ['replay-1B']


def test_sides_take_turns_and_a_failed_one_is_not_run_again(tmp_path, capfd):
  program = 'import json, sys; print("progress"); print(json.dumps({"n": int(sys.argv[1])}))'
  sides = {
    'ours': runner.Side([sys.executable, '-c', program, '3']),
    'peer': runner.Side([sys.executable, '-c', program, 'many']),
    'slow': runner.Side([sys.executable, '-c', 'import time; time.sleep(60)'], timeout=0.5),
  }
  runs = runner.turns('case', sides, 2)
  order = [line.split(': ')[0] for line in capfd.readouterr().err.splitlines()]
  assert order == ['case 1 ours', 'case 1 peer', 'case 1 slow', 'case 2 ours']
  assert runs['ours'].results == [{'n': 3}] * 2 and runs['ours'].peak_mebibytes > 1
  assert runs['peer'].failures[0].startswith('ValueError: invalid literal')
  assert runs['slow'].failures == ['no result after 0 s']
  rows = [{'name': 'a', 'missing': None, **runs}]
  table = runner.table('name={name}|missing={missing:.2f}|ours={ours}|peer={peer}', rows)
  _, _, line = table.splitlines()
  assert line.startswith('| a    |         | ') and 'failed: ValueError' in line
  assert runner.any_failed(rows)
  options = runner.Options(words=('bench-small',), output=tmp_path)
  runner.write(options, 'A title.\n\nThe text.', 'bench', [table], rows, {'python': '3'})
  assert (tmp_path / 'bench-small.md').read_text().startswith('# A title\n\nThe text.\n\n')
  data = json.loads((tmp_path / 'bench-small.json').read_text())
  assert data['rows'][0]['ours']['results'] == [{'n': 3}] * 2
