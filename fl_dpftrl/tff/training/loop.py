"""The training loop: a round that was begun is used up.

The order of a round is: its cohort durably in the ledger, then the computation, then its result
with the advanced noise state durably on disk, then its use, from what was written. After an
interruption at any point the run goes on at the ledger's next round. A round whose result is not
on disk is lost: the noise stream is advanced past its row with the row's own z, its devices count
as participants, and nothing of it is used or published.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import id_spellings, ledger_format
from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.participation.accounting import guarantees
from fl_dpftrl.prove.reports import settings
from fl_dpftrl.run import admission, budget, continued_claims, guards, status
from fl_dpftrl.run.observers import observer
from fl_dpftrl.support import metrics
from fl_dpftrl.support.files import durable, mark
from fl_dpftrl.tff.training import checkpoints, processes

CHECKPOINTS_NAME = 'checkpoints'
LOCK_NAME = 'lock'


@dataclasses.dataclass(kw_only=True, eq=False)
class TrainingRun:
  """A run, as the loop computes it and as its observers see it.

  Attributes:
    folder: folder of its log, checkpoints and other files.
    max_rounds: rows of noise that it uses up, by lost rounds too; as many as the claim and the
      privacy budget allow.
    process: computes the rounds, and skips rows.
    rounds: returns the cohorts of rounds 0, 1, …; the same in every call.
    client_data: maps (round, device ids) to the data that process.next takes;
      the same in every call.
    claim: what the run claims, of the rounds that the privacy budget allows.
    setting: what its report says beyond the log.
    delta: δ at which ε is stated.
    max_epsilon: privacy budget; None for no limit.
    units: table of who owns which device, or its files, with a `PerUnit` participation.
    exact_metrics: names of measurements that depend on clients without noise, joined by dots.
    say: takes lines, such as one for each thing that was lost.
    should_stop: returns whether the run ends before its next round, by what was released.
    machines: returns what progress says of the machines that train; '' for nothing.
    guard: keeps the log, once the run is under way.
    checkpoint: the last one, with the measurements of its round.
    trained: the `Trained` model, once its report is written.
  """

  folder: pathlib.Path
  max_rounds: int
  process: processes.RoundProcess
  rounds: Callable[[], Iterator[schemas.Cohort]]
  client_data: Callable[[int, Any], Sequence[Any]]
  claim: run_claim.Claim
  setting: settings.Setting = settings.Setting()
  delta: float = 1e-6
  max_epsilon: float | None = None
  units: Any = None
  exact_metrics: Sequence[str] = ()
  say: Callable[[str], None] = lambda line: None
  should_stop: Callable[[], bool] = lambda: False
  machines: Callable[[], str] = lambda: ''
  guard: Any = None
  checkpoint: Any = None
  trained: Any = None

  def __post_init__(self):
    recorded_rounds = continued_claims.num_rounds(self.claim, self.folder)
    self.claim = budget.limited(
      self.claim, delta=self.delta, max_epsilon=self.max_epsilon, recorded_rounds=recorded_rounds
    )
    if (allowed := self.claim.answers.num_rows) < self.max_rounds:
      is_endless = self.claim.answers.num_rounds is None
      why = 'last_row' if is_endless else f'max_epsilon={self.max_epsilon:g}'
      self.say(f'{why} allows {allowed} of {self.max_rounds} rounds: the run ends there')
      self.max_rounds = allowed

  @property
  def identity(self) -> str | None:
    """Random name of the run, as its log has it; None before the run is under way."""
    return self.guard and self.guard.log.run

  def weights(self) -> Any:
    """Returns the model's weights after the last round."""
    return self.process.weights(self.checkpoint.state)

  def privacy_loss(self) -> guarantees.Guarantee:
    """Returns the worst case of the rounds so far by the log, or the whole of a loss budget."""
    return self.guard.privacy_loss(self.delta)

  def status(self) -> status.Status:
    """Returns public figures of the run: rounds, ε so far, what is left of budget and disk."""
    return status.current(self.guard, self)


class RoundFailedError(RuntimeError):
  """A round that could not be computed; the run can be resumed after it."""


def run(
  training: TrainingRun,
  watching: observer.Observer,
  *,
  published: int = 0,
  recovered: Callable[[TrainingRun], None] = lambda run: None,
) -> checkpoints.Checkpoint:
  """Trains until max_rounds rows of noise are consumed, and returns the last checkpoint.

  Args:
    training: the run.
    watching: sees its rounds.
    published: rounds that were published before; more than the ledger has if that is a copy.
    recovered: called once the checkpoint is known that the run goes on from.
  """
  stored_in = training.folder / CHECKPOINTS_NAME
  stored_in.mkdir(mode=0o700, parents=True, exist_ok=True)
  # Two processes at one run would put a row of noise into two sums.
  with durable.exclusive(stored_in / LOCK_NAME):
    durable.remove_leftovers(training.folder)
    initial = training.process.initialize()
    stored = checkpoints.CheckpointFolder(stored_in, initial)
    log = training.folder / ledger_format.NAME
    with guards.Guard(training.claim, log=log, units=training.units) as guard:
      training.claim.save(training.folder, guard.log.run, begun=guard.num_rounds > 0)
      training.guard = guard
      training.checkpoint = _recover(training, stored, guard, initial, published=published)
      recovered(training)
      return _run(training, guard, stored, watching)


def _run(
  run: TrainingRun,
  guard: guards.Guard,
  stored: checkpoints.CheckpointFolder,
  watching: observer.Observer,
) -> checkpoints.Checkpoint:
  latest, begun, log = run.checkpoint, guard.num_rounds, guard.log
  gate: Any = guard.gate
  retraced: Any = run.claim.answers.gate(run.claim.strategy)
  spellings = id_spellings.RecordedSpellings()
  if guard.units is not None:
    retraced.owners = gate.owners
  if latest.num_rounds > run.max_rounds:
    raise mark.LostStateError(
      f'{run.folder} has {latest.num_rounds} rounds, more than num_rounds={run.max_rounds};'
      ' give at least as many, or name another folder'
    )
  if (last := latest.num_rounds - 1) >= 0 and last not in latest.burnt:
    watching.released(run, last, latest.measurements)
  for cohort in run.rounds():
    t = cohort.round
    if t >= run.max_rounds:
      break
    if t < begun:
      cohort_then = admission.admit(retraced, cohort.device_ids, spellings=spellings)
      spellings.add(cohort_then.column)
      admitted = cohort_then.device_ids
      retraced.record(admitted)
      if set(log.cohort(t).tolist()) != set(admitted.tolist()):
        raise mark.LostStateError(
          f'{log.path} has other devices in round {t} than these settings'
          ' give; resume with those that the run was started with'
        )
      continue
    if run.should_stop():
      run.say(f'the run ends after {t} of {run.max_rounds} rounds by what it released (stop_when)')
      break
    device_ids = guard.check(cohort.device_ids).device_ids
    if not len(device_ids):
      run.say(f'round {t} has no devices: its row of noise is used up, and it learns from noise')
    watching.begin(run, t)
    try:
      guard.reserve([device_ids], timestamp=cohort.closed)
      output = _computed(run, t, latest.state, device_ids)
      latest = run.checkpoint = stored.save(
        checkpoints.Checkpoint(
          num_rounds=t + 1,
          state=output.state,
          measurements=metrics.flatten(output.metrics),
          burnt=latest.burnt,
        )
      )
    except Exception as error:
      try:
        watching.end(run, t, error)
      except Exception as second:  # The first error ends the run.
        run.say(f'an observer failed after round {t}: {second} ({type(second).__name__})')
      raise
    watching.released(run, t, latest.measurements)
  return latest


def _computed(run: TrainingRun, t: int, state: Any, device_ids: Any) -> Any:
  """Returns the output of a round; RoundFailedError if it fails."""
  try:
    return run.process.next(state, run.client_data(t, device_ids))
  except Exception as error:
    raise RoundFailedError(
      f'round {t} failed: {error} ({type(error).__name__}); nothing of it'
      ' was used, and resuming goes on with the next one'
    ) from error


def _recover(
  run: TrainingRun,
  stored: checkpoints.CheckpointFolder,
  guard: guards.Guard,
  initial: Any,
  *,
  published: int,
) -> checkpoints.Checkpoint:
  """Returns the checkpoint to go on from, after the rows of all rounds that were begun."""
  latest, problems = stored.load_latest()
  for problem in problems:
    run.say(problem)
  used, log = max(published, stored.newest), guard.log
  if log.num_rounds < used:
    raise mark.LostStateError(
      f'{log.path} has {log.num_rounds} rounds, but {used} were trained:'
      ' without the whole log the run has no guarantee; put the newest log back'
    )
  if latest is None:
    guard.require_new()
    return stored.save(checkpoints.Checkpoint(num_rounds=0, state=initial, measurements={}))
  if latest.num_rounds == log.num_rounds:
    return latest
  state, lost = latest.state, tuple(range(latest.num_rounds, log.num_rounds))
  for t in lost:
    run.say(f'the result of round {t} is lost, and its row of noise is used up')
    try:
      state = state._replace(aggregator=run.process.skip_row(state.aggregator))
    except Exception as error:
      raise RoundFailedError(
        f'the noise row of round {t} could not be skipped: {error} ({type(error).__name__})'
      ) from error
  return stored.save(
    checkpoints.Checkpoint(
      num_rounds=log.num_rounds, state=state, measurements={}, burnt=(*latest.burnt, *lost)
    )
  )
