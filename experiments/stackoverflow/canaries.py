"""Canaries of a run: in its cohorts and sums, and their scores in its folder."""

import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from experiments.stackoverflow import configuration
from fl_dpftrl import files, participation
from fl_dpftrl.aggregators import canaries as channels
from fl_dpftrl.aggregators import factory as factory_lib
from fl_dpftrl.auditing import canaries as canaries_lib
from fl_dpftrl.auditing import one_run
from fl_dpftrl.families import base
from fl_dpftrl.learning import canaried, checkpoints, loop
from fl_dpftrl.logs import canaries as ids

SCORES_NAME = 'canaries.npy'

Publish = Callable[[checkpoints.Checkpoint], None]


def of_run(
  hparams: configuration.Hparams, *, schema: participation.MinSep, size: int, clients: Iterable[str]
) -> 'RunCanaries | None':
  """Returns the canaries of a run; None for a run without.

  Args:
    hparams: flags of the run.
    schema: its rounds, and the participation that its timers allow.
    size: parameters of the model.
    clients: names of the devices.

  Raises:
    ValueError: naming --canaries, where they do not fit the run.
  """
  number = hparams.canaries
  if number is None:
    return None
  flag = f'--canaries={number}'
  if number < canaries_lib.LEAST:
    raise ValueError(f'{flag} must be at least {canaries_lib.LEAST}')
  if hparams.clip_quantile is not None:
    raise ValueError(f'{flag} needs one clip norm for all rounds: leave --clip_quantile out')
  if schema.num_rounds > one_run.MOST_ROUNDS:
    raise ValueError(f'{flag} is for runs of at most {one_run.MOST_ROUNDS} rounds')
  most = hparams.report_goal // 2 * schema.min_sep
  if number > most:
    raise ValueError(
      f'{flag} would be more than half of a cohort: at most {most} are possible with'
      f' --report_goal={hparams.report_goal} and a min-sep of {schema.min_sep}'
    )
  ids.check_ids(clients)
  return RunCanaries(
    canaries_lib.Canaries(
      num_canaries=number, schema=schema, size=size, clip_norm=hparams.clip_norm, seed=hparams.seed
    )
  )


class RunCanaries:
  """The canaries of a run, wherever the run meets them.

  Args:
    canaries: their rounds and directions.
  """

  def __init__(self, canaries: canaries_lib.Canaries):
    self._canaries = canaries
    self._channel = channels.Channel(canaries)
    self._scores: np.memmap | None = None

  def factory(
    self, factory: factory_lib.CorrelatedNoiseFactory
  ) -> factory_lib.CorrelatedNoiseFactory:
    """Returns the aggregator with canaries in its sums."""
    return channels.CanaryFactory.of(factory, self._channel)

  def federation(self, federation: loop.Federation) -> loop.Federation:
    """Returns the federation with canaries in its cohorts, and scores in its metrics."""

    def client_data(round_index: int, device_ids: Sequence[Any]) -> Sequence[Any]:
      own = [device for device in device_ids if not ids.is_canary(device)]
      return federation.client_data(round_index, own)

    return dataclasses.replace(
      federation,
      process=canaried.CanariedProcess(federation.process, self._channel),
      rounds=lambda: self.join(federation.rounds()),
      client_data=client_data,
    )

  def join(self, rounds: Iterator[participation.Cohort]) -> Iterator[participation.Cohort]:
    """Yields cohorts of the same size, in which canaries took places.

    Devices that give up their places are drawn from those of the round, and do not take part.
    One device always stays.
    """
    for cohort in rounds:
      present = self._canaries.present(cohort.round)
      if present:
        names = np.array([ids.device_id(number) for number in present])
        devices = np.asarray(cohort.device_ids)
        draws = np.random.default_rng([self._canaries.seed, cohort.round])
        count = min(len(present), devices.size - 1) if devices.size else 0
        left = np.delete(devices, draws.choice(devices.size, count, replace=False) if count else [])
        cohort = cohort._replace(device_ids=np.concatenate([left, names]))
      yield cohort

  def begin(self, folder: pathlib.Path, begin: loop.Begin) -> loop.Begin:
    """Returns a `begin` of the training loop that opens the file of scores first."""

    def opened(latest, earlier):
      first, second = itertools.tee(earlier)
      self._open(folder / SCORES_NAME, latest, first)
      begin(_without_scores(latest), map(_without_scores, second))

    return opened

  def publish(self, publish: Publish) -> Publish:
    """Returns a `publish` of the training loop that keeps the scores as well."""

    def published(checkpoint):
      self._put(checkpoint)
      publish(_without_scores(checkpoint))

    return published

  def result(
    self, strategy: base.Strategy, hparams: configuration.Hparams, say: Callable[[str], None]
  ) -> one_run.OneRunAudit | None:
    """Returns the empirical ε of the finished run; None, and says why, if there is none."""
    try:
      return one_run.audit_run(
        self._canaries,
        np.array(self._scores),
        strategy,
        noise_multiplier=hparams.noise_multiplier,
        delta=hparams.delta,
      )
    except (ValueError, np.linalg.LinAlgError) as error:
      say(f'the canaries give no empirical ε: {error}')
      return None

  def _open(
    self,
    path: pathlib.Path,
    latest: checkpoints.Checkpoint,
    earlier: Iterator[checkpoints.Checkpoint],
  ) -> None:
    """Opens the scores, without those of rounds that are not, or were never, released.

    A file that is gone is made anew, from what the checkpoints have.
    """
    shape = self._canaries.schema.num_rounds, 2 * self._canaries.num_canaries
    if not path.exists():
      with files.replacing(path, private=True) as temporary, temporary.open('wb') as file:
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
      self._put(checkpoint)
      missing.discard(checkpoint.num_rounds - 1)

  def _put(self, checkpoint: checkpoints.Checkpoint) -> None:
    """Keeps the scores of a checkpoint's round durably."""
    if self._scores is None:
      raise ValueError('begin must be told the checkpoint that a run goes on from, before others')
    t, width = checkpoint.num_rounds - 1, self._scores.shape[1]
    if t in checkpoint.burnt:
      self._scores[t] = np.nan
    elif checkpoint.measurements:
      self._scores[t] = [checkpoint.measurements[canaried.name(i)] for i in range(width)]
    self._scores.flush()


def _without_scores(checkpoint: checkpoints.Checkpoint) -> checkpoints.Checkpoint:
  """Returns a checkpoint for tables, which have no column for each canary."""
  prefix = f'{canaried.MEASUREMENT}/'
  left = {k: v for k, v in checkpoint.measurements.items() if not k.startswith(prefix)}
  return dataclasses.replace(checkpoint, measurements=left)
