"""The examples that train, as users run them: trained, replayed, reloaded."""

import json
import pathlib
import runpy
import sys

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from tests import pages

pytestmark = [pytest.mark.tff, pytest.mark.slow]

EXAMPLES = pathlib.Path(__file__).parent.parent / 'examples'


def run(name, folder, monkeypatch, capsys):
  """Runs an example in an empty folder; returns its names and its output."""
  monkeypatch.chdir(folder)
  monkeypatch.setattr(sys, 'argv', [name, 'run'])
  names = runpy.run_path(str(EXAMPLES / f'{name}.py'), run_name='__main__')
  return names, capsys.readouterr().out


def check(folder, names):
  """Replays the run and reloads its model."""
  stated = json.loads((folder / 'privacy.json').read_text())
  opened = dpftrl.open_run(
    folder / 'participation.parquet',
    folder / 'strategy.json',
    noise_multiplier=stated['noise_multiplier'],
  )
  again = dpftrl.replay(opened, deltas=stated['delta'], report_goal=10)
  assert again.worst_case.epsilon == stated['worst_case']['epsilon']
  assert stated['declared']['holds'] is True
  trained = names['trained'].weights.trainable
  with np.load(folder / 'model.npz') as archive:
    for i, weight in enumerate(trained):
      np.testing.assert_array_equal(archive[f'weight{i}'], weight)
  secrets = sorted((folder / 'checkpoints').glob('round-*.npz'))
  assert secrets and all(path.stat().st_mode & 0o077 == 0 for path in secrets)
  for path in folder.iterdir():
    owner = pages.read_by()[f'{path.name}/' if path.is_dir() else path.name]
    assert owner in ('owner', 'umask')
    assert (path.stat().st_mode & 0o077 == 0) == (owner == 'owner'), path


def test_a_bare_tff_model(tmp_path, monkeypatch, capsys):
  names, out = run('own_tff_model', tmp_path, monkeypatch, capsys)
  folder = tmp_path / 'run'
  check(folder, names)
  assert 'round 6/6' in out and 'epsilon 20.00' in out
  # Started again, the run is finished; with another strategy it is refused.
  before = (folder / 'model.npz').read_bytes()
  dpftrl.train(names['process'], names['aggregator'], client_data=print, **names['run'])
  assert (folder / 'model.npz').read_bytes() == before
  other = dpftrl.CorrelatedNoiseFactory(
    dpftrl.Identity(), noise_multiplier=1.0, clip_norm=1.0, report_goal=10
  )
  arguments = dict(folder=folder, num_rounds=6, clients=names['CLIENTS'], client_data=print)
  with pytest.raises(ValueError, match='another strategy'):
    dpftrl.train(names['process'], other, **arguments)
  with pytest.raises(ValueError, match='needs 60 clients, got 40'):
    dpftrl.train(names['process'], other, **arguments, timer_rounds=8)
  arguments['folder'] = tmp_path / 'other'
  with pytest.raises(ValueError, match='must be built with the aggregator'):
    dpftrl.train(names['process'], other, **arguments)
  with pytest.raises(ValueError, match='must be a CorrelatedNoiseFactory'):
    dpftrl.train(names['process'], None, **arguments)


@pytest.mark.parametrize('name', ['own_cnn', 'own_transformer'])
def test_keras_models(name, tmp_path, monkeypatch, capsys):
  names, out = run(name, tmp_path, monkeypatch, capsys)
  check(tmp_path / 'run', names)
  assert 'epsilon 30.00' in out
