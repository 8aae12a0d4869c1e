"""fl-dpftrl compare: rows, files, figures and warnings."""

import csv
import json
import os
import re
import struct
import sys

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.commands import compare, output
from fl_dpftrl.mechanisms import family_registry
from fl_dpftrl.planning import comparison_figures

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
  drawn = comparison_figures.draw
  monkeypatch.setattr(
    comparison_figures, 'draw', lambda *given: subtitles.append(given[-1]) or drawn(*given)
  )
  # The examples at fewer points, with a mechanism that is optimised in less time.
  line = compare.EXAMPLE.replace(',blt,', ',blt:1,').replace('100:600:7', '100:600:2')
  status, out, _ = run(line.removeprefix('fl-dpftrl '))
  assert status == 0 and 'blt-b400' in out
  assert len(os.listdir('comparison')) == 2
  assert subtitles == ['2,052 rounds, at most 6 participations; optimised for MaxLoss']


def test_devices_that_return_exactly(result):
  flags = '--num_rounds=24 --min_sep=6 --separation=fixed'
  (row,) = result(f'compare --mechanisms=blt-b400 {flags}')['rows']
  assert row['participation'] == 'fixed_separation'
  assert row.items() >= {'sensitivity': result(f'describe blt-b400 {flags}')['sensitivity']}.items()


_BATCHES = '--num_rounds=64 --num_examples=4096 --batch_size=200'
_NAMED = '--min_sep=8 --max_participations=4'
PARTICIPATIONS = {
  'min_sep': f'--num_rounds=64 {_NAMED}',
  'loss_budget': f'--loss_budget {_NAMED}',
  'poisson': f'--sampling=poisson {_BATCHES}',
  'bins': '--sampling=bins --num_rounds=64 --num_bins=4',
}


@pytest.mark.slow
@pytest.mark.parametrize(
  'epsilons', ['1,8', pytest.param('1,2,4,8', marks=pytest.mark.thorough)], ids=['two', 'four']
)
def test_a_sweep_of_epsilon_has_the_digits_of_calibrate_one_by_one(epsilons, tmp_path, result):
  line = (
    f'compare --mechanisms=identity,blt-b40-endless,banded-b16 {_BATCHES} {_NAMED} --num_bins=4'
    f' --loss_budget --sampling=poisson,bins --epsilon={epsilons} --delta=1e-6'
  )
  found = result(f'{line} --output={tmp_path / "out"}')
  cases = [(r['mechanism'], r['participation'], r['epsilon'], r) for r in found['rows']]
  count = 10 * len(epsilons.split(','))
  assert len(cases) == count and len({case[:3] for case in cases}) == count
  for name, participation, epsilon, row in cases:
    flags = PARTICIPATIONS[participation]
    one = result(f'calibrate --strategy={name} --epsilon={epsilon} --delta=1e-6 {flags}')
    fields = ('noise_multiplier', 'effective_noise_multiplier', 'sensitivity', 'sensitivity_kind')
    assert [row[field] for field in fields] == [one[field] for field in fields]
  check_png(tmp_path / 'out' / 'losses.png')


def test_rows_are_told_as_they_come(run, monkeypatch):
  monkeypatch.setattr(output, 'SECONDS', 0.0)
  line = 'compare --mechanisms=identity,blt-b400 --num_rounds=9 --epsilon=1,2 --delta=1e-6'
  status, out, err = run(line)
  told = re.findall(r'^compare: (.*), min_sep at epsilon=(.*): noise_multiplier (\S+),', err, re.M)
  assert status == 0 and [t[:2] for t in told] == [
    (name, epsilon) for name in ('identity', 'blt-b400') for epsilon in ('1.0', '2.0')
  ]
  assert all(noise in out for _, _, noise in told)


OWN = """
import dataclasses
import numpy as np
import fl_dpftrl as dpftrl

@dpftrl.register
@dataclasses.dataclass(frozen=True)
class Own(dpftrl.Strategy):
  decay: float
  max_rounds: int = 1000
  family = '{name}'

  def strategy_matrix(self, num_rounds):
    lags = np.subtract.outer(np.arange(num_rounds), np.arange(num_rounds))
    return np.tril(self.decay ** np.maximum(lags, 0))

  def noising_matrix(self, num_rounds):
    return np.eye(num_rounds) - self.decay * np.eye(num_rounds, k=-1)

  @classmethod
  def optimize(cls, problem):
    return min((cls(decay) for decay in (0.1, 0.5, 0.9)), key=problem.loss)
"""


def test_a_mechanism_of_ones_own_works_in_commands(run, result, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', list(sys.path))
  name = 'swept_module'
  (tmp_path / f'{name}.py').write_text(OWN.format(name='swept'))
  (tmp_path / 'ending_module.py').write_text('raise SystemExit(0)')
  status, _, err = run('describe own.json --import=ending_module')
  assert status == 2 and err.endswith('--import=ending_module failed: SystemExit: 0\n')
  monkeypatch.setattr(family_registry._families, 'data', dict(family_registry._families.data))
  status, _, err = run('optimize --mechanism=swept --num_rounds=20')
  assert status == 2 and "'swept' is none of" in err and '--import your own' in err
  found = result(f'optimize --mechanism=swept --num_rounds=20 --output=own.json --import={name}')
  assert found['mechanism'] == 'swept'
  described = result(f'describe own.json --import={name} --num_parameters=1000')
  assert described['max_loss'] == found['max_loss']
  assert (described['rows_drawn'], described['most_rows_drawn']) == (1.95, 2)
  assert described['row_seconds'] > 0
  compared = result(f'compare --import {name} --mechanisms=swept,file=own.json --num_rounds=20')
  assert [row['max_loss'] for row in compared['rows']] == [found['max_loss']] * 2
  best = min(
    result(f'describe {path} --num_rounds=20')['max_loss']
    for path in (save(tmp_path, decay) for decay in (0.1, 0.5, 0.9))
  )
  assert best == found['max_loss']
  line = 'compare --mechanisms=swept,identity --num_rounds=20 --loss_budget'
  status, out, err = run(f'{line} --min_sep=4 --max_participations=2')
  assert status == 0 and 'rows_drawn' in out
  assert 'swept is left out of loss_budget: mechanism=swept is optimised for a last round' in err
  line = line.replace('swept', 'own.json')
  status, out, err = run(f'{line} --min_sep=4 --max_participations=2')
  assert status == 0 and 'own is left out of loss_budget: a swept strategy needs a last' in err


def save(folder, decay):
  path = folder / f'{decay}.json'
  own = family_registry.FAMILIES['swept'](decay)
  dpftrl.save_strategy(path, own, schema=dpftrl.MinSep(20))
  return path
