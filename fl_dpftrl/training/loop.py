"""The training loop: a round that was begun is used up.

The order of a round is: its cohort durably in the ledger, then the computation, then its result
with the advanced noise state durably on disk, then its use, from what was written. After an
interruption at any point the run goes on at the ledger's next round. A round whose result is not
on disk is lost: the noise stream is advanced past its row with the row's own z, its devices count
as participants, and nothing of it is used or published.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fl_dpftrl import claims, metrics
from fl_dpftrl.aggregators import factories
from fl_dpftrl.files import durable, mark
from fl_dpftrl.logs import ledger_format, ledgers
from fl_dpftrl.participation import schemas
from fl_dpftrl.rounds import admission, guards
from fl_dpftrl.training import checkpoints, processes

CHECKPOINTS_NAME = 'checkpoints'
LOCK_NAME = 'lock'


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TrainingRun:
  """A run, as the loop computes it and as its observers see it.

  Attributes:
    folder: folder of its log, checkpoints and other files.
    num_rounds: rows of noise that it uses up, by lost rounds too.
    process: computes the rounds, and skips rows.
    rounds: returns the cohorts of rounds 0, 1, …; the same in every call.
    client_data: maps (round, device ids) to the data that process.next takes;
      the same in every call.
    aggregator: adds the noise.
    claim: what the run claims.
    delta: δ at which ε is stated.
    say: takes lines, such as one for each thing that was lost.
    should_stop: returns whether the run ends before its next round, by what was released.
    status: returns what progress says of the machines that train; '' for nothing.
    log: the open log, once the run is under way.
  """

  folder: pathlib.Path
  num_rounds: int
  process: processes.RoundProcess
  rounds: Callable[[], Iterator[schemas.Cohort]]
  client_data: Callable[[int, Any], Sequence[Any]]
  aggregator: factories.CorrelatedNoiseFactory
  claim: claims.Claim
  delta: float = 1e-6
  say: Callable[[str], None] = lambda line: None
  should_stop: Callable[[], bool] = lambda: False
  status: Callable[[], str] = lambda: ''
  log: ledgers.LogWriter | None = None


class Observer:
  """Base class of what watches a run; each method does nothing by default.

  A checkpoint's `measurements` hold what the observers of the run measured after its round, too.
  """

  def start(self, run: TrainingRun) -> None:
    """Is told the run before anything is written into its folder."""

  def begin(self, run: TrainingRun, latest: checkpoints.Checkpoint) -> None:
    """Is told once, before anything is released, which checkpoint the run goes on from."""

  def step(self, run: TrainingRun, step: str, round_index: int) -> None:
    """Is told 'cohort logged', 'computed', 'stored' and 'published' of a round."""

  def measure(self, run: TrainingRun, checkpoint: checkpoints.Checkpoint) -> Mapping[str, float]:
    """Returns further measurements after a checkpoint's round; most observers have none."""
    del run, checkpoint
    return {}

  def released(self, run: TrainingRun, checkpoint: checkpoints.Checkpoint) -> None:
    """Is told each checkpoint once its result may be used.

    That includes the one that the run goes on from; a repeated call must change nothing.
    """

  def end(self, run: TrainingRun, trained: Any) -> None:
    """Is told the `Trained` model once its report is written."""


class RoundFailedError(RuntimeError):
  """A round that could not be computed; the run can be resumed after it."""


def run(
  training: TrainingRun, observers: Sequence[Observer] = (), *, published: int = 0
) -> checkpoints.Checkpoint:
  """Trains until num_rounds rows of noise are consumed, and returns the last checkpoint.

  Args:
    observers: told of its steps and releases, in their order.
    published: rounds that were published before; more than the ledger has if that is a copy.
  """
  stored_in = training.folder / CHECKPOINTS_NAME
  stored_in.mkdir(mode=0o700, parents=True, exist_ok=True)
  # Two processes at one run would put a row of noise into two sums.
  with durable.exclusive(stored_in / LOCK_NAME):
    durable.remove_leftovers(training.folder)
    initial = training.process.initialize()
    stored = checkpoints.CheckpointFolder(stored_in, initial)
    with guards.Guard(training.claim, log=training.folder / ledger_format.NAME) as guard:
      training.claim.save(training.folder, guard.log.run, begun=guard.num_rounds > 0)
      opened = dataclasses.replace(training, log=guard.log)
      return _run(opened, guard, stored, initial, observers, published)


def _run(
  run: TrainingRun,
  guard: guards.Guard,
  stored: checkpoints.CheckpointFolder,
  initial: Any,
  observers: Sequence[Observer],
  published: int,
) -> checkpoints.Checkpoint:
  def publish(checkpoint: checkpoints.Checkpoint) -> None:
    row = dict(checkpoint.measurements)
    for observer in observers if row else ():  # A lost round released nothing.
      row |= observer.measure(run, checkpoint)
    complete = dataclasses.replace(checkpoint, measurements=row)
    for observer in observers:
      observer.released(run, complete)

  def step_done(step: str, round_index: int) -> None:
    for observer in observers:
      observer.step(run, step, round_index)

  latest = _recover(run, stored, guard, initial, published=published)
  begun, log = guard.num_rounds, guard.log
  retraced: Any = run.claim.answers.gate(run.claim.strategy)
  if latest.num_rounds > run.num_rounds:
    raise mark.LostStateError(
      f'{run.folder} has {latest.num_rounds} rounds, more than num_rounds={run.num_rounds};'
      ' give at least as many, or name another folder'
    )
  for observer in observers:
    observer.begin(run, latest)
  publish(latest)
  for cohort in run.rounds():
    t = cohort.round
    if t >= run.num_rounds:
      break
    if t < begun:
      admitted = admission.admit(retraced, cohort.device_ids).device_ids
      retraced.record(admitted)
      if set(log.cohort(t).tolist()) != set(admitted.tolist()):
        raise mark.LostStateError(
          f'{log.path} has other devices in round {t} than these settings'
          ' give; resume with those that the run was started with'
        )
      continue
    if run.should_stop():
      run.say(f'the run ends after {t} of {run.num_rounds} rounds by what it released (stop_when)')
      break
    device_ids = guard.check(cohort.device_ids).device_ids
    if not len(device_ids):
      run.say(f'round {t} has no devices: its row of noise is used up, and it learns from noise')
    guard.reserve([device_ids], timestamp=cohort.closed)
    step_done('cohort logged', t)
    try:
      output = run.process.next(latest.state, run.client_data(t, device_ids))
    except Exception as error:
      raise RoundFailedError(
        f'round {t} failed: {error} ({type(error).__name__}); nothing of it'
        ' was used, and resuming goes on with the next one'
      ) from error
    step_done('computed', t)
    latest = stored.save(
      checkpoints.Checkpoint(
        num_rounds=t + 1,
        state=output.state,
        measurements=metrics.flatten(output.metrics),
        burnt=latest.burnt,
      )
    )
    step_done('stored', t)
    publish(latest)
    step_done('published', t)
  return latest


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
