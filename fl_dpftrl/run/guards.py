"""A guard that keeps a run to its declared schema and privacy budget."""

import contextlib
import dataclasses
import math
import operator
import os
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import id_columns, ledger_format, ledgers, refusals, unit_tables
from fl_dpftrl.mechanisms import base, schemas, sensitivities
from fl_dpftrl.participation.accounting import guarantees
from fl_dpftrl.participation.rules import per_units
from fl_dpftrl.run import admission, budget, continued_claims, reservations, shared_budgets
from fl_dpftrl.support import callers
from fl_dpftrl.support.files import durable, paths
from fl_dpftrl.support.text import messages, roundings

_SHORT, _USUAL = 1000, 10.0  # rounds, and how much more one participation may cost beyond them


class BudgetSpentError(ValueError):
  """A round that would pass the privacy budget, or the declared rounds."""


class RepeatedRowError(ValueError):
  """A noise row that was given out before, and would enter a second sum."""


class Guard(contextlib.AbstractContextManager['Guard']):
  """Admits devices to rounds, records cohorts, and gives each noise row out once; for a `LiveRun`.

  Before a round, `admit` turns away the devices that do not keep to the participation, refuses a
  round that would pass the budget, and records the cohort durably. The budget is that of one log.
  Threads may share a guard; a process that was forked from this one may not.

  Attributes:
    claim: what the run claims, of the rounds that schema and budget allow.
    gate: decides, by schema or secret bins, who may take part; None where batches are drawn.
    max_rounds: rounds that strategy, schema or sampling, and budget allow; None for no limit.
    log: the participation log.
  """

  def __init__(
    self,
    claim: run_claim.Claim,
    delta: float | None = None,
    max_epsilon: float | None = None,
    *,
    log: str | os.PathLike[str],
    population: shared_budgets.Population | None = None,
    units: unit_tables.Given | None = None,
  ):
    """Opens the log, and computes how many rounds the budget allows.

    Args:
      claim, delta, max_epsilon, population, units: see `LiveRun`.
      log: path of the participation log, ending in .parquet. A log that exists is continued.

    Raises:
      ValueError: if an argument is out of range, or the budget is too small for one round.
      LogError: if the log is of another run, schema or noise, or cites another table of units.
    """
    budget.check(claim, max_epsilon, delta)
    identity = None if population is None else population.identity
    if claim.population not in (None, identity):
      raise ValueError('population: the claim names one, which must be given too')
    claim = dataclasses.replace(claim, population=identity)
    self.claim, self.lock = claim, durable.ThreadLock(log)
    is_declared = claim.participation is not None
    self._planned = claim.answers.num_rows if is_declared else claim.strategy.max_rounds
    self.max_rounds, self._budget = self._planned, None
    if max_epsilon is not None:
      terms = guarantees.Terms(delta)
      recorded_rounds = continued_claims.num_rounds(claim, paths.local(log).parent)
      self._budget = budget.Budget(claim, terms, max_epsilon, recorded_rounds)
      self.max_rounds = self._budget.max_rounds
      self.claim = self._budget.claim
    if is_declared and claim.answers.num_rounds is None:
      _warn_of_tail(claim.strategy)
    self.gate = self.claim.answers.gate(self.claim.strategy)
    if (units is None) == isinstance(self.gate, per_units.UnitGate):
      raise ValueError('units, a table, and a PerUnit participation need each other')
    if population is not None:
      population.check(self.claim)
    table = None if units is None else unit_tables.opened(units)
    self._reservations: reservations.Reservations | None = None
    self._tables: list[unit_tables.UnitTable] = []  # Of units; the gate reads the last one, too.
    self.log = self._opened(claim, max_epsilon, log)
    try:
      if population is not None:
        self._reservations = reservations.Reservations(
          population, self.claim, self.log, lambda: self.units
        )
        self.gate = self._reservations.limited(self.gate)
      if table is not None:
        self._take_units(table)
      self._num_followed = -1  # Rounds of the log that the gate has; −1 while that is in doubt.
      self._follow_log()
    except BaseException:
      self.log.release()
      raise

  def _opened(
    self, claim: run_claim.Claim, max_epsilon: float | None, log: str | os.PathLike[str]
  ) -> ledgers.LogWriter:
    """Opens the log; where it is of another run, says what differs beside rounds of the budget."""
    try:
      return ledgers.LogWriter(log, self.claim)
    except refusals.LogError:
      begun, folder = self.claim, paths.local(log).parent
      if max_epsilon is not None:
        begun = continued_claims.as_begun(claim, folder)
      if begun in (claim, self.claim):
        raise
      ledgers.LogWriter(log, begun).release()
      raise refusals.LogError(
        f'max_epsilon={max_epsilon:g} allows {self.max_rounds} rounds, and the run in {folder} was'
        f' begun with {begun.answers.num_rounds}: give num_rounds and max_epsilon as before'
      ) from None

  def __repr__(self) -> str:
    text = f'Guard(round {self.log.num_rounds} of {self.max_rounds}, {self.log.path})'
    return messages.one_line(text, 120)

  def __exit__(self, *unused) -> None:
    try:
      self.close()
    finally:
      self.log.release()  # If an interrupt kept `close` from it.

  @property
  def num_rounds(self) -> int:
    """Rounds that were admitted; the next round, and its noise row."""
    return self.log.num_rounds

  @durable.one_at_a_time
  def privacy_loss(self, delta: float) -> guarantees.Guarantee:
    """Returns the worst case of the rounds so far by the log, where a gate follows it.

    That of a loss budget is the whole of it.
    """
    participation: Any = self.claim.answers
    self._follow_log()
    if participation.num_rounds is not None and self.gate:
      participation = self.gate.seen.schema
    return self.claim.guarantee(participation, delta)

  @durable.one_at_a_time
  def extend_units(self, units: unit_tables.Given) -> None:
    """Takes a longer table of units over; see `LiveRun.extend_units`."""
    if self.units is None:
      raise ValueError('units were not given when the run was opened')
    self._take_units(unit_tables.opened(units))

  @property
  def units(self) -> unit_tables.UnitTable | None:
    """The table of units; None for a run without one."""
    return self._tables[-1] if self._tables else None

  def _take_units(self, table: unit_tables.UnitTable) -> None:
    with self._exclusive():
      table = self._reservations.table_of(table) if self._reservations else table
    for cited in (self.log.units, [(0, each.citation) for each in self._tables[-1:]]):
      table.check_cited(cited, self.num_rounds)
    tables = self._tables
    if isinstance(self.gate, per_units.UnitGate):
      self.gate.owners = lambda device_ids, t: tables[-1].owners(id_columns.column(device_ids), t)
    tables.append(table)  # One step: devices are admitted by the table that their round cites.

  def retraced(self, t: int, device_ids: id_columns.Ids) -> tuple[pa.Array, set[Any]]:
    """Returns candidates of a round as the log has them, and its devices that were erased since."""
    column, cohort = id_columns.column(device_ids), self.log.cohort(t).tolist()
    return self._reservations.retraced(column, cohort) if self._reservations else (column, set())

  def canary_ids(self, kind: pa.DataType) -> pa.Array | None:
    """Returns the ids of the run's canaries where its log has ids of a type; None without any."""
    canaries = self.claim.canaries
    return canaries and canaries.ids(self.log.run, kind)

  @durable.one_at_a_time
  def check(self, device_ids: id_columns.Ids, *, at_most: int | None = None) -> admission.Admission:
    """Returns what `admit` would, without recording anything; at_most not where it is drawn."""
    with self._exclusive():
      self._follow_log()
      return self._checked(self.num_rounds, device_ids, at_most)

  def _exclusive(self) -> contextlib.AbstractContextManager[None]:
    """Keeps other runs of the population out, if there is one."""
    return self._reservations.exclusive() if self._reservations else contextlib.nullcontext()

  def _checked(
    self, t: int, device_ids: id_columns.Ids, at_most: int | None
  ) -> admission.Admission:
    if self.log.is_sealed:
      raise BudgetSpentError(f'round {t} may not follow: {ledger_format.SEALED}')
    if self._planned is not None and t >= self._planned:
      raise BudgetSpentError(f'round {t} is beyond the {self._planned} rounds that there are')
    if self._budget is not None and t >= self._budget.max_rounds:
      raise BudgetSpentError(
        f'round {t} would pass max_epsilon={self._budget.max_epsilon:g}: by the declared schema,'
        f' {t + 1} rounds have ε = {roundings.up(self._budget.epsilon(t + 1))}'
      )
    if at_most is not None and self.claim.is_drawn:
      raise ValueError(
        f'at_most={at_most} is refused beside {type(self.claim.participation).__name__}: whoever'
        ' was drawn takes part, as the guarantee is void if others take their place; leave it out'
      )
    column = id_columns.column(device_ids)
    if self.gate is None:
      return admission.Admission(t, column)
    if self._reservations:
      return self._reservations.admit(self.gate, column, at_most)
    return admission.admit(
      self.gate,
      column,
      at_most=at_most,
      spellings=[self.log.spellings],
      canaries=self.canary_ids(column.type),
    )

  @durable.one_at_a_time
  def admit(
    self,
    device_ids: id_columns.Ids,
    *,
    row: int | None = None,
    at_most: int | None = None,
    at_least: int = 0,
    timestamp: int | None = None,
  ) -> admission.Admission:
    """Admits devices to the next round, whose cohort is durably recorded on return.

    Arguments, of which device_ids are the candidates, and errors are those of `Run.round`.
    """
    if row is not None:
      self._check_row(-1 if isinstance(row, bool) else operator.index(row))
    if at_least and self.claim.is_drawn:  # A refusal would tell the size of a secret batch.
      raise ValueError(f'at_least={at_least} is refused where participation is drawn: leave it out')
    return self._begin([device_ids], timestamp, at_most, at_least)[0]

  @durable.one_at_a_time
  def reserve(
    self, cohorts: Sequence[id_columns.Ids], *, least: int = 0, timestamp: int | None = None
  ) -> list[admission.Admission]:
    """Admits whole cohorts to the next rounds at the cost of one: all are recorded, or none.

    Args:
      cohorts: device ids of each round, as `admit` takes them.
      least: fewest devices of each.
      timestamp: UTC second of the rounds; None for now.

    Raises:
      ValueError: for a device that may not take part; else see `admit`.
    """
    return self._begin(cohorts, timestamp, least=operator.index(least))

  def _begin(
    self,
    cohorts: Sequence[id_columns.Ids],
    timestamp: int | None,
    at_most: int | None = None,
    at_least: int = 0,
    least: int | None = None,
  ) -> list[admission.Admission]:
    """Admits cohorts, which are whole if there is a least size, to the next rounds, or none."""
    admitted: list[admission.Admission] = []
    with self._exclusive():
      first, citation = self.num_rounds, '' if self.units is None else self.units.citation
      self._follow_log()
      try:
        for t, device_ids in enumerate(cohorts, first):
          if admitted:  # Who may take part depends on the round before.
            self._record(admitted[-1].column)
          admitted.append(self._checked(t, device_ids, at_most))
          admitted[-1].check_size(at_least)
          if least is not None:
            admitted[-1].check_whole(least)
          elif not self.claim.is_drawn and not len(admitted[-1].column):
            callers.warn(
              'a round admits no device: its row of noise is used up, and its mean would be only'
              ' noise; wait until devices are due'
            )
          admitted[-1] = admitted[-1].beside(self.claim, self.log.run, self.gate)
          if self._reservations:
            self._reservations.charge(admitted[-1], citation, self.gate)
        now = int(time.time()) if timestamp is None else timestamp
        columns = [each.column for each in admitted]
        if self._reservations:  # What the log would refuse is refused before.
          self.log.check(first, columns, now, citation)
          self._reservations.reserve(now)
        self.log.begin(first, columns, now, citation)
        for last in admitted[-1:]:
          self._record(last.column)
      except BaseException:
        self._follow_log()
        raise
    return admitted

  def _record(self, column: pa.Array) -> None:
    if self.gate:
      num_rounds, self._num_followed = self._num_followed, -1  # Until the gate has all of it.
      self.gate.record(column.to_numpy(zero_copy_only=False))
      self._num_followed = num_rounds + 1

  def _follow_log(self) -> None:
    """Gives the gate the rounds of the log anew where an error or an interrupt left it others."""
    if self.gate and self._num_followed != self.num_rounds:
      self.gate.clear()
      self._num_followed = 0
      for t in range(self.num_rounds):
        self._record(self.log.column(t))

  def close(self) -> None:
    """Writes the log as one Parquet file; nothing can be admitted then.

    If the file cannot be written, the log is let go all the same, and `close` tries again.
    """
    self.log.close()

  def _check_row(self, row: int) -> None:
    t = self.num_rounds
    if row > t or row < 0:
      raise ValueError(
        f'noise row {row} does not belong to round {t}: {self.log.path} lacks rounds whose rows'
        ' were used; put the whole log back'
      )
    if row < t:
      raise RepeatedRowError(
        f'noise row {row} was given out for round {row}, and would enter a second sum in round {t};'
        f' skip the rows before row {t} first, with factory.skip_row'
      )


def _warn_of_tail(strategy: base.Strategy) -> None:
  """Warns of a strategy whose rows beyond a long run cost a device far more than those in it."""
  once = schemas.Schema(_SHORT, max_participations=1)
  within = sensitivities.sensitivity(strategy, once).value
  factor = math.sqrt(strategy.endless_gram().own) / within
  if factor > _USUAL:
    callers.warn(
      f'without an end, one participation has {factor:,.0f} times the sensitivity of {_SHORT}'
      f' rounds: this {strategy.family} is for a last round; take one optimised with horizons'
    )
