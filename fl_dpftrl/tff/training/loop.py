"""The training loop: a round that was begun is used up.

The order of a round is: its cohort durably in the ledger, then the computation, then its result
with the advanced noise state durably on disk, then its use, from what was written. After an
interruption at any point the run goes on at the ledger's next round. A round whose result is not
on disk is lost: the noise stream is advanced past its row with the row's own z, its devices count
as participants, and nothing of it is used or published.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import id_spellings
from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.run import admission, budget, live_run
from fl_dpftrl.run.observers import observer
from fl_dpftrl.support import metrics
from fl_dpftrl.support.files import durable, mark, paths
from fl_dpftrl.tff.training import checkpoints, processes

CHECKPOINTS_NAME = 'checkpoints'
LOCK_NAME = 'lock'


class RoundFailedError(RuntimeError):
  """A round that could not be computed; the run can be resumed after it."""


class TrainingRun(live_run.LiveRun):
  """A run of `train`, as the loop computes it and as its observers see it.

  Attributes:
    process: computes the rounds, and skips rows.
    checkpoint: the last one, with the measurements of its round.
    trained: the `Trained` model, once its report is written.
    say: takes lines, such as one for each thing that was lost.
    machines: returns what progress says of the machines that train; '' for nothing.
  All others are those of `LiveRun`.
  """

  def __init__(
    self,
    folder: str | os.PathLike[str],
    claim: run_claim.Claim,
    *,
    max_rounds: int,
    process: processes.RoundProcess,
    observers: observer.Observers,
    say: Callable[[str], None] = lambda line: None,
    machines: Callable[[], str] = lambda: '',
    published: int = 0,
    delta: float | None = None,
    max_epsilon: float | None = None,
    **options: Any,
  ):
    """Opens the folder, alone, and finds the checkpoint to go on from.

    Observers hear of the run before anything is written.

    Args:
      max_rounds: rows of noise to use up, by lost rounds too, if claim and budget allow so many.
      observers: see the rounds; an error of theirs ends the run.
      published: rounds that were published before; more than the ledger has if that is a copy.
      delta, max_epsilon, options: of `LiveRun`.
    """
    self.folder, self.delta, self.max_epsilon = paths.local(folder), delta, max_epsilon
    self.claim = budget.limited(claim, delta=delta, max_epsilon=max_epsilon)
    self._last = max_rounds
    self.process, self.say, self.machines = process, say, machines
    self.trained: Any = None
    observers.begin(self)
    with contextlib.ExitStack() as undo:
      # Two processes at one run would put a row of noise into two sums.
      stored_in = paths.local(folder) / CHECKPOINTS_NAME
      stored_in.mkdir(mode=0o700, parents=True, exist_ok=True)
      undo.enter_context(durable.locked(stored_in / LOCK_NAME))
      durable.remove_leftovers(stored_in.parent)
      initial = process.initialize()
      self._stored = checkpoints.CheckpointFolder(stored_in, initial)
      super().__init__(folder, claim, observers, delta=delta, max_epsilon=max_epsilon, **options)
      undo.callback(self.guard.log.release)
      self._last = min(max_rounds, super().max_rounds)
      if self._last < max_rounds:
        is_endless = self.claim.answers.num_rounds is None
        why = 'last_row' if is_endless else f'max_epsilon={self.max_epsilon:g}'
        say(f'{why} allows {self._last} of {max_rounds} rounds: the run ends there')
      self.checkpoint = self._recovered(initial, published)
      self._unlocked = undo.pop_all()

  @property
  def max_rounds(self) -> int:
    """Rows of noise that the run uses up."""
    return self._last

  def weights(self) -> Any:
    """Returns the model's weights after the last round."""
    return self.process.weights(self.checkpoint.state)

  def close(self) -> None:
    """Turns the log into one Parquet file, and lets another process use the folder."""
    try:
      self.guard.close()
    finally:
      self._unlocked.close()

  def train(
    self,
    rounds: Iterable[schemas.Cohort],
    client_data: Callable[[int, Any], Sequence[Any]],
    should_stop: Callable[[], bool] = lambda: False,
  ) -> None:
    """Trains until max_rounds rows of noise are used up.

    Args:
      rounds: cohorts of rounds 0, 1, …; the same in every call.
      client_data: maps (round, device ids) to the data that process.next takes; the same in every
        call.
      should_stop: returns whether the run ends before its next round, by what was released.
    """
    latest, begun, log = self.checkpoint, self.next_round, self.guard.log
    watching = self._turns.observers
    gate: Any = self.guard.gate
    retraced: Any = self.claim.answers.gate(self.claim.strategy)
    spellings = id_spellings.RecordedSpellings()
    if self.guard.units is not None:
      retraced.owners = gate.owners
    if latest.num_rounds > self.max_rounds:
      raise mark.LostStateError(
        f'{self.folder} has {latest.num_rounds} rounds, more than num_rounds={self.max_rounds};'
        ' give at least as many, or name another folder'
      )
    if (last := latest.num_rounds - 1) >= 0 and last not in latest.burnt:
      watching.released(self, last, latest.measurements)
    for cohort in rounds:
      t = cohort.round
      if t >= self.max_rounds:
        break
      if t < begun:
        candidates, erased = self.guard.retraced(t, cohort.device_ids)
        canaries = self.guard.canary_ids(candidates.type)
        again = admission.admit(retraced, candidates, spellings=[spellings], canaries=canaries)
        allowed = set(again.beside(self.claim, log.run, retraced).column.to_pylist())
        others = allowed ^ set(log.cohort(t).tolist())
        # A population turns some of them away, and has erased ids of others.
        if others - (allowed | erased if self.claim.population else set()):
          raise mark.LostStateError(
            f'{log.path} has other devices in round {t} than these settings'
            ' give; resume with those that the run was started with'
          )
        spellings.add(log.column(t))
        retraced.record(log.cohort(t))
        continue
      if should_stop():
        words = f'the run ends after {t} of {self.max_rounds} rounds by what it released'
        self.say(f'{words} (stop_when)')
        break
      device_ids = self.admissible(cohort.device_ids)
      if not len(device_ids):
        self.say(f'round {t} has no devices: its row of noise is used up, and it learns from noise')
      watching.begin(self, t)
      try:
        (admitted,) = self.guard.reserve([device_ids], timestamp=cohort.closed)
        output = self._computed(t, client_data, admitted)
        self.checkpoint = self._stored.save(
          checkpoints.Checkpoint(
            num_rounds=t + 1,
            state=output.state,
            measurements=metrics.flatten(output.metrics),
            burnt=latest.burnt,
          )
        )
      except Exception as error:
        try:
          watching.end(self, t, error)
        except Exception as second:  # The first error ends the run.
          self.say(f'an observer failed after round {t}: {second} ({type(second).__name__})')
        raise
      watching.released(self, t, self.checkpoint.measurements)

  def _computed(
    self, t: int, client_data: Callable[[int, Any], Any], admitted: admission.Admission
  ) -> Any:
    """Returns the output of a round; RoundFailedError if it fails."""
    state, records = self.checkpoint.state, self._records
    try:
      data = client_data(t, admitted.device_ids)
      if records is None:
        return self.process.next(state, data)
      aggregator = self.process.aggregator
      updates = records.updates(admitted.canaries, aggregator.first_clip_norm)
      output = self.process.next(aggregator.with_canaries(state, updates), data)
      noised_sum, measurements = aggregator.noised_sum(output.metrics)
      records.put(t, noised_sum, aggregator.first_clip_norm)
      return output._replace(metrics=measurements)
    except Exception as error:
      raise RoundFailedError(
        f'round {t} failed: {error} ({type(error).__name__}); nothing of it'
        ' was used, and resuming goes on with the next one'
      ) from error

  def _recovered(self, initial: Any, published: int) -> checkpoints.Checkpoint:
    """Returns the checkpoint to go on from, after the rows of all rounds that were begun."""
    latest, problems = self._stored.load_latest()
    for problem in problems:
      self.say(problem)
    used, log = max(published, self._stored.newest), self.guard.log
    if log.num_rounds < used:
      raise mark.LostStateError(
        f'{log.path} has {log.num_rounds} rounds, but {used} were trained:'
        ' without the whole log the run has no guarantee; put the newest log back'
      )
    if latest is None:
      self.require_new()
      return self._stored.save(checkpoints.Checkpoint(num_rounds=0, state=initial, measurements={}))
    if latest.num_rounds == log.num_rounds:
      return latest
    state, lost = latest.state, tuple(range(latest.num_rounds, log.num_rounds))
    for t in lost:
      self.say(f'the result of round {t} is lost, and its row of noise is used up')
      try:
        state = state._replace(aggregator=self.process.skip_row(state.aggregator))
      except Exception as error:
        raise RoundFailedError(
          f'the noise row of round {t} could not be skipped: {error} ({type(error).__name__})'
        ) from error
    return self._stored.save(
      checkpoints.Checkpoint(
        num_rounds=log.num_rounds, state=state, measurements={}, burnt=(*latest.burnt, *lost)
      )
    )
