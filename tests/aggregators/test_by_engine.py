"""The aggregator whose noise an engine of this process makes."""

import collections
import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.aggregators import by_engine, factory
from fl_dpftrl.families import blt
from fl_dpftrl.noise import ahead, normals, rows, units
from fl_dpftrl.runtime import graphs
from tests import every_family

pytestmark = pytest.mark.tff

SIZE = 30_003
VALUE_TYPE = tff.to_type(
  collections.OrderedDict(
    w=tff.TensorType(np.float32, [SIZE // 100, 100]), b=tff.TensorType(np.float32, [3])
  )
)
BLT = blt.BLT((0.9, 0.5), (0.3, 0.2))
ZEROS = [
  collections.OrderedDict(w=np.zeros([SIZE // 100, 100], np.float32), b=np.zeros(3, np.float32))
]


def make(strategy=BLT, **kwargs):
  kwargs = dict(noise_multiplier=0.5, clip_norm=3.0, report_goal=4, noise_seed=5) | kwargs
  return factory.CorrelatedNoiseFactory(strategy, **dict(memory='engine') | kwargs)


def flat(values):
  return np.concatenate([np.ravel(part) for part in tf.nest.flatten(values)])


def rounds(process, state, num_rounds, updates=ZEROS):
  results = []
  for _ in range(num_rounds):
    output = process.next(state, updates)
    state = output.state
    results.append(flat(output.result))
  return np.array(results), state


def expected(strategy, num_rounds, total=0):
  """What rounds release, computed in NumPy from the rows of a `RowMaker` and a sum."""
  maker = rows.RowMaker(strategy, size=SIZE, num_rounds=9, seed=normals.fixed_seed(5))
  made = np.empty((num_rounds, SIZE), np.int64)
  for row in made:
    maker.make(row)
  unit = units.Unit.of(0.5)
  return (unit.size * 3.0 / 4 * ((total << unit.shift) + made)).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize('family', ['blt', 'banded', 'tree_online'])
def test_releases_the_whole_numbers_of_the_engine_and_of_updates(family):
  """Bit for bit: rows, sum, and the conversion to float32 that comes last."""
  strategy = every_family.example(family, 9)
  aggregator, generator = make(strategy), np.random.default_rng(1)
  updates = [
    collections.OrderedDict(
      w=generator.normal(0, scale, [SIZE // 100, 100]).astype(np.float32),
      b=np.array([scale, np.nan if scale > 1 else 0.0, -scale], np.float32),
    )
    for scale in (1e-3, 0.1, 9.0)
  ]
  total = sum(flat(aggregator.bound(update).update) for update in updates)
  process = aggregator.create(VALUE_TYPE)
  found, state = rounds(process, process.initialize(), 4, updates)
  np.testing.assert_array_equal(found, expected(strategy, 4, total))
  assert state.noise.row == 4
  norm = np.linalg.norm(strategy.noising_matrix(4)[3])
  assert state.noise.row_stddev == pytest.approx(norm)


@pytest.mark.slow
def test_a_stored_state_goes_on_with_the_same_noise(tmp_path):
  whole = expected(BLT, 8)
  process = make(noise_folder=tmp_path).create(VALUE_TYPE)
  first, state = rounds(process, process.initialize(), 3)
  again = make(noise_folder=tmp_path).create(VALUE_TYPE)
  rest, _ = rounds(again, state, 5)
  np.testing.assert_array_equal(np.concatenate([first, rest]), whole)
  # A round that is repeated has its own row again, and so has one from before.
  np.testing.assert_array_equal(rounds(again, state, 1)[0], whole[3:4])
  np.testing.assert_array_equal(rounds(process, state, 2)[0], whole[3:5])


@pytest.mark.slow
def test_resumes_from_a_snapshot(tmp_path, monkeypatch):
  monkeypatch.setattr(by_engine, '_SNAPSHOT_ROWS', 2)
  process = make(noise_folder=tmp_path).create(VALUE_TYPE)
  _, state = rounds(process, process.initialize(), 5)
  assert tmp_path.stat().st_mode & 0o777 == 0o700
  made = []
  make_row = rows.RowMaker.make
  monkeypatch.setattr(
    rows.RowMaker, 'make', lambda self, out: made.append(self.row) or make_row(self, out)
  )
  again = make(noise_folder=tmp_path).create(VALUE_TYPE)
  found, _ = rounds(again, state, 1)
  assert min(made) == 4
  np.testing.assert_array_equal(found, expected(BLT, 6)[5:])


@pytest.mark.slow
def test_a_burnt_row_is_not_released():
  aggregator = make()
  process, skip = aggregator.create(VALUE_TYPE), aggregator.skip_row(VALUE_TYPE)
  found, _ = rounds(process, skip(skip(process.initialize())), 2)
  np.testing.assert_array_equal(found, expected(BLT, 4)[2:])


@pytest.mark.slow
@pytest.mark.parametrize('memory', ['engine', 'state'])
def test_secret_seeds_differ_and_runs_do_not_disturb_each_other(memory):
  process = make(noise_seed=None, memory=memory).create(VALUE_TYPE)
  one, other = process.initialize(), process.initialize()
  assert not set(one.noise.seed.tolist()) & set(other.noise.seed.tolist())
  first, after_one = rounds(process, one, 2)
  second, _ = rounds(process, other, 2)
  third, _ = rounds(process, after_one, 1)
  assert abs(np.corrcoef(first[0], second[0])[0, 1]) < 0.05
  np.testing.assert_array_equal(rounds(process, one, 3)[0], np.concatenate([first, third]))


@pytest.mark.slow
@pytest.mark.parametrize('memory', ['engine', 'state'])
def test_the_last_round_is_the_strategys(memory):
  strategy = every_family.example('banded', 3)
  process = make(strategy, memory=memory).create(VALUE_TYPE)
  _, state = rounds(process, process.initialize(), 3)
  message = 'a strategy for 3 rounds has no noise for another round'
  with pytest.raises(tf.errors.InvalidArgumentError, match=message) as error:
    process.next(state, ZEROS)
  assert '\n' not in str(error.value)


@pytest.mark.slow
def test_states_of_a_graph_and_of_an_engine_do_not_continue_each_other():
  """Without buffers, their seeds tell them apart."""
  strategy = every_family.example('identity', 9)
  processes = [make(strategy, memory=kind).create(VALUE_TYPE) for kind in ('state', 'engine')]
  states = [process.initialize() for process in processes]
  for process, state in zip(processes, reversed(states)):
    with pytest.raises(TypeError, match=r'state\.noise\.seed'):
      process.next(state, ZEROS)


@pytest.mark.slow
def test_a_machine_that_makes_other_rows_does_not_go_on():
  process = make().create(VALUE_TYPE)
  _, state = rounds(process, process.initialize(), 2)
  other = state._replace(noise=state.noise._replace(trail=state.noise.trail + 1))
  with pytest.raises(
    tf.errors.InvalidArgumentError, match='this machine makes other rows of noise'
  ):
    process.next(other, ZEROS)


@pytest.mark.slow
def test_memory_goes_with_the_compiled_computation(monkeypatch):
  sources = weakref.WeakSet()
  init = ahead.LocalSource.__init__
  monkeypatch.setattr(
    ahead.LocalSource, '__init__', lambda self, *args: (sources.add(self), init(self, *args))[1]
  )
  process = make().create(VALUE_TYPE)
  _, state = rounds(process, process.initialize(), 3)
  assert len(sources) == 1
  callback = [c for c in graphs._callbacks.values() if isinstance(c, by_engine._Rows)][-1]
  callback.resources()._ahead.wait()
  del process
  gc.collect()
  assert not sources
  # What was composed of it can still be run.
  *parts, _, _ = callback(state.noise.seed, np.int64(1), np.int64(0))
  row = 2.0**-34 * 0.5 * 3.0 / 4 * np.concatenate(parts)
  np.testing.assert_array_equal(row.astype(np.float32), expected(BLT, 2)[1])


@pytest.mark.slow
@pytest.mark.parametrize('memory', ['engine', 'state'])
def test_without_noise_the_bounded_sum_is_released_alone(memory):
  aggregator = make(noise_multiplier=0.0, memory=memory)
  update = collections.OrderedDict(w=ZEROS[0]['w'], b=np.array([1.0, -0.25, 8.0], np.float32))
  process = aggregator.create(VALUE_TYPE)
  output = process.next(process.initialize(), [update] * 3)
  bounded = flat(aggregator.bound(update).update)
  np.testing.assert_array_equal(
    flat(output.result), (2.0**-46 * 3.0 / 4 * (3 * bounded)).astype(np.float32)
  )
  assert output.measurements['noise_stddev'] == 0.0 and output.state.noise.row == 1


def test_refuses_machines_for_noise_in_the_state():
  same = dict(noise_multiplier=0.5, clip_norm=3.0, report_goal=4)
  with pytest.raises(ValueError, match="noise_machines is for memory='engine'"):
    factory.CorrelatedNoiseFactory(BLT, **same, noise_machines=2)
