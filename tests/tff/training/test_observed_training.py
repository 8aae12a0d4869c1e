"""`dpftrl.train` with observers, a budget and a scenario."""

import csv
import functools
import json

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.run import observers
from tests import made
from tests.commands import lines
from tests.tff_inprocess import small_processes

pytestmark = [pytest.mark.tff, pytest.mark.slow]

CLIENTS = [f'client{i}' for i in range(24)]
DATA = small_processes.clients()
BLT = made.BLT


def aggregator(strategy=BLT, **changes):
  return made.factory(strategy, **dict(noise_multiplier=1.0, report_goal=4) | changes)


PLAIN = aggregator(memory='state')


@functools.cache
def process_of(adds_noise):
  return small_processes.unweighted(adds_noise)


def train(folder, adds_noise, **kwargs):
  process = process_of(adds_noise)
  arguments = dict(
    num_rounds=4, clients=CLIENTS, client_data=lambda t, name: DATA[int(name[6:]) % len(DATA)]
  )
  return dpftrl.train(process, adds_noise, folder=folder / 'run', **arguments | kwargs)


def accuracy(weights):
  return {'accuracy': float(np.clip(np.abs(weights.trainable[0]).mean(), 0.0, 1.0))}


def test_what_is_watched_is_in_table_lines_plot_and_repr(tmp_path):
  class Counting(observers.Observer):
    def __init__(self):
      self.seen = []

    def begin(self, run, round_index=None):
      if round_index is None:
        self.seen.append(('begin', run.folder.exists()))

    def released(self, run, round_index, measurements):
      self.seen.append((round_index, 'epsilon' in measurements))

    def end(self, run, round_index=None, error=None):
      self.seen.append(('end', (run.folder / 'model.npz').exists(), run.trained.delta))

  said, counting = [], Counting()
  watching = [observers.TensorBoard(), counting, observers.EpsilonSoFar(2)]
  trained = train(
    tmp_path,
    PLAIN,
    timer_rounds=2,
    evaluate=accuracy,
    rounds_per_evaluation=2,
    observers=watching,
    say=said.append,
  )
  expected = [(0, False), (1, True), (2, False), (3, True)]
  assert counting.seen == [('begin', False), *expected, ('end', True, 1e-6)]
  assert len(said) == 5 and 'does not cover the lowest bits' in said[0]
  assert 'validation accuracy' in said[3] and 'ε so far' in said[3]
  history = trained.history
  assert history.rounds.tolist() == [0, 1, 2, 3]
  np.testing.assert_array_equal(np.isnan(history['epsilon']), [True, False, True, False])
  epsilon = trained.statement.worst_case.epsilon()
  assert history['epsilon'][-1] == pytest.approx(epsilon) and history['epsilon'][1] < epsilon
  folder = tmp_path / 'run'
  trained.plot()
  assert (folder / 'accuracy.png').read_bytes().startswith(b'\x89PNG')
  assert trained.plot(tmp_path / 'a.svg')._repr_png_().startswith(b'\x89PNG')
  assert (tmp_path / 'a.svg').read_bytes().startswith(b'<?xml')
  assert list((folder / 'tensorboard' / 'run').glob('events*'))
  assert dpftrl.open_run(folder / 'participation.parquet', folder / 'strategy.json').schema_in_log
  lines = repr(trained).splitlines()
  assert len(lines) <= 12 and f'Trained in {folder}' in lines[0] and 'ε = ' in lines[1]


def test_a_budget_ends_the_run(tmp_path):
  schema = dpftrl.MinSep(num_rounds=4, min_sep=2)
  adds_noise = PLAIN
  most = dpftrl.account(BLT, schema.within(3), noise_multiplier=1.0, delta=1e-6).epsilon()
  said = []
  trained = train(tmp_path, adds_noise, timer_rounds=2, max_epsilon=most, say=said.append)
  assert trained.statement.num_rounds == 3 and trained.statement.worst_case.epsilon() <= most
  assert 'allows 3 of 4 rounds' in said[0]
  with pytest.raises(ValueError, match='max_epsilon=5 needs a guarantee; the noise seed'):
    train(tmp_path / 'seeded', aggregator(noise_seed=1), max_epsilon=5.0)
  assert not (tmp_path / 'seeded').exists()


def test_an_epsilon_that_is_not_proven_has_the_same_words_everywhere(tmp_path, in_process):
  """Of real numbers it would be above 900; whole numbers prove none beyond about 600."""
  said = []
  watching = dict(observers=[observers.EpsilonSoFar(2)], say=said.append)
  silent = aggregator(noise_multiplier=0.03, memory='engine')
  trained = train(tmp_path, silent, timer_rounds=2, evaluate=accuracy, **watching)
  folder, why = tmp_path / 'run', 'there is too little noise for any ε at δ = 1e-06'
  stated = json.loads((folder / 'privacy.json').read_text())
  assert stated['worst_case']['epsilon'] is stated['declared']['epsilon'] is None
  assert f'NOTHING IS GUARANTEED: {why}' in stated['assumptions']
  assert 'ε so far unbounded' in said[-1]
  with open(folder / 'metrics.csv') as table:
    assert [row['epsilon'] for row in csv.DictReader(table)] == ['', 'unbounded', '', 'unbounded']
  summary = json.loads(json.dumps(trained.summary(), allow_nan=False))
  facts = [summary[name] for name in ('epsilon', 'void_reason', 'diverged_since_round')]
  assert facts == [None, why, None] and 'unbounded' in repr(trained.statement)
  assert why in repr(trained) and why in (folder / 'privacy.html').read_text()
  paths = [f'--log={folder}/participation.parquet', f'--strategy={folder}/strategy.json']
  done = lines.run(['replay', *paths, '--noise_multiplier=0.03', '--delta=1e-6'])
  assert done.returncode == 4 and why in done.stderr and 'unbounded' in done.stdout


def test_scenarios_that_will_not_do_are_refused(tmp_path):
  scenario = dpftrl.Scenario(population=20, report_goal=4, timer_hours=0.2)
  for changes, words in (
    (dict(max_epsilon=9.0), 'max_epsilon=9 needs schema'),
    (dict(timer_rounds=2), 'timer_rounds and scenario exclude each other'),
    (dict(clients=CLIENTS[:10]), 'population=20, and there are 10 clients'),
    (dict(observers=dpftrl.observers.ProgressLine()), 'observers must be a Sequence'),
  ):
    with pytest.raises(ValueError, match=words):
      train(tmp_path, PLAIN, scenario=scenario, **changes)
  assert not list(tmp_path.iterdir())


def test_no_metric_ends_a_run_whose_rounds_were_not_declared(tmp_path):
  """Timers in hours declare none, and the worst case of the rounds so far covers no such end."""
  scenario = dpftrl.Scenario(population=20, report_goal=4, timer_hours=0.2)
  metered = aggregator(memory='state', metrics={'loss': 1.0})
  for adds_noise, changes in ((metered, dict(scenario=scenario)), (PLAIN, {})):
    with pytest.raises(ValueError, match='stop_when needs metrics of the aggregator, and timers'):
      dpftrl.train(
        None, adds_noise, folder=tmp_path / 'run', num_rounds=4, clients=CLIENTS,
        client_data=lambda t, name: DATA[0], stop_when=lambda history: True, **changes,
      )  # fmt: skip
