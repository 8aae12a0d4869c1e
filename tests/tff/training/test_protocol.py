"""The trainer in the state machine of tests/run/test_protocol.py."""

import secrets
import threading
import types

import numpy as np
import pytest

from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.run.observers import observer
from fl_dpftrl.support import metrics
from fl_dpftrl.tff.training import loop, report
from tests import made
from tests.run import test_protocol
from tests.tff.training import small_runs

pytestmark = pytest.mark.tff


class Process(small_runs.Process):
  """Adds noise of a secret seed to a model, and measures it."""

  is_failing = False

  def initialize(self):
    return small_runs.State(np.zeros(1), np.array([0, secrets.randbits(62)]))

  def next(self, state, data):
    if self.is_failing:
      raise OSError('connection lost')
    row = small_runs.noise(state.aggregator)
    model, aggregator = state.global_model_weights + row, self.skip_row(state.aggregator)
    return types.SimpleNamespace(state=small_runs.State(model, aggregator), metrics={'row': row})


class Released(observer.Observer):
  """Tells a trainer what was released."""

  def __init__(self, trainer):
    self._trainer = trainer

  def released(self, run, round_index, measurements):
    self._trainer.note(round_index, measurements)


class Trainer:
  """The trainer's loop, in a thread that waits where the machine decides what comes next."""

  noise, refuses_old_noise, goes_on = loop.CHECKPOINTS_NAME, False, False
  in_use = 'lock is held by another process'

  def __init__(self, machine, folder, noise_multiplier=test_protocol.NOISE_MULTIPLIER):
    self._machine, self._folder = machine, folder
    self._claim = made.claim(
      test_protocol.STRATEGY, noise_multiplier=noise_multiplier, participation=test_protocol.SCHEMA
    )
    self._open()

  def _open(self):
    self._process, self._row = Process(), None
    self._order = self._error = None
    self._is_over = False
    self._told, self._paused = threading.Semaphore(0), threading.Semaphore(0)
    self._thread = threading.Thread(target=self._train, daemon=True)
    self._thread.start()
    self._wait()

  def _train(self):
    try:
      table = report.Table(self._folder / metrics.NAME)
      with loop.TrainingRun(
        self._folder,
        self._claim,
        max_rounds=test_protocol.SCHEMA.num_rounds,
        process=self._process,
        observers=observer.Observers([table, Released(self)], self._folder),
        published=table.num_rounds,
        delta=1e-6,
      ) as self.opened:
        table.restore(self.opened)
        self.opened.train(self._cohorts(), lambda t, device_ids: self._pause())
    except BaseException as error:
      self._error = error
    self._is_over = True
    self._paused.release()

  def note(self, round_index, measurements) -> None:
    self._row = np.float64(measurements['row']).tobytes()
    self._machine.release(round_index, self._row)

  def _check_state(self) -> None:
    """A result that was released is only lost where checkpoints were put back."""
    checkpoint, released = self.opened.checkpoint, self._machine.released
    burnt = set(checkpoint.burnt)
    assert not burnt & (released.keys() - self._machine.forgotten)
    rows = [np.frombuffer(row)[0] for t, row in released.items() if t not in burnt]
    np.testing.assert_allclose(checkpoint.state.global_model_weights, sum(rows), atol=1e-12)

  def _cohorts(self):
    cohorts = [*self._machine.begun, *self._machine.tried]
    for t in range(self.opened.next_round):
      yield schemas.Cohort(t, np.array(cohorts[t]), t, t)
    while cohort := self._pause():
      t = self.opened.next_round
      yield schemas.Cohort(t, np.array(cohort), t, t)

  def _pause(self):
    """Waits, in the loop's thread, and returns what the machine decided."""
    self._check_state()
    self._paused.release()
    self._told.acquire()
    if isinstance(self._order, BaseException):
      raise self._order
    return self._order

  def _wait(self):
    self._paused.acquire()
    error, self._error = self._error, None
    if error is not None:
      self._thread.join()
      raise error

  def _go_on(self, order=None):
    self._order = order
    self._told.release()
    self._wait()

  def begin(self, cohort: list[str]) -> None:
    self._go_on(cohort)

  def finish(self) -> bytes:
    self._go_on()
    return self._row

  def fail(self) -> None:
    """The same call goes on, as users are told."""
    self._process.is_failing = True
    with pytest.raises(loop.RoundFailedError, match='connection lost'):
      self._go_on()
    self._open()

  def close(self) -> None:
    while not self._is_over:  # A round that is open is finished first.
      self._go_on()
    self._thread.join()

  def use_in_a_fork(self, is_open_round: bool) -> None:
    self.opened.guard.log.append(self.opened.next_round, ['a'], 0)

  def abandon(self) -> None:
    if not self._is_over:
      with pytest.raises(test_protocol.Killed):
        self._go_on(test_protocol.Killed())


@pytest.mark.slow
def test_no_row_is_in_two_sums_and_no_participation_is_lost():
  test_protocol.run_machine(Trainer, 15)


@pytest.mark.slow
@pytest.mark.parametrize('end', ['/checkpoints', '.mark', '-wal', '/run', '.writing-'])
def test_a_sync_that_is_left_out_is_noticed(end):
  test_protocol.check_noticed(Trainer, end)
