"""Canaries of a run: in its cohorts, and their scores in its folder.

Their updates enter the sums by the aggregator, a `CanaryFactory`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fl_dpftrl.aggregators import canaries as channels
from fl_dpftrl.aggregators import factory as factory_lib
from fl_dpftrl.auditing import canaries as canaries_lib
from fl_dpftrl.auditing import one_run
from fl_dpftrl.files import durable
from fl_dpftrl.logs import canaries as ids
from fl_dpftrl.participation import schemas
from fl_dpftrl.training import checkpoints, loop
from fl_dpftrl.training import process as process_lib

SCORES_NAME = 'canaries.npy'


def of_aggregator(
  aggregator: factory_lib.CorrelatedNoiseFactory, num_rounds: int, declared: schemas.MinSep | None
) -> canaries_lib.Canaries | None:
  """Returns the canaries in the sums of an aggregator; None without any.

  Args:
    aggregator: adds the noise of the run.
    num_rounds: rounds of the run.
    declared: schema that the timers of devices enforce, if known. The log counts canaries as
      devices, so a canary that took part more often would break it, and pass a budget.

  Raises:
    ValueError: if they are not of `fl_dpftrl.auditing`, or do not fit the run.
  """
  if not isinstance(aggregator, channels.CanaryFactory):
    return None
  canaries = aggregator.channel.canaries
  if not isinstance(canaries, canaries_lib.Canaries):
    raise ValueError(f'aggregator must have canaries of an audit, got {type(canaries).__name__}')
  if canaries.schema.num_rounds < num_rounds:
    raise ValueError(
      f'aggregator has canaries for {canaries.schema.num_rounds} rounds, and the run has'
      f' {num_rounds}'
    )
  if canaries.clip_norm != aggregator.clip_norm:
    raise ValueError(
      f'aggregator has clip_norm={aggregator.clip_norm}, and its canaries {canaries.clip_norm}'
    )
  if declared is not None:
    own, needed = canaries.schema.within(num_rounds), declared.within(num_rounds)
    if own.min_sep < needed.min_sep or own.participations > needed.participations:
      raise ValueError(
        f'aggregator has canaries of min_sep={own.min_sep}, which take part more often than'
        f' timers with min_sep={needed.min_sep} allow'
      )
  return canaries


def join(
  canaries: canaries_lib.Canaries, rounds: Iterator[schemas.Cohort]
) -> Iterator[schemas.Cohort]:
  """Yields cohorts of the same size, in which canaries took places.

  Devices that give up their places are drawn from those of the round, and do not take part.
  One device always stays.
  """
  for cohort in rounds:
    present = canaries.present(cohort.round)
    if present:
      names = np.array([ids.device_id(number) for number in present])
      devices = np.asarray(cohort.device_ids)
      draws = np.random.default_rng([canaries.seed, cohort.round])
      count = min(len(present), devices.size - 1) if devices.size else 0
      left = np.delete(devices, draws.choice(devices.size, count, replace=False) if count else [])
      cohort = cohort._replace(device_ids=np.concatenate([left, names]))
    yield cohort


def devices_alone(
  client_data: Callable[[int, Any], Sequence[Any]],
) -> Callable[[int, Any], Sequence[Any]]:
  """Returns client data of the devices of a cohort; canaries have none."""

  def of_devices(round_index: int, device_ids: Sequence[Any]) -> Sequence[Any]:
    return client_data(round_index, [one for one in device_ids if not ids.is_canary(one)])

  return of_devices


class CanaryScores(loop.Observer):
  """Keeps the scores of a run's canaries in its folder, in canaries.npy.

  Args:
    canaries: canaries of the run.
  """

  def __init__(self, canaries: canaries_lib.Canaries):
    self._canaries = canaries
    self._scores: np.memmap | None = None

  def begin(self, run, latest, earlier):
    """Opens the scores, without those of rounds that are not, or were never, released.

    A file that is gone is made anew, from what the checkpoints have.

    Raises:
      ValueError: if the file is of another run.
    """
    path = run.folder / SCORES_NAME
    shape = self._canaries.schema.num_rounds, 2 * self._canaries.num_canaries
    if not path.exists():
      with durable.replacing(path, private=True) as temporary, temporary.open('wb') as file:
        np.save(file, np.full(shape, np.nan))
    self._scores = np.lib.format.open_memmap(path, mode='r+')
    if self._scores.shape != shape or self._scores.dtype != np.float64:
      raise ValueError(f'{path} is not of this run; move the file away to go on')
    self._scores[latest.num_rounds :] = np.nan
    self._scores[list(latest.burnt)] = np.nan
    self._scores.flush()
    used = set(range(latest.num_rounds - 1)) - set(latest.burnt)
    missing = {t for t in used if not np.isfinite(self._scores[t]).all()}
    while missing and (checkpoint := next(earlier, None)) is not None:
      self.released(run, checkpoint)
      missing.discard(checkpoint.num_rounds - 1)

  def released(self, run: Any, checkpoint: checkpoints.Checkpoint) -> None:
    """Keeps the scores of a checkpoint's round durably."""
    if self._scores is None:
      raise ValueError('begin must be told the checkpoint that a run goes on from, before others')
    t, width = checkpoint.num_rounds - 1, self._scores.shape[1]
    if t in checkpoint.burnt:
      self._scores[t] = np.nan
    elif checkpoint.measurements:
      self._scores[t] = [checkpoint.measurements[name(i)] for i in range(width)]
    self._scores.flush()

  def audit(self, run: loop.TrainingRun) -> one_run.OneRunAudit | None:
    """Returns the empirical ε of the finished run; None, and says why, if there is none."""
    try:
      return one_run.audit_run(
        self._canaries,
        np.array(self._scores),
        run.aggregator.strategy,
        noise_multiplier=run.aggregator.noise_multiplier,
        delta=run.delta,
      )
    except (ValueError, np.linalg.LinAlgError) as error:
      run.say(f'the canaries give no empirical ε: {error}')
      return None


def name(number: int) -> str:
  """Returns the flat name of a score among the measurements of a checkpoint."""
  return f'{process_lib.SCORES}/{number}'
