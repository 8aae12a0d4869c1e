"""Studies of real runs: a TFF model by `dpftrl.train`, loops by `private_aggregator`, the page."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fl_dpftrl as dpftrl
import tff_inprocess
from fl_dpftrl.participation.rules import sampling
from fl_dpftrl.planning.simulation import partition
from tests import pages
from tests.study import linear

pytestmark = [pytest.mark.tff, pytest.mark.slow]

CLIENTS = [f'client{i}' for i in range(40)]
ONE = dict(mechanisms=['identity'], server_learning_rates=[0.3], seeds=[0], delta=1e-5)


def data(seed, size):
  x = np.random.default_rng(seed).normal(size=(size, 3)).astype(np.float32)
  return x, (x @ linear.TRUTH > 0).astype(np.float32)


def accuracy(weights, seed):
  x, y = data([0, seed], 500)
  return {'accuracy': float(((x @ weights.trainable[0] > 0) == y).mean())}


def client_data(round_index, client):
  return tff_inprocess.batches(data([1, CLIENTS.index(client)], 8), 4)


MODEL = tff.learning.models.FunctionalModel(
  initial_weights=((np.zeros(3, np.float32),), ()),
  predict_on_batch_fn=tf.function(lambda w, x, training: tf.linalg.matvec(x, w[0][0])),
  loss_fn=lambda logits, y, sample_weight=None: tf.reduce_mean(
    tf.nn.sigmoid_cross_entropy_with_logits(y, logits)
  ),
  input_spec=(tf.TensorSpec([None, 3]), tf.TensorSpec([None])),
)


LEARNING: dict = {}  # Processes and their aggregators, which runs of the same noise share.


def train(cell, **changes):
  if cell.noise_multiplier not in LEARNING:
    aggregator = cell.aggregator()
    process = dpftrl.build_fed_avg(
      MODEL,
      aggregator=aggregator,
      client_learning_rate=0.5,
      server_learning_rates=[cell.server_learning_rate],
      server_momentum=0.5,
    )
    LEARNING[cell.noise_multiplier] = process, aggregator
  trained = dpftrl.train(
    *LEARNING[cell.noise_multiplier],
    clients=CLIENTS,
    client_data=client_data,
    evaluate=lambda weights: accuracy(weights, 1),
    **{**cell.arguments, **changes},
  )
  return trained.summary(test=accuracy(trained.model, 2))


def test_a_tff_model_is_judged_by_its_statement(tmp_path):
  options = {**ONE, 'epsilons': [8.0], 'participation': dpftrl.MinSep(8, 4), 'report_goal': 5}
  kept, silent = linear.study(tmp_path / 'kept', train, **options).results
  assert kept.status == silent.status == 'done'
  assert 7.0 < kept.epsilon_of_run <= 8.0 and kept.test > 0.5
  # A run with more participation than its noise is for has no ε of the study; of the same process.
  early = lambda cell: train(cell, timer_rounds=1)
  study = linear.study(tmp_path / 'early', early, **options, without_noise=False)
  assert len(LEARNING) == 2
  assert [r.status for r in study.results] == ['void']
  assert 'and its noise is for 8' in study.results[0].reason and study.rows[0].mean is None


def test_a_loop_is_judged_by_its_log_whatever_it_claims(tmp_path):
  calls = []

  def run(cell):
    calls.append(cell.name)
    with cell.private_aggregator(np.zeros(2)) as aggregator:
      for t in range(cell.num_rounds):
        with aggregator.round([f'{t % 4}-{i}' for i in range(5)]) as round_:
          for i in range(5):
            round_.add(np.ones(2), device_id=f'{t % 4}-{i}')
        if len(calls) == 1 and t == 3:
          raise MemoryError('no more')
    return linear.proved(cell, 0.5, epsilon=0.1)

  options = {**ONE, 'report_goal': 5}
  with pytest.raises(MemoryError):
    linear.study(tmp_path, run, **options)
  noisy, silent = linear.study(tmp_path, run, **options).results  # It begins anew.
  assert noisy.status == silent.status == 'done' and len(calls) == 3
  assert 3.0 < noisy.epsilon_of_run <= 4.0 and silent.epsilon_of_run is None
  (log,) = tmp_path.glob('cells/identity*/run/rounds/participation.parquet')
  proved = dpftrl.replay(dpftrl.open_run(log, dpftrl.Identity()), delta=1e-5)
  assert noisy.epsilon_of_run == proved.worst_case.epsilon() and proved.num_rounds == 8


@pytest.mark.parametrize('batches', ['drawn', 'of others'])
def test_drawn_batches_are_judged_by_the_log(batches, tmp_path):
  def run(cell):
    with cell.private_aggregator(np.zeros(2)) as aggregator:
      for batch in partition.rounds(cell.participation, cell.seed):
        ids = batch.device_ids if batches == 'drawn' else np.arange(1000, 2500)
        with aggregator.round(ids) as round_:
          round_.add_batch(np.zeros((len(ids), 2)))
    return linear.proved(cell, 0.5, epsilon=None)

  scheme = sampling.CyclicPoisson(num_rounds=20, num_examples=2000, batch_size=50)
  options = {**ONE, 'epsilons': [2.0], 'participation': scheme, 'without_noise': False}
  (result,) = linear.study(tmp_path, run, **options).results
  assert result.status == ('done' if batches == 'drawn' else 'void')
  assert (result.epsilon_of_run is None) == (batches != 'drawn')


def test_the_program_of_the_page_compares_mechanisms(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  program, *_ = pages.programs('studies.md')
  shorter = program.replace('[1.0, 4.0]', '[4.0]').replace('range(5)', 'range(1)')
  shorter = shorter.replace('[0.3, 1.0]', '[1.0]').replace("=['identity', ", '=[')
  assert len(shorter) == len(program) - 22
  here = shorter.replace('delta=1e-4', 'delta=1e-4, jobs=0')
  exec(compile(here, 'studies.md', 'exec'), {'__name__': '__main__'})
  out, err = capsys.readouterr()
  assert 'choosing among runs by private data spends more' in out
  assert '2/2 | no_noise-rate1.0-seed0: test accuracy (%) ' in err
  assert (tmp_path / 'study' / 'table.txt').read_text() == out
  assert len(list(tmp_path.glob('study/cells/*/row.json'))) == 2
