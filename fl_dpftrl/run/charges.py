"""Charges of the runs of one population, which wait for each other at its ledger."""

import contextlib
import functools
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fl_dpftrl.claims import population_claim, run_claim
from fl_dpftrl.logs import id_spellings, ledger_format, population_ledger, pseudonyms, refusals
from fl_dpftrl.mechanisms.files import documents, files
from fl_dpftrl.participation.rules import separations
from fl_dpftrl.prove.replaying import population_runs
from fl_dpftrl.support.files import json_files

_LEAST_SHARE = 1e-20  # of δ, which changes no digit of ε for any number of runs
HEXADECIMAL = 'reads as a number and as hexadecimal digits, like 1e5: no name keeps its class apart'
"""Words on an id that a population with names and several classes does not take."""


class Charges:
  """The ledger of a population with its state in memory, as runs charge their devices in it."""

  claim: population_claim.PopulationClaim

  def __init__(self, folder: pathlib.Path, names: pseudonyms.Names | None):
    """Takes the folder of a ledger that is there; reads nothing yet."""
    self.folder, self.names = folder, names
    self._ledger = population_ledger.PopulationLedger(folder)
    self._state = self._empty_state()
    self._is_in_doubt = False  # Whether the state may have what the ledger lacks.

  @property
  def identity(self) -> str:
    """Random name of the population, which its runs claim."""
    return self._state.identity

  @contextlib.contextmanager
  def exclusive(self) -> Iterator[bool]:
    """Keeps other threads and processes from the ledger, of which all is known within the block.

    Yields whether it is within such a block, as that of a signal handler may be: nothing is read.
    """
    with self._ledger.exclusive() as is_within:
      if is_within:
        yield True
        return
      if self._is_in_doubt:
        self._state = self._empty_state()
        self._ledger.read_again()
      self._is_in_doubt = True
      for record in self._ledger.records():
        self._state.take(record)
      self._is_in_doubt = False
      if (None if self.names is None else self.names.identity) != self._state.claim.names:
        raise ValueError('names and salt must be given, as before, or not, as before')
      if self.names is not None and self.names.changes < self._state.num_changes:
        raise refusals.LogError(f'{self.names.path}: is of an earlier moment; put the newest back')
      yield False

  def _append(self, kind: str, content: json_files.Object) -> None:
    """Appends a record, and takes it; within `exclusive`."""
    record = population_ledger.LedgerRecord(self._ledger.num_records, kind, content)
    self._is_in_doubt = True
    self._ledger.append(kind, content)
    self._state.take(record)
    self._is_in_doubt = False

  def check(self, claim: run_claim.Claim) -> None:
    """Raises ValueError for a claim that no budget of the population can be charged for."""
    if (unit := population_claim.unit_of(claim)) != self.claim.unit:
      raise ValueError(f'population: it has a budget for each {self.claim.unit}, and not {unit}')
    try:
      population_claim.entries(claim)
      added, epsilon = population_claim.rounding(claim), max(self.claim.epsilons.values())
    except OverflowError as error:
      raise ValueError(f'population: no loss of this strategy is known: {error}') from error
    # What whole numbers take of δ is not in the budget.
    if added.chance and added.delta(epsilon) > _LEAST_SHARE * self.claim.delta:
      raise ValueError(
        f'population: epsilon={epsilon:g} at delta={self.claim.delta:g} is not proven for releases'
        ' in whole numbers'
      )

  def open_run(
    self, identity: str, claim: run_claim.Claim, folder: pathlib.Path, *, has_begun: bool = False
  ) -> int:
    """Returns the place of a run in the ledger, in which it is opened if it is new.

    Args:
      identity: random name of the run, as its log has it.
      claim: what it claims.
      folder: its folder.
      has_begun: whether its log has rounds.

    Raises:
      ValueError: for another claim than before.
      LogError: for a run that has rounds which the ledger lacks.
    """
    with self.exclusive():
      places = {run.identity: place for place, run in enumerate(self._state.runs)}
      if identity not in places:
        if has_begun:
          raise refusals.LogError(
            f'{self._ledger.path}: lacks the run of {folder}: it is of an earlier moment'
          )
        digest = documents.strategy_digest(claim.strategy)
        path = self.folder / population_ledger.STRATEGIES / f'{digest}.json'
        if not path.exists():
          files.save_strategy(path, claim.strategy, schema=separations.MinSep(1, 1))
        # As the ledger is read by everybody: what cannot be read again is not written.
        strategy = population_runs.strategy_of(self.folder, digest)
        self.check(run_claim.Claim.from_json(claim.to_json(), strategy))
        place, here = folder.resolve(), self.folder.resolve()
        content = {'run': identity, 'folder': str(place), 'claim': claim.to_json()}
        if place.is_relative_to(here.parent):  # Found too where both were moved together.
          content['beside'] = os.path.relpath(place, here)
        places[identity] = len(self._state.runs)
        self._append(population_ledger.OPENED, content)
      run = self._state.runs[places[identity]]
      if run.claim.to_json() != claim.to_json():
        raise ValueError('population: the run was opened with another claim; name a new folder')
      return places[identity]

  @property
  def spellings(self) -> id_spellings.RecordedSpellings | None:
    """How the ids of devices are spelt in all runs; None where other units have a budget."""
    return self._state.spellings if self.claim.unit == 'device' else None

  def rounds_of(self, place: int) -> tuple[int, bytes]:
    """Returns the rounds that a run reserved, and their digest; within `exclusive`."""
    run = self._state.runs[place]
    return run.num_rounds, run.head

  def reserved(self, place: int, first: int) -> list[tuple[int, str, str]]:
    """Returns second, kind and ids of the rounds of a run from one on; within `exclusive`."""
    rounds = []
    for record in population_ledger.read(self.folder):
      content = record.content
      if record.kind == population_ledger.RESERVED and content['run'] == place:
        rounds += [(content['second'], *cohort[:2]) for cohort in content['cohorts']]
    return rounds[first:]

  def reasons(self, place: int, units: np.ndarray, rows: int = 1) -> np.ndarray:
    """Returns why each unit may not have so many rows in the next round of a run; '' if it may."""
    return self._state.losses.reasons(place, units, rows)

  def cannot_name(self, ids: Sequence[Any]) -> list[bool]:
    """Returns which ids share their name with a number that may be of another class."""
    has_classes = self.names is not None and len(self.claim.epsilons) > 1
    return [has_classes and pseudonyms.may_be_two(each) for each in ids]

  def check_kind(self, units: pa.Array) -> None:
    """Raises ValueError for ids of another type than those of other runs."""
    if len(units) and self._state.kinds - {ledger_format.stored(units[:1].to_pylist())[0]}:
      raise ValueError(f'ids of a {self.claim.unit} must be of one type in all runs')

  def check_units(self, units: pa.Array) -> None:
    """Raises ValueError for ids of another type, or in another spelling, than those so far."""
    self.check_kind(units)
    if self._state.spellings.collisions(units).any():
      raise ValueError(f'ids of a {self.claim.unit}: one {id_spellings.COLLIDES}')

  def charge(self, place: int, units: pa.Array, rows: np.ndarray | None) -> None:
    """Charges units for the next round of a run, which `reserve` makes durable.

    Args:
      place: of the run.
      units: each once.
      rows: number of rows of each; None for one.

    Raises:
      ValueError: for ids of another type than those of other runs, or in another spelling.
    """
    if self._state.runs[place].has_ended:
      raise ValueError(f'no round may follow: {ledger_format.SEALED}')
    self.check_units(units)
    self._is_in_doubt = True
    self._state.charge(place, units, rows)

  def reserve(self, place: int, second: int, cohorts: Sequence[Sequence[Any]]) -> None:
    """Makes the charges of the next rounds of a run durable; within `exclusive`.

    Args:
      place: of the run.
      second: UTC second of the rounds.
      cohorts: kind and ids of each round as a ledger has them, and its owners if these are charged.
    """
    run = self._state.runs[place]
    content = {'run': place, 'first': run.num_rounds, 'second': second, 'cohorts': cohorts}
    if self.names is not None:
      content['changes'] = self.names.changes
    self._ledger.append(population_ledger.RESERVED, content)
    for kind, text, *_ in cohorts:
      self._state.confirm(place, ledger_format.next_head(run.head, run.num_rounds, kind, text))
    self._is_in_doubt = False

  def _empty_state(self) -> population_claim.PopulationState:
    return population_claim.PopulationState(
      functools.partial(population_runs.strategy_of, self.folder), path=str(self._ledger.path)
    )
