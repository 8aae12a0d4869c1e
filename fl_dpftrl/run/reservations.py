"""Rounds of one run in the ledger of its population, before the log of the run has them."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import (
  id_columns,
  id_spellings,
  ledger_format,
  ledgers,
  named_units,
  pseudonyms,
  refusals,
  unit_tables,
)
from fl_dpftrl.participation import gates
from fl_dpftrl.participation.counts import population_losses
from fl_dpftrl.participation.rules import per_units
from fl_dpftrl.run import admission, charges, shared_budgets


class Reservations:
  """Rounds that a run reserves in its population.

  A reservation is durable before the round is in the log of the run. After an error or a crash
  between both, the round counts as begun: its devices stay charged, its row of noise is used up.
  """

  def __init__(
    self,
    population: shared_budgets.Population,
    claim: run_claim.Claim,
    log: ledgers.LogWriter,
    units: Callable[[], unit_tables.UnitTable | None],
  ):
    """Opens the run in the ledger of its population, or takes over what that has.

    Args:
      units: function that returns the table of who owns which device; None without one.

    Raises:
      ValueError: for another claim than before.
      LogError: for a run that has rounds which the ledger lacks, or other ones.
    """
    self._population, self._log, self._units = population, log, units
    self._charged: list[list[Any]] = []  # Cohorts that are not durable yet.
    self._place = population.open_run(log.run, claim, log.path.parent, has_begun=log.num_rounds > 0)
    with self.exclusive():
      pass

  def limited(self, gate: Any) -> Any:
    """Returns the gate that admits those whom a gate admits, while their budget is enough."""
    if isinstance(gate, per_units.UnitGate):
      return gate.limited(
        lambda inner: PopulationGate(inner, lambda numbers, rows: self._reasons(numbers, rows))
      )
    return PopulationGate(gate, lambda ids, rows: self._population.reasons(self._place, ids, rows))

  def _reasons(self, numbers: np.ndarray, rows: int) -> np.ndarray:
    """Returns why units, by their numbers in the table, may not have so many rows."""
    ids, names = self._unit_ids(numbers).to_numpy(zero_copy_only=False), self._population.names
    reasons = self._population.reasons(self._place, ids, rows)
    if names is None:
      return reasons
    return np.where(names.have_ids(ids.tolist()), reasons, population_losses.WITHDRAWN)

  def _unit_ids(self, numbers: np.ndarray) -> pa.Array:
    table: Any = self._units()  # Without one, devices have the budget.
    return id_columns.column(table.ids(numbers))

  def admit(self, gate: Any, column: pa.Array, at_most: int | None) -> admission.Admission:
    """Returns who may take part in the next round, as `admission.admit`; within `exclusive`."""
    names = self._population.names
    if names is None:
      if not isinstance(gate, per_units.UnitGate):
        self._population.check_kind(column)
      return admission.admit(gate, column, at_most=at_most, spellings=self.spellings)
    ids = column.to_pylist()
    closed, unnamed = names.closed(ids), self._population.cannot_name(ids)
    reasons = [
      population_losses.WITHDRAWN if is_closed else _HEXADECIMAL if cannot else ''
      for is_closed, cannot in zip(closed, unnamed)
    ]
    admissible = [device_id for device_id, reason in zip(ids, reasons) if not reason]
    keys = list(map(pseudonyms.key, admissible))
    new_names = dict(zip(keys, pseudonyms.new_names(len(keys))))
    candidates = [
      name or new_names[key] for key, name in zip(keys, names.find(admissible), strict=True)
    ]
    ids_by_name = dict[Any, Any](zip(candidates[::-1], admissible[::-1]))  # The first one counts.
    if isinstance(gate, per_units.UnitGate):
      gate.owned(np.array(candidates, object), np.flatnonzero(np.array(reasons) == ''))
    admitted = admission.admit(gate, pa.array(candidates, pa.string()), at_most=at_most)
    by_device: Any = PopulationGate(gate, self._reasons)  # Whoever owns it.
    turned_away = [
      admission.TurnedAway(device_id, reason, -1, 0, by_device)
      for device_id, reason in zip(ids, reasons)
      if reason
    ]
    turned_away += [
      device._replace(device_id=ids_by_name[device.device_id]) for device in admitted.turned_away
    ]
    admitted_ids = [ids_by_name[name] for name in admitted.column.to_pylist()]
    return dataclasses.replace(
      admitted, turned_away=tuple(turned_away), ids=pa.array(admitted_ids, column.type)
    )

  def retraced(self, column: pa.Array, cohort: Sequence[Any]) -> tuple[pa.Array, set[Any]]:
    """Returns candidates as the log has them, and those of a cohort whose ids were erased since."""
    names = self._population.names
    if names is None:
      return column, set()
    candidates = pa.array(filter(None, names.find(column.to_pylist())), pa.string())
    return candidates, {name for name, has_id in zip(cohort, names.have_ids(cohort)) if not has_id}

  def table_of(self, units: unit_tables.UnitTable) -> unit_tables.UnitTable:
    """Returns the table of units that the log cites: one of names, where logs hold these."""
    names, path = self._population.names, self._log.path.with_name(unit_tables.NAME)
    if names is None:
      return units
    for ids in (units.device_ids, units.unit_ids):
      if True in (unnamed := self._population.cannot_name(ids.to_pylist())):
        row = unnamed.index(True) + 1
        raise refusals.LogError(f'{units.path}, row {row}: an id {charges.HEXADECIMAL}')
    return named_units.extended(names, units, path, self._log.num_rounds)

  @property
  def spellings(self) -> list[id_spellings.RecordedSpellings]:
    """How ids of devices are spelt: here, and in all runs where each device has a budget."""
    return [self._log.spellings, *filter(None, [self._population.spellings])]

  @contextlib.contextmanager
  def exclusive(self) -> Iterator[None]:
    """Keeps other runs of the population out; rounds that it has reserved are in the log then."""
    with self._population.exclusive() as is_within:
      if is_within:
        yield
        return
      self._charged = []
      num_reserved, head = self._population.rounds_of(self._place)
      if num_reserved > self._log.num_rounds:
        for second, kind, text in self._population.reserved(self._place, self._log.num_rounds):
          column, citation = ledger_format.ids_of(kind, text), kind[2:]
          self._log.begin(self._log.num_rounds, [column], second, citation)
      if (num_reserved, head.hex()) != (self._log.num_rounds, self._log.digest):
        raise refusals.LogError(
          f'{self._log.path}: its population has reserved {num_reserved} rounds of it, and it has'
          f' {self._log.num_rounds}: put the newest ledger of both back'
        )
      yield

  def charge(self, admitted: admission.Admission, citation: str, gate: Any) -> None:
    """Charges the cohort of the next round, whose new names are durable then; within `exclusive`.

    Args:
      admitted: the devices.
      citation: of the table of units; '' without one.
      gate: of the run, before it has the round.
    """
    column, names = admitted.column, self._population.names
    if names is not None and admitted.ids is not None:
      ids = admitted.ids.to_pylist()
      new = [i for i, name in enumerate(names.find(ids)) if name is None]
      names.add([ids[i] for i in new], column.take(pa.array(new, pa.int64())).to_pylist())
    kind, text = ledger_format.stored(sorted(column.to_pylist()))
    cohort: list[Any] = [ledger_format.cited(kind, citation), text]
    units, rows = column, None  # A row each.
    if isinstance(gate, per_units.UnitGate):
      numbers, rows = gate.owned(column.to_numpy(zero_copy_only=False))
      units = self._unit_ids(numbers)
      cohort.append([*ledger_format.stored(units.to_pylist()), rows.tolist()])
    self._population.charge(self._place, units, rows)
    self._charged.append(cohort)

  def reserve(self, second: int) -> None:
    """Makes what was charged durable; within the same `exclusive`; second: UTC, of the rounds."""
    self._population.reserve(self._place, second, self._charged)


class PopulationGate(gates.Gate):
  """A gate that admits those whom the gate of their run admits, while their budget is enough.

  Args:
    gate: of the run.
    reasons: function from units and rows of each to why they may not have them; '' where they may.
  """

  def __init__(self, gate: gates.Gate, reasons: Callable[[np.ndarray, int], np.ndarray]):
    self._gate, self._reasons = gate, reasons

  @property
  def seen(self) -> Any:  # type: ignore[override]
    return self._gate.seen

  def reasons(self, units: np.ndarray, rows: int = 1) -> np.ndarray:
    reasons = self._gate.reasons(units, rows)
    return np.where(reasons == '', self._reasons(units, rows), reasons)

  def record(self, units: np.ndarray, rows: np.ndarray | None = None) -> None:
    self._gate.record(units, rows)

  def clear(self) -> None:
    self._gate.clear()

  def sentence(self, reason: str, last_round: int, participations: int) -> str:
    return _SENTENCES.get(reason) or self._gate.sentence(reason, last_round, participations)


_HEXADECIMAL = 'hexadecimal'
_SENTENCES = {
  _HEXADECIMAL: charges.HEXADECIMAL,
  population_losses.SPENT: 'would pass its budget over all runs: a later round may not',
  population_losses.LIFE: 'has no budget for any further round of any run like this one',
  population_losses.CLASS: 'has no class, and the population has no default one',
  population_losses.WITHDRAWN: 'withdrew from the population',
}
"""Why the population turns a unit away, in words that follow the unit."""
