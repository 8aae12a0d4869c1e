"""The aggregator whose noise an engine of this process makes."""

import numpy as np
import pytest
import tensorflow as tf

from fl_dpftrl.claims import lattice_units
from fl_dpftrl.noise import integer_rows, normals
from fl_dpftrl.tff.aggregators import by_engine
from tests import every_family
from tests.tff.aggregators import small_factories
from tests.tff.aggregators.small_factories import BLT, SIZE, VALUE_TYPE, flat, update

pytestmark = [pytest.mark.tff, pytest.mark.slow]


def make(strategy=BLT, **kwargs):
  return small_factories.make(strategy, **dict(memory='engine', noise_seed=5) | kwargs)


def rounds(process, num_rounds, state=None, updates=None):
  """Returns what rounds release, by default of updates that are 0, and the state after them."""
  outputs = small_factories.run(process, updates or [update()], num_rounds, state)
  return np.array([flat(output.result) for output in outputs]), outputs[-1].state


def expected(strategy, num_rounds, total=0):
  """What rounds release, computed in NumPy from the rows of a `RowMaker` and a sum."""
  maker = integer_rows.RowMaker(strategy, size=SIZE, num_rounds=9, seed=normals.fixed_seed(5))
  noise = np.empty((num_rounds, SIZE), np.int64)
  for row in noise:
    maker.make(row)
  unit = lattice_units.Unit.of(0.5)
  return (unit.size * 3.0 / 4 * ((total << unit.shift) + noise)).astype(np.float32)


@pytest.mark.parametrize('family', ['blt', 'tree_online'])
def test_releases_the_whole_numbers_of_the_engine_and_of_updates(family):
  """Bit for bit: rows, sum, and the conversion to float32 that comes last."""
  strategy = every_family.example(family, 9)
  aggregator, generator = make(strategy), np.random.default_rng(1)
  updates = []
  for scale in (1e-3, 0.1, 9.0):
    drawn = update(scale, np.nan if scale > 1 else 0.0, -scale)
    drawn['w'] = generator.normal(0, scale, drawn['w'].shape).astype(np.float32)
    updates.append(drawn)
  total = sum(flat(aggregator.bound(each).update) for each in updates)
  found, state = rounds(aggregator.create(VALUE_TYPE), 4, updates=updates)
  np.testing.assert_array_equal(found, expected(strategy, 4, total))
  assert state.noise.row == 4
  norm = np.linalg.norm(strategy.noising_matrix(4)[3])
  assert state.noise.row_stddev == pytest.approx(norm)


def test_a_stored_state_goes_on_with_the_same_noise(tmp_path):
  whole = expected(BLT, 8)
  process = make(noise_folder=tmp_path).create(VALUE_TYPE)
  first, state = rounds(process, 3)
  again = make(noise_folder=tmp_path).create(VALUE_TYPE)
  rest, _ = rounds(again, 5, state)
  np.testing.assert_array_equal(np.concatenate([first, rest]), whole)
  # A round that is repeated has its own row again, and so has one from before.
  np.testing.assert_array_equal(rounds(again, 1, state)[0], whole[3:4])
  np.testing.assert_array_equal(rounds(process, 2, state)[0], whole[3:5])


def test_resumes_from_a_snapshot(tmp_path, monkeypatch):
  monkeypatch.setattr(by_engine, '_SNAPSHOT_ROWS', 2)
  process = make(noise_folder=tmp_path).create(VALUE_TYPE)
  _, state = rounds(process, 5)
  assert tmp_path.stat().st_mode & 0o777 == 0o700
  computed, make_row = [], integer_rows.RowMaker.make
  monkeypatch.setattr(
    integer_rows.RowMaker,
    'make',
    lambda self, out: computed.append(self.row) or make_row(self, out),
  )
  again = make(noise_folder=tmp_path).create(VALUE_TYPE)
  found, _ = rounds(again, 1, state)
  assert min(computed) == 4
  np.testing.assert_array_equal(found, expected(BLT, 6)[5:])


def test_secret_seeds_differ_and_runs_do_not_disturb_each_other():
  process = make(noise_seed=None).create(VALUE_TYPE)
  one, other = process.initialize(), process.initialize()
  assert not set(one.noise.seed.tolist()) & set(other.noise.seed.tolist())
  first, after_one = rounds(process, 2, one)
  second, _ = rounds(process, 2, other)
  third, _ = rounds(process, 1, after_one)
  assert abs(np.corrcoef(first[0], second[0])[0, 1]) < 0.05
  np.testing.assert_array_equal(rounds(process, 3, one)[0], np.concatenate([first, third]))


def test_the_last_round_is_the_strategys():
  process = make(every_family.example('banded', 3)).create(VALUE_TYPE)
  _, state = rounds(process, 3)
  message = 'a strategy for 3 rounds has no noise for another round'
  with pytest.raises(tf.errors.InvalidArgumentError, match=message) as error:
    process.next(state, [update()])
  assert '\n' not in str(error.value)


def test_states_of_a_graph_and_of_an_engine_do_not_continue_each_other():
  """Without buffers, their seeds tell them apart."""
  strategy = every_family.example('identity', 9)
  processes = [make(strategy, memory=kind).create(VALUE_TYPE) for kind in ('state', 'engine')]
  states = [process.initialize() for process in processes]
  for process, state in zip(processes, reversed(states)):
    with pytest.raises(TypeError, match=r'state\.noise\.seed'):
      process.next(state, [update()])


def test_a_machine_that_makes_other_rows_does_not_go_on():
  process = make().create(VALUE_TYPE)
  _, state = rounds(process, 2)
  other = state._replace(noise=state.noise._replace(trail=state.noise.trail + 1))
  with pytest.raises(
    tf.errors.InvalidArgumentError, match='this machine makes other rows of noise'
  ):
    process.next(other, [update()])


def test_without_noise_the_bounded_sum_is_released_alone():
  aggregator = make(noise_multiplier=0.0)
  updates = [update(1.0, -0.25, 8.0)] * 3
  (output,) = small_factories.run(aggregator.create(VALUE_TYPE), updates, 1)
  bounded = flat(aggregator.bound(updates[0]).update)
  np.testing.assert_array_equal(
    flat(output.result), (2.0**-46 * 3.0 / 4 * (3 * bounded)).astype(np.float32)
  )
  assert output.measurements['noise_stddev'] == 0.0 and output.state.noise.row == 1


def test_a_burnt_row_is_not_released():
  aggregator = make()
  process, skip = aggregator.create(VALUE_TYPE), aggregator.skip_row(VALUE_TYPE)
  found, _ = rounds(process, 2, skip(skip(process.initialize())))
  np.testing.assert_array_equal(found, expected(BLT, 4)[2:])
