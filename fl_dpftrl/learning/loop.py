"""The training loop: every row of noise enters one sum, whatever happens.

The order of a round is: its cohort durably in the log, then the computation, then its result
with the advanced noise state durably on disk, then a durable mark that it may be used, then its
use, from what was written. So after an interruption at any point:

- a stored result is used as stored;
- a result that was never marked for use was never seen by anyone: the same
  cohort, model and row of noise give the same result again;
- a result that was marked and is lost, or that was looked at and discarded, has used up its
  row: the row is burnt. The noise stream advances past it with the row's own z, the round
  counts, its cohort stays in the log, and nothing of it is used or published.

The mark is kept beside the checkpoints and in the log's metadata. The larger counts, so that
checkpoints which were put back from a copy do not bring their old mark with them.
"""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import tensorflow_federated as tff

from fl_dpftrl import files, participation
from fl_dpftrl.learning import checkpoints, metrics
from fl_dpftrl.logs import writer as writer_lib

LOG_NAME = 'participation.parquet'
CHECKPOINTS_NAME = 'checkpoints'
LOCK_NAME = 'lock'


# The checkpoint that a run goes on from, and earlier ones, the newest first.
Begin = Callable[[checkpoints.Checkpoint, Iterator[checkpoints.Checkpoint]], None]


class ReleaseMark(Protocol):
  """A durable note of how many rounds' results may have been used."""

  def released(self) -> int | None:
    """Number of rounds; None if no mark was written."""
    ...

  def mark_released(self, num_rounds: int) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Federation:
  """The learning process, its cohorts and its client data.

  Attributes:
    process: the learning process; its aggregator adds the noise.
    skip_row: maps an aggregator state to the state after one more noise row.
    rounds: the cohorts of rounds 0, 1, …; the same in every call.
    client_data: maps (round, device ids) to the data that process.next takes;
      the same in every call.
    should_discard: given a round's output, returns whether it must not be used.
      The round's noise row is then burnt.
  """

  process: tff.learning.templates.LearningProcess
  skip_row: Callable[[Any], Any]
  rounds: Callable[[], Iterator[participation.Cohort]]
  client_data: Callable[[int, Any], Sequence[Any]]
  should_discard: Callable[[tff.learning.templates.LearningProcessOutput], bool] = lambda output: (
    False
  )


class RoundFailedError(RuntimeError):
  """A round that could not be computed; the run can be resumed at it."""


def _ignore(step: str, round_index: int) -> None:
  del step, round_index


def _no_look_back(
  latest: checkpoints.Checkpoint, earlier: Iterator[checkpoints.Checkpoint]
) -> None:
  del latest, earlier


def run(
  federation: Federation,
  folder: str | os.PathLike[str],
  *,
  num_rounds: int,
  publish: Callable[[checkpoints.Checkpoint], None],
  begin: Begin = _no_look_back,
  published: int = 0,
  log_metadata: Mapping[str, str] | None = None,
  follow: Callable[[writer_lib.LogWriter], None] = lambda log: None,
  on_step: Callable[[str, int], None] = _ignore,
  warn: Callable[[str], None] = lambda line: None,
) -> checkpoints.Checkpoint:
  """Trains until num_rounds rows of noise are consumed, from where it stands.

  Args:
    federation: see `Federation`.
    folder: where log and checkpoints are, or will be.
    num_rounds: burnt rounds included.
    publish: told each checkpoint once its result may be used, also the one that
      a run goes on from; telling it the same one again must change nothing.
    begin: told once, before anything is published, the checkpoint that the run
      goes on from, and earlier ones that are still there, the newest first.
    published: rounds that were published before, as far as what was published
      shows; more than the marks say where those were put back from a copy.
    log_metadata: what else the log's file says of the run.
    follow: told the open log once, before anything else, for figures that grow
      with it.
    on_step: told each step of the protocol as it is completed.
    warn: told, in a line, of each thing that was lost.

  Returns:
    The last checkpoint.

  Raises:
    LostStateError: if the log or the checkpoints that are needed are gone.
    RoundFailedError: if a round could not be computed.
    ValueError: if another process is at this run.
    StalledRound: where no cohort can be formed.
  """
  folder = pathlib.Path(folder)
  stored_in = folder / CHECKPOINTS_NAME
  stored_in.mkdir(mode=0o700, parents=True, exist_ok=True)
  # Two processes at one run would put a row of noise into two sums.
  with files.exclusive(stored_in / LOCK_NAME):
    return _run(
      federation,
      folder,
      num_rounds=num_rounds,
      publish=publish,
      begin=begin,
      published=published,
      log_metadata=log_metadata,
      follow=follow,
      on_step=on_step,
      warn=warn,
    )


def _run(
  federation: Federation,
  folder: pathlib.Path,
  *,
  num_rounds: int,
  publish: Callable[[checkpoints.Checkpoint], None],
  begin: Begin,
  published: int,
  log_metadata: Mapping[str, str] | None,
  follow: Callable[[writer_lib.LogWriter], None],
  on_step: Callable[[str, int], None],
  warn: Callable[[str], None],
) -> checkpoints.Checkpoint:
  files.remove_leftovers(folder)
  initial = federation.process.initialize()
  stored = checkpoints.CheckpointFolder(folder / CHECKPOINTS_NAME, initial)
  with writer_lib.LogWriter(folder / LOG_NAME, metadata=log_metadata) as log:
    if log.dropped:
      warn(log.dropped)
    follow(log)
    # A mark that is put back with the checkpoints is one of several.
    marks = (log, stored)
    latest = _recover(federation, stored, log, marks, initial, published=published, warn=warn)
    begin(latest, stored.before(latest.num_rounds))
    publish(latest)
    for cohort in federation.rounds():
      t = cohort.round
      if t >= num_rounds:
        break
      if log.num_rounds == t:
        log.append(t, cohort.device_ids, cohort.closed)
      elif list(log.cohort(t)) != list(cohort.device_ids):
        raise checkpoints.LostStateError(
          f'{folder / LOG_NAME} has other devices in round {t} than these flags'
          ' give; resume with the flags that the run was started with'
        )
      if t < latest.num_rounds:
        continue
      on_step('cohort logged', t)
      try:
        output = federation.process.next(latest.state, federation.client_data(t, cohort.device_ids))
      except Exception as error:
        raise RoundFailedError(
          f'round {t} failed: {error} ({type(error).__name__}); nothing of it'
          ' was used, and resuming repeats it with the same cohort and noise'
        ) from error
      on_step('computed', t)
      if federation.should_discard(output):
        warn(f'round {t} was discarded: its row of noise is burnt')
        latest = _burn(federation, stored, latest)
      else:
        latest = stored.save(
          checkpoints.Checkpoint(
            num_rounds=t + 1,
            state=output.state,
            measurements=metrics.flatten(output.metrics),
            burnt=latest.burnt,
          )
        )
      on_step('stored', t)
      for mark in marks:
        mark.mark_released(latest.num_rounds)
      on_step('released', t)
      publish(latest)
      on_step('published', t)
  return latest


def _burn(
  federation: Federation, stored: checkpoints.CheckpointFolder, latest: checkpoints.Checkpoint
) -> checkpoints.Checkpoint:
  """Consumes the next noise row without using or publishing its result."""
  state = latest.state
  return stored.save(
    checkpoints.Checkpoint(
      num_rounds=latest.num_rounds + 1,
      state=state._replace(aggregator=federation.skip_row(state.aggregator)),
      measurements={},
      burnt=(*latest.burnt, latest.num_rounds),
    )
  )


def _recover(
  federation: Federation,
  stored: checkpoints.CheckpointFolder,
  log: writer_lib.LogWriter,
  marks: Sequence[ReleaseMark],
  initial: Any,
  *,
  published: int,
  warn: Callable[[str], None],
) -> checkpoints.Checkpoint:
  """Returns the checkpoint to resume from, with lost rows burnt."""
  latest, problems = stored.load_latest()
  for problem in problems:
    warn(problem)
  said = [mark.released() for mark in marks]
  released = max([published, *(s for s in said if s is not None)])
  if latest is None:
    if log.num_rounds or released:
      raise checkpoints.LostStateError(
        f'{log.path} has {log.num_rounds} rounds, {released} were released, and'
        ' no checkpoint is left: the noise state is lost and the run cannot go'
        ' on'
      )
    latest = stored.save(checkpoints.Checkpoint(num_rounds=0, state=initial, measurements={}))
    for mark in marks:
      mark.mark_released(0)
    return latest
  trained = max(latest.num_rounds, released)
  if log.num_rounds < trained:
    raise checkpoints.LostStateError(
      f'{log.path} has {log.num_rounds} rounds, but {trained} were trained:'
      ' without the whole log the run has no guarantee; put the newest log back'
    )
  unseen = None not in said and released <= latest.num_rounds
  if not (unseen and log.num_rounds <= latest.num_rounds + 1):
    while latest.num_rounds < log.num_rounds:
      warn(f'the result of round {latest.num_rounds} is lost: its row of noise is burnt')
      latest = _burn(federation, stored, latest)
  for mark in marks:
    mark.mark_released(latest.num_rounds)
  return latest
