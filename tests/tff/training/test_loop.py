"""The protocol of a round, on a process small enough to see every number."""

import dataclasses
import shutil

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import ledger_format, ledgers
from fl_dpftrl.run.observers import observer
from fl_dpftrl.support.files import mark
from fl_dpftrl.tff.training import loop
from tests import oracle
from tests.tff.training import small_runs
from tests.tff.training.small_runs import CLAIM, NUM_ROUNDS, Killed, Process, kill_at, log_rows, run
from tests.tff.training.steps import STEPS

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


@pytest.mark.parametrize('step, lost', [('cohort logged', 1), ('computed', 1), ('stored', 0)])
def test_killed_and_resumed_loses_at_most_the_round(tmp_path, undisturbed, step, lost):
  with pytest.raises(Killed):
    run(tmp_path, on_step=kill_at(step, 2))
  last, _, warnings = run(tmp_path)
  assert last.burnt == (2,) * lost and len(warnings) == lost
  assert last.state.aggregator.tolist() == [NUM_ROUNDS, 1234]  # Past the row of a lost round, too.
  assert log_rows(tmp_path) == undisturbed[2]
  assert lost or last.state.global_model_weights == undisturbed[0].state.global_model_weights


def test_a_damaged_result_is_lost(tmp_path):
  with pytest.raises(Killed):
    run(tmp_path, on_step=kill_at('published', 1))
  path = tmp_path / loop.CHECKPOINTS_NAME / 'round-000000002.npz'
  path.write_bytes(path.read_bytes()[:-30])
  last, _, warnings = run(tmp_path)
  assert last.burnt == (1,)
  assert any(str(path) in line for line in warnings)


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


def test_a_folder_that_was_put_back_but_for_its_table_is_refused(tmp_path):
  """The table says how many rounds were published."""
  folder, copy = tmp_path / 'run', tmp_path / 'copy'
  with pytest.raises(Killed):
    run(folder, on_step=kill_at('published', 3))
  shutil.copytree(folder, copy)
  with pytest.raises(Killed):
    run(folder, on_step=kill_at('published', 4))
  shutil.rmtree(folder)
  shutil.copytree(copy, folder)
  with pytest.raises(mark.LostStateError, match='has 4 rounds, but 5 were trained'):
    run(folder, published=5)
