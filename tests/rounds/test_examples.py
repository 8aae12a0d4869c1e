"""The programs of examples/ for any loop, small: they run, go on, and their logs prove ε.

Those of libraries that are not installed here are run by `make test-adapters`.
"""

import importlib.util
import pathlib

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from tests import pages

EXAMPLES = pathlib.Path(__file__).parents[2] / 'examples'


def program(name, monkeypatch, **changes):
  spec = importlib.util.spec_from_file_location(name, EXAMPLES / f'{name}.py')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  for key, value in changes.items():
    monkeypatch.setattr(module, key, value)
  return module


def opened(folder):
  return dpftrl.open_run(folder / 'participation.parquet', folder / 'strategy.json')


def proven(folder):
  statement = dpftrl.replay(opened(folder), deltas=1e-6)
  assert statement.arithmetic.kind == 'covered' and statement.declared.holds
  return statement


def test_the_programs_of_the_page_run(monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  names = {}
  for text in pages.programs('any-loop.md'):
    exec(compile(text, 'any-loop.md', 'exec'), names)
  assert names['aggregator'].next_round == 60 and names['noise'].shape == (20,)
  assert dpftrl.verify('whole-run-bundle', digest=names['digest']).passed


# name: library, the function that is interrupted, and its calls before that.
PROGRAMS = {
  'any_loop': (None, 'update_of', 244),
  'pytorch_loop': ('torch', 'update_of', 164),
  'jax_optax': ('optax', 'update_of', 164),
  'pfl_mechanism': ('pfl', 'dataset_of', 264),
}


@pytest.mark.parametrize('name', PROGRAMS)
def test_federated_averaging_lowers_the_loss_and_goes_on(name, monkeypatch, tmp_path, capsys):
  library, function, num_calls = PROGRAMS[name]
  if library is not None:
    pytest.importorskip(library)
  schema = dpftrl.MinSep(num_rounds=30, min_sep=10)
  module = program(name, monkeypatch, ROUNDS=30, SCHEMA=schema)
  folder = tmp_path / 'run'
  call, calls = getattr(module, function), []

  def interrupted(*arguments):
    calls.append(1)
    if len(calls) == num_calls + 1:
      raise InterruptedError
    return call(*arguments)

  monkeypatch.setattr(module, function, interrupted)
  with pytest.raises(InterruptedError):
    module.main(folder)
  assert len(list(folder.glob('model.*'))) == 1
  module.main(folder)
  statement = proven(folder)
  assert statement.num_rounds == 30 and statement.min_sep >= 10
  lines = capsys.readouterr().out.splitlines()
  word = 'model ' if name == 'any_loop' else 'accuracy '
  measure = lambda line: float(line.split(word)[1].split()[0].rstrip(','))
  first, last = measure(lines[0]), measure(lines[-1])
  assert last < 0.7 * first if name == 'any_loop' else last > 55.0
  assert f'ε {statement.worst_case.epsilon:.2f}' in lines[-1]


@pytest.mark.slow
def test_central_training_has_the_amplified_guarantee(monkeypatch, tmp_path, capsys):
  pytest.importorskip('jax')
  module = program(
    'central', monkeypatch, EXAMPLES=4000, BATCH=100, ROUNDS=50, BANDS=4, EPSILON=8.0
  )
  stop, mean_of = [], dpftrl.PrivateAggregator._mean

  def interrupted(aggregator, t, like):
    if t == 20 and not stop:
      stop.append(t)
      raise InterruptedError
    return mean_of(aggregator, t, like)

  monkeypatch.setattr(dpftrl.PrivateAggregator, '_mean', interrupted)
  with pytest.raises(InterruptedError):
    module.main(tmp_path / 'run')
  module.main(tmp_path / 'run')
  last = capsys.readouterr().out.splitlines()[-1]
  assert float(last.split('accuracy ')[1].split()[0]) > 30.0
  epsilon = float(last.split('ε ')[1].split()[0])
  assert 7.5 < epsilon <= 8.0
  run = opened(tmp_path / 'run')
  worst = dpftrl.replay(run, deltas=1e-5).worst_case.epsilon
  assert epsilon < 0.7 * worst


def test_flower_gets_one_reply_of_the_private_mean(monkeypatch, tmp_path, capsys):
  pytest.importorskip('flwr')
  from flwr.supercore import task_identity

  for name in ('task_id', 'run_id', 'node_id'):  # As Flower's own programs have them.
    monkeypatch.setattr(task_identity.TaskIdentity, f'_{name}', 1)
  module = program('flower_strategy', monkeypatch)
  arrays = module.ArrayRecord({'weights': module.Array(np.zeros(module.SIZE, np.float32))})
  given = []

  class Wrapped(module.FedAvgM):
    def aggregate_train(self, server_round, replies):
      given.append(replies)
      return super().aggregate_train(server_round, replies)

  with dpftrl.PrivateAggregator(
    dpftrl.BLT((0.9, 0.5), (0.3, 0.2)),
    template={'weights': np.zeros(module.SIZE, np.float32)},
    noise_multiplier=0.3,
    clip_norm=0.5,
    report_goal=3,
    folder=tmp_path / 'run',
    schema=dpftrl.MinSep(num_rounds=4, min_sep=2),
    noise_seed=2,
  ) as aggregator:
    strategy = module.PrivateStrategy(Wrapped(fraction_train=1.0), aggregator, 4)
    grid = Grid(module, num_nodes=9)
    strategy.start(grid, arrays, num_rounds=2)
    # Flower started anew: all nodes have other ids, and the devices are the same.
    grid = Grid(module, num_nodes=9, first_id=70)
    strategy = module.PrivateStrategy(Wrapped(fraction_train=1.0), aggregator, 4)
    strategy.start(grid, arrays, num_rounds=1)
    assert aggregator.next_round == 3 and [len(replies) for replies in given] == [1, 1, 1]
    # Two of four do not answer: too few, and the round is burnt.
    grid.silent = 2
    strategy.start(grid, arrays, num_rounds=1)
    assert len(given) == 3 and aggregator.next_round == 4
    devices = {str(device) for t in range(4) for device in aggregator._record._log.cohort(t)}
    assert devices <= {str(device) for device in range(9)}
  assert 'failed: round 3 has 2 updates, and report_goal is 3' in capsys.readouterr().out
  run = opened(tmp_path / 'run')
  assert dpftrl.replay(run, deltas=1e-6).min_sep >= 2


class Grid:
  """Nodes in this process, which train by the example's own functions."""

  def __init__(self, module, num_nodes, first_id=30):
    self._module, self._first_id, self.silent = module, first_id, 0
    self._nodes = range(first_id, first_id + num_nodes)

  def get_node_ids(self):
    return list(self._nodes)

  def send_and_receive(self, messages, *, timeout=None):
    replies = []
    for message in messages:
      device = message.metadata.dst_node_id - self._first_id
      context = type('Context', (), {'node_config': {'partition-id': device}})
      is_query = message.metadata.message_type == self._module.MessageType.QUERY
      answer = self._module.query if is_query else self._module.train
      replies.append(answer(message, context))
      is_silent = not is_query and len(replies) <= self.silent
      replies[-1] = None if is_silent else replies[-1]
    return [reply for reply in replies if reply is not None]
