"""Runs whose clients' metrics are released with noise, and that may end by them."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fl_dpftrl as dpftrl
from fl_dpftrl.tff.aggregators import process_check
from tests import made

pytestmark = [pytest.mark.tff, pytest.mark.slow]

CLIENTS = [f'client-{i}' for i in range(24)]


def model_fn():
  spec = (tf.TensorSpec([None, 3], tf.float32), tf.TensorSpec([None, 1], tf.float32))
  layers = [tf.keras.layers.InputLayer(3), tf.keras.layers.Dense(1, kernel_initializer='zeros')]
  metrics = [tf.keras.metrics.MeanAbsoluteError(name='mae')]
  return tff.learning.models.from_keras_model(
    tf.keras.Sequential(layers), tf.keras.losses.MeanSquaredError(), spec, metrics=metrics
  )


def data(round_index, client):
  x = np.random.default_rng(CLIENTS.index(client)).normal(size=(8, 3)).astype(np.float32)
  return tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(4)


@functools.cache
def build(noise_multiplier=0.8):
  noise = dict(noise_multiplier=noise_multiplier, report_goal=4, metrics={'mae': 5.0})
  aggregator = made.factory(dpftrl.BLT((0.9,), (0.1,)), **noise)
  process = dpftrl.build_fed_avg(
    model_fn, aggregator=aggregator, client_learning_rate=0.05, server_learning_rates=np.ones(6)
  )
  return process, aggregator


def train(folder, **options):
  options |= dict(num_rounds=6, timer_rounds=6, clients=CLIENTS, client_data=data)
  evaluating = dict(evaluate=lambda weights: {'accuracy': 0.5}, rounds_per_evaluation=2)
  return dpftrl.train(*build(), folder=folder, **evaluating, **options)


def test_released_metrics_are_in_the_table_the_lines_and_the_claim(tmp_path):
  lines = []
  trained = train(tmp_path / 'run', say=lines.append)
  assert any("clients' mae" in line and '±' in line for line in lines)
  (name, stddev) = (f'aggregator/{part}/mae' for part in ('metrics', 'metrics_stddev'))
  table = (tmp_path / 'run' / 'metrics.csv').read_text().splitlines()
  assert name in table[0] and stddev in table[0] and 'train/loss' not in table[0]
  mean = trained.metrics()['mae']
  assert mean.num_rounds == 6 and mean.value == pytest.approx(trained.history[name].mean())
  assert 0 < mean.stddev < trained.history[stddev][0]
  claim = trained.statement.runs[0].claim
  assert claim.private_metrics.bounds == {'mae': 5.0} and not claim.not_private_metrics
  assert trained.setting.clipped_count is None  # Nobody counted them.
  trained.plot()


def test_a_run_with_next_to_no_signal_says_so_before_its_first_round(tmp_path):
  options = dict(num_rounds=1, clients=CLIENTS, client_data=data)
  noisy, clear = [], []
  for lines, noise_multiplier in ((noisy, 500.0), (clear, 0.8)):
    folder = tmp_path / str(noise_multiplier)
    dpftrl.train(*build(noise_multiplier), folder=folder, say=lines.append, **options)
  assert any('as much noise as signal, and all rounds together' in line for line in noisy)
  assert not any('as much noise' in line for line in clear)


def test_a_run_ends_by_what_it_released_under_the_declared_guarantee(tmp_path):
  seen = []

  def stop(history):
    seen.append(list(history.measured))
    return len(history.rounds) == 2

  first = train(tmp_path / 'run', stop_when=stop)
  again = train(tmp_path / 'run', stop_when=stop)
  for trained in (first, again):
    statement = trained.statement
    assert statement.num_rounds == 2 and statement.headline is statement.declared
    assert statement.declared.participation.num_rounds == 6 and statement.quoted in repr(trained)
    assert statement.declared.guarantee.epsilon() > statement.worst_case.epsilon()
  assert seen[0] == [] and all(names == ['mae'] for names in seen[1:])
  assert train(tmp_path / 'run').statement.num_rounds == 6


def test_a_metric_without_noise_is_not_taken_for_a_released_one(tmp_path, monkeypatch):
  """A process may call any measurement so; the check says which have no noise."""
  check = process_check.check_process
  exact = lambda *args, **options: dataclasses.replace(
    check(*args, **options), metrics=('aggregator.metrics.mae',)
  )
  monkeypatch.setattr(process_check, 'check_process', exact)
  with pytest.raises(ValueError, match='stop_when would see aggregator.metrics.mae'):
    train(tmp_path / 'run', stop_when=lambda history: False)
