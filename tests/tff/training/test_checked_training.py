"""`dpftrl.train` of processes that learn from clients beside their aggregator."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fl_dpftrl as dpftrl
import tff_inprocess
from fl_dpftrl.commands import main
from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.tff.aggregators import process_check
from tests import made
from tests.tff_inprocess import small_processes

pytestmark = [pytest.mark.tff, pytest.mark.slow]

CLIENTS = [f'client{i}' for i in range(4)]
DATA = dict(zip(CLIENTS, small_processes.clients()))
GIVEN = dict(clients=CLIENTS, client_data=lambda round_index, client: DATA[client])


def make():
  return made.factory(dpftrl.BLT([0.8], [0.5]), noise_multiplier=1.0)


def replay(folder):
  files = f'--log={folder}/participation.parquet', f'--strategy={folder}/strategy.json'
  main.main(['replay', *files, '--noise_multiplier=1.0', '--delta=1e-6'])


def test_mime_lite_is_refused_and_void_if_forced(tmp_path, capsys):
  aggregator = make()
  process = tff.learning.algorithms.build_unweighted_mime_lite(
    small_processes.model(),
    base_optimizer=tff.learning.optimizers.build_sgdm(0.1, momentum=0.9),
    model_aggregator=aggregator,
  )
  arguments = dict(folder=tmp_path / 'run', num_rounds=2, **GIVEN)
  with pytest.raises(ValueError, match=r'state\.client_work\.0\.accumulator') as error:
    dpftrl.train(process, aggregator, **arguments)
  assert '\n' not in str(error.value) and len(str(error.value)) <= 300
  assert not (tmp_path / 'run').exists()
  trained = dpftrl.train(process, aggregator, **arguments, allow_unprotected_state=True)
  assert 'state.client_work.0.accumulator' in trained.statement.void_reason
  assert 'VOID' in (tmp_path / 'run' / 'privacy.html').read_text().upper()
  with pytest.raises(SystemExit) as ended:
    replay(tmp_path / 'run')
  assert ended.value.code == 4
  assert 'accumulator' in capsys.readouterr().out


def test_a_trusted_operation_is_an_assumption_of_the_statement(tmp_path):
  graphs = []  # TensorFlow forgets a Python function with the graph that first called it.

  class Same(tf.keras.layers.Layer):
    def call(self, x):
      graphs.append(x.graph)
      return tf.ensure_shape(tf.numpy_function(lambda values: values, [x], tf.float32), x.shape)

  aggregator = make()
  process = small_processes.unweighted(aggregator, small_processes.model(Same))
  arguments = dict(folder=tmp_path / 'run', num_rounds=1, **GIVEN)
  with pytest.raises(ValueError, match='PyFunc at clients in next') as error:
    dpftrl.train(process, aggregator, **arguments)
  assert len(str(error.value)) <= 300
  trained = dpftrl.train(process, aggregator, **arguments, trusted_operations=['PyFunc'])
  assert trained.statement.void_reason is None
  assert any('the operations PyFunc keep' in one for one in trained.statement.assumptions)


def test_metrics_without_noise_are_named(tmp_path, capsys):
  aggregator = make()
  process = small_processes.unweighted(aggregator)
  arguments, shown = dict(num_rounds=2, **GIVEN), [dpftrl.observers.ProgressLine()]
  trained = dpftrl.train(process, aggregator, folder=tmp_path, observers=shown, **arguments)
  assert 'round 2/2 | ' in capsys.readouterr().out
  names = trained.statement.not_private_metrics
  assert 'client_work.train.loss' in names and 'aggregator.clipped_count' in names
  assert trained.statement.void_reason is None
  stated = json.loads((tmp_path / 'privacy.json').read_text())
  assert stated['not_private_metrics'] == list(names)
  assert 'client_work.train.loss' in (tmp_path / 'privacy.html').read_text()
  replay(tmp_path)
  assert 'metrics without the noise' in capsys.readouterr().out
  # Nothing that is printed for debugging is covered either, and the log says so.
  shown = tff_inprocess.InProcessContext(show_client_errors=True)
  dpftrl.train(process, aggregator, folder=tmp_path / 'shown', context=shown, **arguments)
  with pytest.raises(SystemExit) as ended:
    replay(tmp_path / 'shown')
  assert ended.value.code == 4 and 'show_client_errors' in capsys.readouterr().out


def test_canaries_are_audited_by_the_result_of_the_aggregator_only(tmp_path, monkeypatch):
  aggregator = made.factory(canaries=dpftrl.Canaries(4))
  process, arguments = small_processes.unweighted(aggregator), GIVEN | dict(num_rounds=2)

  @tff.federated_computation(*process.next.type_signature.parameter)
  def next_fn(state, data):
    output = process.next(state, data)
    return tff.learning.templates.LearningProcessOutput(
      output.state, tff.federated_value((), tff.SERVER)
    )

  kept = process.get_model_weights, process.set_model_weights
  silent = tff.learning.templates.LearningProcess(process.initialize, next_fn, *kept)
  with pytest.raises(ValueError, match='audited by .* aggregator.released, which must be'):
    dpftrl.train(silent, aggregator, folder=tmp_path / 'silent', **arguments)
  check = process_check.check_process
  exact = lambda *args, **options: dataclasses.replace(
    check(*args, **options), metrics=('aggregator.released.0',)
  )
  monkeypatch.setattr(process_check, 'check_process', exact)
  with pytest.raises(ValueError, match='audited by .* aggregator.released, which must be'):
    dpftrl.train(process, aggregator, folder=tmp_path / 'exact', **arguments)
  monkeypatch.undo()
  fleet = dpftrl.Population(tmp_path / 'fleet', epsilon=20.0, delta=1e-6)
  budget = dpftrl.LossBudget(min_sep=2, max_participations=3)
  for refused in (dict(population=fleet), dict(participation=budget)):
    with pytest.raises(ValueError, match='canaries need noise, and a MinSep of devices without a'):
      dpftrl.train(process, aggregator, folder=tmp_path / 'run', **arguments | refused)


def test_a_candidate_with_the_name_of_a_canary_locks_no_run_out(tmp_path):
  aggregator = made.factory(dpftrl.BLT([0.8], [0.5]), canaries=dpftrl.Canaries(4))
  process, computed = small_processes.unweighted(aggregator), []

  def rounds():
    for t in range(4):
      ids = [f'{t}-a', f'{t}-b']
      if t == 1:  # The turn of this canary comes later.
        identity = json.loads((tmp_path / 'claim.json').read_text())['run']
        ids.append(f'canary-{identity}-3')
      yield schemas.Cohort(t, np.array(ids), t, t)

  def data_of(t, device_id):
    computed.append((t, device_id))
    if t == 2:
      raise OSError('connection lost')
    return DATA[CLIENTS[t]]

  names = [f'{t}-{name}' for t in range(4) for name in 'ab']
  options = dict(clients=names, rounds=rounds, timer_rounds=4, num_rounds=4, client_data=data_of)
  with pytest.raises(RuntimeError, match='round 2 failed'):
    dpftrl.train(process, aggregator, folder=tmp_path, **options)
  trained = dpftrl.train(process, aggregator, folder=tmp_path, **options)
  assert trained.statement.num_devices == 8 and not any('canary' in name for _, name in computed)
