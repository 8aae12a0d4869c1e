"""fl-dpftrl compare: rows, files, figures and warnings."""

import csv
import json
import os
import re
import struct

import pytest

from fl_dpftrl.commands import compare
from fl_dpftrl.planning import figures

FIGURES = ['sensitivity', 'sensitivity_kind', 'rms_error', 'max_error', 'rms_loss', 'max_loss']


@pytest.fixture
def result(result_beside_warnings):
  return result_beside_warnings


def check_png(path):
  content = path.read_bytes()
  assert content.startswith(b'\x89PNG\r\n\x1a\n') and content[-8:-4] == b'IEND'
  width, height = struct.unpack('>II', content[16:24])
  assert 900 < width < 2500 and 500 < height < 2500


@pytest.mark.slow
def test_files_have_the_rows_and_the_same_figures_each_time(tmp_path, result):
  line = (
    'compare --mechanisms=identity,blt-b400,blt:1 --num_rounds=48 --min_sep=6,12,24'
    ' --max_participations=3'
  )
  names = ['comparison.csv', 'losses.png']
  found = result(f'{line} --output={tmp_path / "a"}')
  result(f'{line} --output={tmp_path / "b"}')
  assert sorted(found['files']) == sorted(os.listdir(tmp_path / 'a')) == names
  for name in names:
    if name.endswith('.png'):
      check_png(tmp_path / 'a' / name)
      assert (tmp_path / 'a' / name).read_bytes() == (tmp_path / 'b' / name).read_bytes()
  with open(tmp_path / 'a' / 'comparison.csv', newline='') as file:
    rows = list(csv.DictReader(file))
  assert rows == [
    {name: '' if value is None else str(value) for name, value in row.items()}
    for row in found['rows']
  ]


@pytest.mark.slow
def test_files_made_for_another_workload_are_told(tmp_path, run):
  path = tmp_path / 'mine.json'
  optimize = 'optimize --mechanism=banded_sqrt --num_bands=3 --num_rounds=20'
  run(f'{optimize} --workload=momentum --momentum=0.9 --cooldown_fraction=0.25 --output={path}')
  status, _, err = run(f'compare --mechanisms={path},blt-b400 --num_rounds=20')
  (line,) = err.splitlines()
  assert status == 0
  assert 'mine was made for momentum 0.9, cooldown_fraction 0.25' in line
  assert 'prefix sums' in line


@pytest.mark.slow
def test_strategies_of_too_few_rounds_are_left_out(tmp_path, run):
  mine = tmp_path / 'mine.json'
  run(f'optimize --mechanism=banded --num_rounds=20 --min_sep=5 --output={mine}')
  line = f'compare --mechanisms={mine},identity --num_rounds=10,20,30 --min_sep=5'
  status, out, err = run(f'{line} --output={tmp_path / "out"} --json')
  told = 'mine is left out at num_rounds=30: .*20 rounds'
  assert status == 0 and err.count('\n') == 1 and re.search(told, err)
  found = json.loads(out)
  assert {s['mechanism'] for s in found['skipped']} == {'mine'}
  assert [s['num_rounds'] for s in found['skipped']] == [30]
  assert sorted(row['num_rounds'] for row in found['rows']) == [10, 10, 20, 20, 30]


@pytest.mark.slow
def test_the_examples_work(run, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  subtitles = []
  drawn = figures.draw
  monkeypatch.setattr(figures, 'draw', lambda *given: subtitles.append(given[-1]) or drawn(*given))
  # The examples at fewer points, with a mechanism that is optimised in less time.
  line = compare.EXAMPLE.replace(',blt,', ',blt:1,').replace('100:600:7', '100:600:2')
  status, out, _ = run(line.removeprefix('fl-dpftrl '))
  assert status == 0 and 'blt-b400' in out
  assert len(os.listdir('comparison')) == 2
  assert subtitles == ['2,052 rounds, at most 6 participations; optimised for MaxLoss']
