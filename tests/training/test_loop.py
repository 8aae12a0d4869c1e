"""The protocol of a round, on a process small enough to see every number."""

import dataclasses

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.files import mark
from fl_dpftrl.logs import ledger_format, ledgers
from fl_dpftrl.observers import observer
from fl_dpftrl.training import loop
from tests import oracle
from tests.training import small_runs
from tests.training.small_runs import (
  CLAIM,
  NUM_ROUNDS,
  Killed,
  Process,
  kill_at,
  log_rows,
  noise,
  run,
)
from tests.training.steps import STEPS

pytestmark = pytest.mark.tff


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory):
  folder = tmp_path_factory.mktemp('undisturbed')
  last, published, warnings = run(folder)
  assert not warnings
  return last, published, log_rows(folder)


def test_trains_every_round_once(undisturbed):
  last, published, log = undisturbed
  assert last.num_rounds == NUM_ROUNDS and not last.burnt
  assert sorted(published) == list(range(1, NUM_ROUNDS + 1))
  assert [len(cohort) for cohort in log] == [3] * NUM_ROUNDS
  assert last.state.aggregator.tolist() == [NUM_ROUNDS, 1234]


def test_a_finished_run_is_published_again_and_not_taken_for_a_shorter_one(tmp_path):
  run(tmp_path)
  with pytest.raises(mark.LostStateError, match='has 6 rounds, more than num_rounds=5; give'):
    run(tmp_path, num_rounds=NUM_ROUNDS - 1)
  process = Process()
  last, published, _ = run(tmp_path, process)
  assert not process.sums
  assert list(published) == [NUM_ROUNDS] and last.num_rounds == NUM_ROUNDS


def test_steps_come_in_the_order_of_the_protocol(tmp_path):
  steps = []
  run(tmp_path, on_step=lambda step, t: steps.append((t, step)))
  assert steps == [(t, step) for t in range(NUM_ROUNDS) for step in STEPS]


def test_measurements_reach_all_observers(tmp_path):
  class Seeing(observer.Observer):
    def released(self, run, round_index, measurements):
      assert measurements['doubled'] == 2 * round_index

  class Doubled(observer.Observer):
    measures = True

    def released(self, run, round_index, measurements):
      return {'doubled': 2 * round_index}

  _, published, _ = run(tmp_path, observers=[Seeing(), Doubled()])
  assert [c.measurements['doubled'] for c in published.values()] == [0, 2, 4, 6, 8, 10]


def test_a_cohort_is_in_the_log_before_its_data_are_used(tmp_path):
  class Reading(Process):
    def next(self, state, data):
      assert len(log_rows(tmp_path)) == state.aggregator[0] + 1
      return super().next(state, data)

  run(tmp_path, Reading())


def test_a_result_is_used_only_after_it_is_stored(tmp_path):
  folder = tmp_path / loop.CHECKPOINTS_NAME

  def on_step(step, t):
    stored = (folder / f'round-{t + 1:09d}.npz').exists()
    assert stored == (step in ('stored', 'published'))

  run(tmp_path, on_step=on_step)


@pytest.mark.parametrize('round_index', [0, 2, NUM_ROUNDS - 1])
@pytest.mark.parametrize('step', STEPS)
def test_killed_and_resumed_loses_at_most_the_round(tmp_path, undisturbed, step, round_index):
  process = Process()
  with pytest.raises(Killed):
    run(tmp_path, process, on_step=kill_at(step, round_index))
  last, _, warnings = run(tmp_path, process)
  expected, _, expected_log = undisturbed
  lost = () if step in ('stored', 'published') else (round_index,)
  assert last.burnt == lost and len(warnings) == len(lost)
  assert last.num_rounds == NUM_ROUNDS and log_rows(tmp_path) == expected_log
  np.testing.assert_array_equal(last.state.aggregator, expected.state.aggregator)
  if not lost:
    np.testing.assert_array_equal(
      last.state.global_model_weights, expected.state.global_model_weights
    )
    assert last.measurements == expected.measurements
  # Nothing is computed twice, and a row of noise is only ever added to one sum.
  rows = [row for row, _ in process.sums]
  assert len(set(rows)) == len(rows) and rows == sorted(rows)


def test_a_lost_result_that_was_released_burns_its_row(tmp_path, undisturbed):
  process = Process()
  with pytest.raises(Killed):
    run(tmp_path, process, on_step=kill_at('published', 3))
  (tmp_path / loop.CHECKPOINTS_NAME / 'round-000000004.npz').unlink()
  last, published, warnings = run(tmp_path, process)
  assert last.burnt == (3,)
  assert len(warnings) == 1 and 'round 3' in warnings[0]
  # The round counts and its cohort stays; timers ran as if it had succeeded.
  assert last.num_rounds == NUM_ROUNDS
  assert log_rows(tmp_path) == undisturbed[2]
  # The very z of the row is skipped, so later rows are those of the seed.
  assert last.state.aggregator.tolist() == [NUM_ROUNDS, 1234]
  assert 4 not in published
  # The model is that of round 2, with rounds 4 and 5 added.
  rows = [row for row, _ in process.sums]
  assert rows == [0, 1, 2, 3, 4, 5] and len(set(process.sums)) == NUM_ROUNDS
  model = 0.0
  for row, total in process.sums:
    if row != 3:
      model += total + noise(np.array([row, 1234]))
  np.testing.assert_allclose(last.state.global_model_weights, model)


def test_all_lost_results_burn_their_rows_also_one_under_way(tmp_path):
  process = Process()
  with pytest.raises(Killed):
    run(tmp_path, process, on_step=kill_at('computed', 4))
  for name in ('round-000000004.npz', 'round-000000003.npz'):
    (tmp_path / loop.CHECKPOINTS_NAME / name).unlink()
  last, _, warnings = run(tmp_path, process)
  # Round 4 had a model that is gone: its row must not meet another sum.
  assert last.burnt == (2, 3, 4) and len(warnings) == 3
  assert len({row for row, _ in process.sums}) == len(set(process.sums))


def test_a_damaged_result_is_lost(tmp_path):
  with pytest.raises(Killed):
    run(tmp_path, on_step=kill_at('published', 1))
  path = tmp_path / loop.CHECKPOINTS_NAME / 'round-000000002.npz'
  path.write_bytes(path.read_bytes()[:-30])
  last, _, warnings = run(tmp_path)
  assert last.burnt == (1,)
  assert any(str(path) in line for line in warnings)


def test_a_round_that_fails_is_used_up(tmp_path):
  class Failing(Process):
    def next(self, state, data):
      if state.aggregator[0] == 3:
        raise OSError('connection lost')
      return super().next(state, data)

  with pytest.raises(loop.RoundFailedError, match='round 3 .*connection lost'):
    run(tmp_path, Failing())
  last, _, warnings = run(tmp_path)
  assert last.burnt == (3,) and len(warnings) == 1
  assert last.state.aggregator.tolist() == [NUM_ROUNDS, 1234]


def test_two_processes_cannot_train_the_same_run(tmp_path):
  def on_step(step, t):
    del step, t
    with pytest.raises(ValueError, match='held by another process'):
      run(tmp_path)

  run(tmp_path, on_step=on_step)
  run(tmp_path)  # The lock ends with the run.


def test_a_log_without_its_checkpoints_cannot_go_on(tmp_path):
  run(tmp_path)
  for path in (tmp_path / loop.CHECKPOINTS_NAME).glob('round-*'):
    path.unlink()
  with pytest.raises(mark.LostStateError, match='no state of them is there'):
    run(tmp_path)


def test_checkpoints_without_their_log_cannot_go_on(tmp_path):
  run(tmp_path)
  (tmp_path / ledger_format.NAME).unlink()
  ledger_format.path_of(tmp_path / ledger_format.NAME).unlink()
  with pytest.raises(ValueError, match='as its participation.ledger is gone'):
    run(tmp_path)
  ledger_format.mark_of(tmp_path / ledger_format.NAME).unlink()
  with pytest.raises(mark.LostStateError, match='has 0 rounds, but 6 were trained'):
    run(tmp_path)


def test_a_log_of_other_cohorts_is_refused(tmp_path):
  with pytest.raises(Killed):
    run(tmp_path, on_step=kill_at('published', 1))
  with ledgers.LogWriter(tmp_path / ledger_format.NAME, CLAIM) as log:
    log.append(2, ['device-0'], 1767300000)
  with pytest.raises(mark.LostStateError, match='other devices'):
    run(tmp_path)


def test_a_resumed_run_admits_as_before(tmp_path, monkeypatch):
  """Its timer lets devices back after 2 rounds, where 3 are declared."""
  claim = dataclasses.replace(CLAIM, participation=dpftrl.MinSep(NUM_ROUNDS, min_sep=3))
  monkeypatch.setattr(small_runs, 'CLAIM', claim)
  with pytest.raises(Killed):
    run(tmp_path, on_step=kill_at('published', 3))
  last, _, _ = run(tmp_path)
  cohorts = log_rows(tmp_path)
  rounds = [t for t, cohort in enumerate(cohorts) for _ in cohort]
  assert last.num_rounds == NUM_ROUNDS and 0 < len(rounds) < 3 * NUM_ROUNDS
  assert (
    oracle.schema_of(rounds, [i for cohort in cohorts for i in cohort], NUM_ROUNDS).min_sep == 3
  )
