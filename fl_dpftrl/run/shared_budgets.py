"""A population whose runs draw on one budget of every device, or person."""

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from fl_dpftrl.claims import population_claim
from fl_dpftrl.logs import id_columns, ledger_format, population_ledger, pseudonyms, refusals
from fl_dpftrl.run import charges
from fl_dpftrl.support.files import durable, paths
from fl_dpftrl.support.text import messages

_SECRETS = 'noise', 'checkpoints'  # Of a `PrivateAggregator` and of `train`, in a run's folder.


class Population(charges.Charges):
  """One budget for each device, or person, that all runs of a population draw on together.

      fleet = dpftrl.Population('fleet', epsilon=4.0, delta=1e-6)
      with dpftrl.Run('words', claim, population=fleet) as run: ...

  Each run admits by Σ_r Q_r / σ_r² over all runs of the population, live ones and finished ones, in
  this process and in others of the machine. A cohort is charged, durably, before anything of its
  round is handed out, and stays charged whatever becomes of the round. What all runs release, at
  any time and in any order, is then within ε of each class.

  The folder holds the ledger, which is as confidential as a participation log. The same call opens
  it again. Threads may share a population; a process that was forked from this one may not.

  Attributes:
    folder: the folder.
    claim: budgets, δ, default class and unit.
    names: names of devices and their owners; None where logs hold ids.

  Source: docs/population-budget.md, theorem 1.
  """

  @durable.letting_go
  def __init__(
    self,
    folder: str | os.PathLike[str],
    *,
    epsilon: float | Mapping[str, float] | None = None,
    delta: float | None = None,
    default: str | None = population_claim.EVERYBODY,
    unit: str = 'device',
    names: str | os.PathLike[str] | None = None,
    salt: str | os.PathLike[str] | None = None,
    moved: bool = False,
  ):
    """Opens a population, or begins it.

    Args:
      folder: made where it does not exist; only its owner may read it.
      epsilon: budget of everybody, or of each class by its name; None to open one that exists.
      delta: δ of the budgets; None with epsilon.
      default: class of units that are given none; None to turn them away until `classify` names it.
      unit: what has a budget: 'device', or the name of the `PerUnit` of all runs, such as 'person'.
      names, salt: files in two folders apart from this one, for logs and tables of units that hold
        random names in place of ids, so that one can be erased; see `forget`. Each call gives them.
      moved: whether the folder was moved, or put on another disk, and nobody used it since.

    Raises:
      ValueError: for an argument out of range, and budgets that are not those of the ledger.
      LogError, LostStateError: for a ledger that is damaged or of an earlier moment.
    """
    self.folder = paths.local(folder)
    claim = None
    if epsilon is not None or delta is not None:
      if epsilon is None or delta is None:
        raise ValueError('epsilon and delta must be given together')
      epsilons = epsilon if isinstance(epsilon, Mapping) else {population_claim.EVERYBODY: epsilon}
      claim = population_claim.PopulationClaim(
        epsilons=epsilons, delta=delta, default=default, unit=unit
      )
    if (names is None) != (salt is None):
      raise ValueError('names and salt must be given together')
    if names is not None and salt is not None:
      pseudonyms.check_apart(names, salt, self.folder / population_ledger.NAME)
    if not (self.folder / population_ledger.NAME).exists():
      self._begin(claim, names, salt)
    table = None
    if names is not None and salt is not None:
      table = pseudonyms.Names(names, salt, is_new=False)
    super().__init__(self.folder, table)
    if moved:
      with self._ledger.exclusive():
        self._ledger.trust()
    with self.exclusive():
      self.claim = self._state.claim
    if claim is not None and dataclasses.replace(claim, names=self.claim.names) != self.claim:
      raise ValueError(
        f'{self._ledger.path}: epsilon, delta, default and unit must be those of before:'
        f' {messages.one_line(self.claim, 160)}'
      )

  def __repr__(self) -> str:
    return messages.one_line(f'Population({self.folder}, {self.claim})', 200)

  @durable.letting_go
  def classify(self, units: id_columns.Ids, name: str) -> None:
    """Gives units a class from their next round on; what they were charged stays.

    The class may depend on law, contract, consent and releases, and on nothing that training
    protects.

    Args:
      units: text or whole numbers, of the type of the ids of all runs.
      name: one of the classes that have a budget.
    """
    if not isinstance(name, str) or name not in self.claim.epsilons:
      raise ValueError(f'name must be a class of epsilon, got {messages.quoted(name)}')
    self._append_units(population_ledger.CLASSES, units, {'name': name})

  @durable.letting_go
  def withdraw(self, units: id_columns.Ids) -> None:
    """Turns units away in all runs from their next round on; what they were charged stays."""
    self._append_units(population_ledger.WITHDRAWN, units, {})

  @durable.letting_go
  def forget(self, units: id_columns.Ids) -> int:
    """Erases ids: no file of the population or its runs has them, and they never come back.

    Names, rounds and charges stay, so that every statement stays as it is. Erase several at a time:
    names in the logs that the table lacks are those of the erased. No device of a person who is
    erased takes part again where a table names them; give its id too, against one that does not.
    Repeat a call that was cut short: the names may be deleted, and the file not yet written anew.

    Args:
      units: ids of devices, and of people who own them; what both are called is one id.

    Returns:
      How many of them had a name.

    Raises:
      ValueError: for a population without names.
    """
    if self.names is None:
      raise ValueError('units: the population has no names, so its logs hold ids')
    column = self._column(units)
    with self.exclusive():
      num_erased = self.names.erase(column.to_pylist())
      self._append(population_ledger.ERASED, {'changes': self.names.changes})
    return num_erased

  def _column(self, units: id_columns.Ids) -> pa.Array:
    column = id_columns.column(units, 'units')
    if any(self.cannot_name(column.to_pylist())):
      raise ValueError(f'units: one {charges.HEXADECIMAL}')
    return column

  def _append_units(self, kind: str, units: id_columns.Ids, content: dict[str, Any]) -> None:
    column = self._column(units)
    if not len(column):
      return
    with self.exclusive():
      if self.names is not None:
        column = pa.array(filter(None, self.names.named(column.to_pylist())), pa.string())
        content = {**content, 'changes': self.names.changes}
      self.check_units(column)
      id_kind, text = ledger_format.stored(sorted(set(column.to_pylist())))
      self._append(kind, {**content, 'kind': id_kind, 'ids': text})

  @durable.letting_go
  def end(self, folder: str | os.PathLike[str], *, noise_is_deleted: bool = False) -> None:
    """Ends a run for ever, and charges only for the rows of noise that it had.

    The run is sealed, the noise of a `PrivateAggregator` or of `train` in its folder is deleted,
    and then it is recorded. Noise that is elsewhere, and every copy, must be deleted before.

    Args:
      folder: of the run, which is closed.
      noise_is_deleted: whether the noise of another loop, such as the states of a TFF process, was
        deleted with every copy.

    Raises:
      ValueError: for a run that is open, not of the population, or of a loop whose noise was not
        said to be deleted.
      LogError: for one that has other rounds than the ledger.
    """
    folder = paths.local(folder)
    if not ledger_format.path_of(folder / ledger_format.NAME).exists():
      raise ValueError(f'folder={messages.quoted(str(folder))} is no folder of a run')
    is_here = noise_is_deleted or any((folder / name).exists() for name in _SECRETS)
    with self.exclusive():
      places = list[int]()

      def check(state: ledger_format.State) -> None:
        if not (is_here or state.is_sealed):  # Else an end that was cut short deleted it.
          raise ValueError(
            f'{folder}: the noise of this run is elsewhere, such as in states of a TFF process:'
            ' delete it with every copy, and say noise_is_deleted=True'
          )
        places.extend(i for i, r in enumerate(self._state.runs) if r.identity == state.run.hex())
        if not places:
          raise ValueError(f'{folder}: is of no run of {self.folder}')
        run = self._state.runs[places[0]]
        if (run.num_rounds, run.head) != (state.num_rounds, state.head):
          raise refusals.LogError(
            f'{folder}: lacks rounds that were reserved; open and close it first'
          )

      ledger_format.seal(folder / ledger_format.NAME, check)
      for name in _SECRETS:
        with contextlib.suppress(FileNotFoundError):
          shutil.rmtree(folder / name)
      durable.sync_folder(folder)
      if not self._state.runs[places[0]].has_ended:
        self._append(population_ledger.ENDED, {'run': places[0]})

  @durable.letting_go
  def status(self) -> dict[str, Any]:
    """Returns public figures: runs, rounds, and what was charged of the budget.

    `charged_share` is the largest share of its μ that any unit was charged. It is no ε: quote the
    budgets.
    """
    with self.exclusive():
      runs = self._state.runs
      return {
        'num_runs': len(runs),
        'num_rounds': sum(run.num_rounds for run in runs),
        'num_withdrawn': self._state.num_withdrawn,
        'charged_share': self._state.largest_shares,
        'epsilon': dict(self.claim.epsilons),
        'delta': self.claim.delta,
      }

  def _begin(self, claim: population_claim.PopulationClaim | None, names: Any, salt: Any) -> None:
    path = self.folder / population_ledger.NAME
    if claim is None:
      raise ValueError(f'{path} does not exist: give epsilon and delta to begin a population')
    self.folder.mkdir(0o700, parents=True, exist_ok=True)
    with durable.locked(self.folder / population_ledger.LOCK, wait=True):
      if path.exists():
        return
      if (self.folder / population_ledger.MARK).exists():
        raise refusals.LogError(f'{path}: is gone; put it back')
      (self.folder / population_ledger.STRATEGIES).mkdir(0o700, exist_ok=True)
      if names is not None:
        claim = dataclasses.replace(
          claim, names=pseudonyms.Names(names, salt, is_new=True).identity
        )
      population_ledger.begin(self.folder, vars(claim))
