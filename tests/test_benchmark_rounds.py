"""The parts of the rounds benchmark that need no long run."""

import pathlib
import sys

import pytest

# Benchmarks are not installed; after what is, for installed packages to win.
ROOT = pathlib.Path(__file__).parent.parent
sys.path.append(str(ROOT))

from benchmarks.rounds import cases
from benchmarks.rounds import noise
from benchmarks.rounds import run


@pytest.mark.parametrize('name', cases.STRATEGIES)
def test_rows_are_timed(name):
  found = noise.main(name, 1000, 1, 2)
  assert len(found['seconds']) == len(found['reading']) == 2
  copies = cases.strategy(name).memory_copies(cases.NUM_ROUNDS)
  assert abs(found['state_bytes'] - 4000 * copies) <= 4000
  if name.startswith('banded'):
    assert cases.first_row(name) > copies and cases.first_row(name) % 16


def test_page():
  about = {
      'date': '2026-01-01', 'processor': 'x86_64', 'cores': 4,
      'versions': {'python': '3.11.7'},
  }
  text = run.document(about, [['blt-4'] + ['1'] * 6], [['blt-4'] + ['2'] * 4])
  assert '4 cores. python 3.11.7.' in text and text.count('blt-4') == 2
  assert run.spread([1.0, 0.5, 2.0]) == '1,000 (500–2,000)'


def test_refuses_no_repeats(capsys):
  with pytest.raises(SystemExit):
    run.main(['--repeats=0'])
  assert '--repeats must be at least 1, got 0' in capsys.readouterr().err
