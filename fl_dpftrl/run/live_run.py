"""A run that goes on: its folder, and what every kind of run can do."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, Self

import numpy as np

from fl_dpftrl.claims import canaries, run_claim
from fl_dpftrl.logs import id_columns, ledger_format, participation_log, unit_tables
from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.participation import accounting
from fl_dpftrl.participation.accounting import gaussian
from fl_dpftrl.prove.auditing import canary_records, run_audit
from fl_dpftrl.prove.replaying import opened_runs, publication, replays, statements, verdicts
from fl_dpftrl.prove.reports import settings
from fl_dpftrl.run import budget, continued_claims, guards, live_round, shared_budgets, status
from fl_dpftrl.run.observers import observer
from fl_dpftrl.support.files import durable, mark, paths

_Args = ParamSpec('_Args')


def opening(init: Callable[_Args, None]) -> Callable[_Args, None]:
  """Lets all go that a run locked if opening it fails or is interrupted."""

  @functools.wraps(init)
  def opened(*args: _Args.args, **kwargs: _Args.kwargs) -> None:
    run: Any = args[0]
    try:
      durable.letting_go(init)(*args, **kwargs)
    except BaseException:
      if hasattr(run, 'guard'):
        run.guard.log.release()
        run._close_files()
      raise

  return opened


class LiveRun(contextlib.AbstractContextManager[Any]):
  """A run that goes on, in a folder of its own: the base class of `Run` and its kin.

  The folder has the participation log, strategy.json and claim.json; `open_run`, `replay` and every
  command take it, while the run goes on and afterwards.

  Attributes:
    folder: the folder, of one run.
    claim: what the run claims, of the rounds that participation and budget allow.
    delta: δ of the budget, and of figures that are given none.
    max_epsilon: privacy budget of this folder by the declared participation: rounds that would pass
      it are refused. None for no limit. Another folder with the same devices spends more.
    exact_metrics: names of measurements that depend on clients without noise.
    setting: what a report says beyond the log.
    guard: admits devices, and keeps log and budget.
    identity: random name of the run, as its log has it; None before the folder is open.
  """

  identity: str | None = None

  @opening
  def __init__(
    self,
    folder: str | os.PathLike[str],
    claim: run_claim.Claim,
    watching: observer.Observers,
    *,
    delta: float | None = None,
    max_epsilon: float | None = None,
    units: unit_tables.Given | None = None,
    population: shared_budgets.Population | None = None,
    exact_metrics: Sequence[str] = (),
    setting: settings.Setting = settings.Setting(),
    is_private: bool = False,
    num_coordinates: int | None = None,
  ):
    """Opens a folder; one with a run of this claim is continued at its next round.

    Args:
      folder: made where it does not exist; if is_private, only its owner may read it.
      claim: what the run claims; its participation is that of all planned rounds. Without one, each
        device may take part once in every round.
      watching: observers of the run, as one.
      delta, max_epsilon, exact_metrics, setting: see the attributes.
      units: table of who owns which device, or its files, with a `PerUnit` participation; see
        docs/units.md.
      population: `Population` on whose budgets all its runs draw together; its δ is that of the run
        if none is given.
      num_coordinates: coordinates of an update, for the claim's canaries.

    Raises:
      ValueError: for an argument out of range, a budget that is too small for one round, and a
        folder of another run or in use.
      LogError, LostStateError: if files of the run are missing, damaged or copies.
    """
    if population is not None and not isinstance(population, shared_budgets.Population):
      raise ValueError('population must be a Population')
    if population is not None and delta is None:
      delta = population.claim.delta
    self.folder, self.delta, self.max_epsilon = paths.local(folder), delta, max_epsilon
    self.exact_metrics = tuple(exact_metrics)
    if claim.canaries is not None and claim.participation is None:
      raise ValueError(canaries.NEED)
    budget.check(claim, max_epsilon, delta)
    self.setting = setting
    if max_epsilon is not None and delta is not None:
      claimed = verdicts.ClaimedEpsilon(max_epsilon, delta)
      self.setting = dataclasses.replace(setting, claimed=claimed)
    continued_claims.check_report_goal(claim, self.folder)
    # Whoever knows the batches has no amplified guarantee.
    mode = 0o700 if is_private or claim.is_drawn else 0o777
    is_new, log = not self.folder.exists(), self.folder / ledger_format.NAME
    self.folder.mkdir(mode, parents=True, exist_ok=True)
    try:
      self.guard = guards.Guard(
        claim, delta, max_epsilon, log=log, population=population, units=units
      )
    except BaseException:
      if is_new:
        with contextlib.suppress(OSError):  # Unless something is in it.
          self.folder.rmdir()
      raise
    self.claim, self._turns = self.guard.claim, live_round.Turns(self.folder, watching)
    self._is_ended = False  # For observers.
    self.identity, begun = self.guard.log.run, self.next_round
    self.claim.save(self.folder, self.identity, begun=begun > 0)
    self._records: canary_records.CanaryRecords | None = None
    if claim.canaries is not None:
      facts = self.folder, claim, self.identity, num_coordinates, begun
      self._records = canary_records.CanaryRecords(*facts)

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *unused: Any) -> None:
    try:
      self.close()
    finally:
      self.guard.log.release()  # If an interrupt kept `close` from it.

  @property
  def is_drawn(self) -> bool:
    """True where batches or bins are drawn in secret."""
    return self.claim.is_drawn

  @property
  def next_round(self) -> int:
    """The first round that is not recorded, and its row of noise."""
    return self.guard.num_rounds

  @property
  def max_rounds(self) -> int:
    """Rounds that strategy, participation and budget allow."""
    planned = self.guard.max_rounds
    return schemas.LAST_ROW if planned is None else planned

  def admissible(self, device_ids: id_columns.Ids, *, at_most: int | None = None) -> np.ndarray:
    """Returns those that may take part in the next round, in their order; records nothing.

    Args:
      device_ids: candidates; ValueError for one whose id no log takes, and BudgetSpentError for any
        if the round would pass the budget.
      at_most: size of the cohort; None for all, as where participation is drawn.
    """
    return self.guard.check(device_ids, at_most=at_most).device_ids

  def require_new(self) -> None:
    """Raises LostStateError if there were rounds: for a loop that finds no stored model.

    Model, optimiser and noise would begin anew, and the rounds of the log stay spent. A loop stores
    its first state before round 0, so that a crash leaves none without.
    """
    if self.next_round:
      raise mark.LostStateError(
        f'{self.guard.log.path} has {self.next_round} rounds, and no state of them is there: put'
        ' the newest one back, or begin a run in another folder, whose loss adds to this one'
      )

  def extend_units(self, units: unit_tables.Given) -> None:
    """Takes a table of units over that has further rows, from the next round on.

    LogError for a table whose first rows are not those of the one so far, and for a further row of
    a round that was begun.
    """
    self.guard.extend_units(units)

  def status(self) -> 'status.Status':
    """Returns public figures of the run: rounds, ε so far, what is left of budget and disk."""
    return status.current(self.guard, self)

  def privacy_loss(self, delta: float | None = None) -> accounting.Guarantee:
    """Returns the worst case of the rounds so far by the log, or their loss by the sampling.

    Rounds that follow add to it: promise `statement().headline`, that of all declared rounds. A
    loss budget has its whole, whatever was spent of it.

    Raises:
      ValueError: before the first round, without delta, for a run that guarantees nothing, and for
        a log that contradicts the sampling.
    """
    if self.claim.void_reason is not None:
      raise ValueError(f'there is no ε: {self.claim.void_reason}')
    delta = self._delta(delta)
    self._check_begun()
    if not self.is_drawn:
      return self.guard.privacy_loss(delta)
    part = self.statement(delta).parts[-1]
    if not part.holds:
      raise ValueError('there is no ε: the log contradicts the sampling')
    return part.guarantee

  def statement(self, delta: float | None = None) -> statements.Statement:
    """Returns what the log proves of the rounds so far; ValueError before the first one."""
    delta = self._delta(delta)
    self._check_begun()
    log = participation_log.read_log(self.guard.log.path)
    run = opened_runs.RecordedRun.of(log, self.claim.strategy, self.guard.units)
    return replays.replay(run, delta=delta)

  def report(self, path: str | os.PathLike[str], delta: float | None = None) -> None:
    """Writes the statement as a page, HTML, for the run's owner."""
    from fl_dpftrl.prove.reports import (
      privacy,  # Loads matplotlib, which wants a folder to write to.
    )

    delta = self._delta(delta)
    privacy.write_report(path, self.statement(delta), setting=shown_setting(self, delta))

  def close(self) -> None:
    """Turns the log into one Parquet file, and lets another process use the folder.

    A round that is open has failed then. If the file cannot be written, the folder is let go all
    the same, and `close` tries again.
    """
    if self._is_ended:
      return
    try:
      self._turns.close()
    finally:
      try:
        with self._turns.lock:
          self.guard.close()
      finally:
        self._close_files()
    with self._turns.lock:
      is_first, self._is_ended = not self._is_ended, True
    if is_first:
      self._turns.observers.end(self)

  def _close_files(self) -> None:
    """Closes what a kind of run has open beside the log; again where an error came between."""

  def _check_begun(self) -> None:
    if not self.next_round:
      raise ValueError('there is no round yet')

  def _delta(self, delta: float | None) -> float:
    """Returns δ as given, or that of the run; ValueError without either."""
    delta = self.delta if delta is None else delta
    if delta is None:
      raise ValueError('delta must be given, here or to the run')
    gaussian.check_delta(delta)
    return delta


def shown_setting(run: LiveRun, delta: float) -> settings.Setting:
  """Returns what a report says beyond the log, with the run's name and audit, and a command."""
  return dataclasses.replace(
    run.setting,
    run=run.folder.resolve().name,
    command=publication.command_of_folder(run.folder, delta, run.guard.units is not None),
    canaries=run_audit.shown([run.folder], delta),
  )
