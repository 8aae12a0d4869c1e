"""The examples that train, as users run them: trained, replayed, reloaded."""

import json
import logging
import pathlib
import runpy
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fl_dpftrl as dpftrl
import tff_inprocess
from fl_dpftrl.logs import refusals
from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.tff.training import loop
from tests import leaks, made, pages
from tests.tff_inprocess import small_processes

pytestmark = [pytest.mark.tff, pytest.mark.slow]

EXAMPLES = pathlib.Path(__file__).parents[3] / 'examples'


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
  again = dpftrl.replay(opened, delta=stated['delta'])
  assert again.worst_case.epsilon() == stated['worst_case']['epsilon']
  assert stated['declared']['holds'] is True
  trained = names['trained'].model.trainable
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
  assert 'round 6/6' in out and 'ε = 20 at' in out
  # Started again, the run is finished; with another strategy it is refused. What ran TFF's
  # computations before runs them again.
  contexts = tff.framework.get_context_stack()
  own = tff_inprocess.InProcessContext()
  contexts_before = contexts.current
  before = (folder / 'model.npz').read_bytes()
  with contexts.install(own):
    dpftrl.train(names['process'], names['aggregator'], client_data=print, **names['run'])
    assert contexts.current is own
    assert names['process'].initialize().aggregator.noise.row == 0
  assert contexts.current is contexts_before
  assert (folder / 'model.npz').read_bytes() == before
  other = made.factory(dpftrl.Identity(), report_goal=10)
  arguments = dict(folder=folder, num_rounds=6, clients=names['CLIENTS'], client_data=print)
  with pytest.raises(ValueError, match='another strategy'):
    dpftrl.train(names['process'], other, **arguments)
  with pytest.raises(ValueError, match='needs 60 clients, got 40'):
    dpftrl.train(names['process'], names['aggregator'], **arguments, timer_rounds=8)
  arguments['folder'] = tmp_path / 'other'
  with pytest.raises(ValueError, match='must be built with the aggregator'):
    dpftrl.train(names['process'], other, **arguments)
  assert contexts.current is contexts_before
  with pytest.raises(ValueError, match='must be a CorrelatedNoiseFactory'):
    dpftrl.train(names['process'], None, **arguments)
  with pytest.raises(ValueError, match='is an address'):
    dpftrl.train(names['process'], other, **{**arguments, 'folder': 'gs://bucket/run'})
  arguments['clients'] = [*names['CLIENTS'], 'e\u0301']
  with pytest.raises(ValueError, match='clients: at 40, device_id is not in Unicode normal form C'):
    dpftrl.train(names['process'], names['aggregator'], **arguments)
  arguments['clients'] = [*names['CLIENTS'], '1', '001']
  with pytest.raises(ValueError, match='clients: at 41, the id has zeros or a sign'):
    dpftrl.train(names['process'], names['aggregator'], **arguments)
  assert not (tmp_path / 'other').exists()


def test_weights_that_stay_are_told_of_and_evaluations_are_named(tmp_path):
  aggregator = made.factory(dpftrl.Identity(), memory='state')
  model = small_processes.model(tf.keras.layers.BatchNormalization)
  process = small_processes.unweighted(aggregator, model)
  said, data = [], small_processes.clients()
  run = dict(folder=tmp_path / 'run', num_rounds=1, clients=[0, 1], say=said.append)
  run['client_data'] = lambda t, client: data[client]
  message = "evaluate must return a mapping .*'accuracy'.*got float"
  with pytest.raises(ValueError, match=message):
    dpftrl.train(process, aggregator, **run, evaluate=lambda weights: 0.5)
  bits, warning = said
  assert 'lowest bits' in bits and 'tff_inprocess.use()' in bits
  assert '2 non-trainable weights' in warning and 'BatchNormalization' in warning
  nested = {'all': {'loss': tf.constant(0.5)}, 'n': 3}
  trained = dpftrl.train(process, aggregator, **run, evaluate=lambda weights: nested)
  assert [np.mean(w) for w in trained.model.non_trainable] == [0.0, 1.0]
  row = (tmp_path / 'run' / 'metrics.csv').read_text().splitlines()
  assert row[0].endswith('validation/all/loss,validation/n,sha256') and ',0.5,3,' in row[1]


@pytest.mark.parametrize(
  'name', ['own_cnn', pytest.param('own_transformer', marks=pytest.mark.thorough)]
)
def test_keras_models(name, tmp_path, monkeypatch, capsys):
  names, out = run(name, tmp_path, monkeypatch, capsys)
  check(tmp_path / 'run', names)
  assert 'ε = 30 at' in out


def test_a_failed_round_tells_no_secret_and_names_the_client(tmp_path, caplog):
  tff_inprocess.use()
  aggregator = made.factory(report_goal=4)
  process = small_processes.unweighted(aggregator)
  clients = small_processes.clients()
  data = {f'client{i}': one for i, one in enumerate(clients)}
  bad = clients[0].map(lambda x, y: (tf.debugging.check_numerics(x / 0.0, 'not finite'), y))

  def train(num_rounds=3, *, bad_in_round=None):
    in_round = lambda t, name: bad if t == bad_in_round and name in names[1:3] else data[name]
    cohorts = lambda: (schemas.Cohort(t, np.array(names), t, t) for t in range(num_rounds))
    names = sorted(data)
    arguments = dict(num_rounds=num_rounds, clients=names, client_data=in_round, rounds=cohorts)
    return dpftrl.train(process, aggregator, folder=tmp_path / 'run', **arguments)

  with pytest.raises(loop.RoundFailedError, match='^round 2 failed: client 1, .* of 4: .* failed'):
    train(bad_in_round=2)
  for other in (2, 4):  # Once there are releases, the declared number of rounds stays.
    with pytest.raises(refusals.LogError, match='is of another run: participation'):
      train(other)
  secrets = leaks.spoil(tmp_path / 'run')
  with leaks.refused(secrets, loop.RoundFailedError):
    try:
      train()
    except loop.RoundFailedError:
      logging.getLogger().exception('the run ended')
      raise
  assert 'noise.seed: expected a value of type int64, got uint64' in caplog.text
  assert not secrets.found_in(caplog.text)
