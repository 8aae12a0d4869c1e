"""The budgets of a population, and its state after any number of records of its ledger."""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import id_spellings, ledger_format, population_ledger, refusals
from fl_dpftrl.mechanisms import base
from fl_dpftrl.mechanisms.sensitivities import endless
from fl_dpftrl.participation.accounting import arithmetics, gaussian
from fl_dpftrl.participation.counts import population_losses
from fl_dpftrl.participation.rules import per_units
from fl_dpftrl.support import checks
from fl_dpftrl.support.files import json_files
from fl_dpftrl.support.text import messages

EVERYBODY = 'everybody'
"""Name of the class of a population that has only one."""

_LESS = 1.0 - 1e-12  # So that ε of a budget is not above what was given, after rounding.


@dataclasses.dataclass(frozen=True, kw_only=True)
class PopulationClaim:
  """The budgets of a population, fixed before its first run.

  Attributes:
    epsilons: ε of each class by its name, for all runs together and for ever.
    delta: δ of these.
    default: class of units that are given none; None to turn them away.
    unit: what has a budget: 'device', or the name of the `PerUnit` of all runs.
    names: identity of the table of random names that ledgers and logs hold in place of ids; None
      where they hold ids.

  Raises:
    ValueError: for an attribute out of range.
  """

  epsilons: Mapping[str, float]
  delta: float
  default: str | None = EVERYBODY
  unit: str = 'device'
  names: str | None = None

  def __post_init__(self):
    gaussian.check_delta(self.delta)
    if not isinstance(self.epsilons, Mapping) or not self.epsilons:
      raise ValueError('epsilon must be a number, or a number for each class')
    for name, epsilon in self.epsilons.items():
      checks.positive(**{f'epsilon of {messages.quoted(name)}': epsilon})
      if not isinstance(name, str) or not re.fullmatch(r'[\w-]{1,40}', name):
        raise ValueError(f'epsilon: a class is a word of letters, got {messages.quoted(name)}')
    values = {name: float(value) for name, value in self.epsilons.items()}
    object.__setattr__(self, 'epsilons', values)
    if self.default is not None and self.default not in list(self.epsilons):
      raise ValueError(f'default must be a class of epsilon, got {messages.quoted(self.default)}')
    if not isinstance(self.unit, str) or not re.fullmatch(r'[a-z]+([ -][a-z]+)*', self.unit):
      raise ValueError(f'unit must be small letters, got {messages.quoted(self.unit)}')

  def mu(self, name: str) -> float:
    """Returns μ of a class, whose ε is at most its budget."""
    return _LESS / gaussian.effective_noise_multiplier(self.epsilons[name], self.delta)

  @property
  def largest(self) -> str:
    """Name of the class with the largest budget."""
    return max(self.epsilons, key=self.epsilons.__getitem__)


class ReservedRun:
  """One run in the ledger of a population.

  Attributes:
    identity: random name of the run, as its own log has it.
    folder: its folder, as it was when the run was opened.
    claim: what the run claims.
    heads: chained digest after each round that was reserved, as the run's own ledger has it.
    has_ended: whether no round may follow.
  """

  def __init__(self, content: json_files.Object, claim: run_claim.Claim):
    self.identity, self.folder, self.claim = content['run'], content['folder'], claim
    self.heads, self.has_ended = list[bytes](), False

  @property
  def num_rounds(self) -> int:
    """Rounds that were reserved."""
    return len(self.heads)

  @property
  def head(self) -> bytes:
    """Chained digest of their cohorts."""
    return self.heads[-1] if self.heads else ledger_format.START


def entries(claim: run_claim.Claim) -> endless.Gram | endless.FiniteGram:
  """Returns X of the rows of noise of a run: for ever, or to its last row.

  Raises:
    ValueError: for a claim that a population cannot charge.
  """
  answers = claim.answers
  if claim.participation is None or claim.is_drawn:
    raise ValueError(
      'population: the claim must have a participation to which devices keep, such as a MinSep;'
      ' draws amplify only their own run'
    )
  if claim.void_reason or not claim.noise_multiplier:
    raise ValueError(f'population: {claim.void_reason or "a run without noise has no budget"}')
  if answers.num_rounds is None:
    return claim.strategy.endless_gram()
  return endless.FiniteGram.of(claim.strategy.gram_entries(answers.num_rows), answers.num_rows)


def rounding(claim: run_claim.Claim) -> arithmetics.Rounding:
  """Returns what the whole numbers of a run add; zeros where its arithmetic is not covered."""
  return run_claim.rounding([claim], [claim.answers.num_rows])


class PopulationState:
  """State of a population after the records of its ledger, taken one after another.

  Attributes:
    claim: the budgets.
    identity: random name of the population.
    runs: the runs, in the order in which they were opened.
    losses: what units were charged.
    kinds: kinds of the ids of units so far.
    spellings: how ids of units are spelt.
    passed: why reservations passed a budget, where each is tested.
    num_withdrawn: units that withdrew.
    num_changes: changes that the table of names must have.
  """

  claim: PopulationClaim
  identity: str

  def __init__(
    self, strategies: Callable[[str], base.Strategy], *, path: str, is_checked: bool = False
  ):
    """Starts before the first record.

    Args:
      strategies: function from the digest of a strategy to it.
      path: names the ledger in messages.
      is_checked: whether each reservation is tested against the budgets as they were.
    """
    self._strategies, self._path, self._is_checked = strategies, path, is_checked
    self.runs: list[ReservedRun] = []
    self.losses: population_losses.PopulationLosses
    self.kinds, self.num_withdrawn, self.num_changes = set[str](), 0, 0
    self.passed: list[str] = []
    self.spellings = id_spellings.RecordedSpellings()

  def take(self, record: population_ledger.LedgerRecord) -> None:
    """Takes the next record; LogError for one that no population writes."""
    try:
      {
        population_ledger.BEGAN: self._begin,
        population_ledger.OPENED: self._open,
        population_ledger.RESERVED: self._reserve,
        population_ledger.CLASSES: self._classify,
        population_ledger.WITHDRAWN: self._withdraw,
        population_ledger.ENDED: self._end,
        population_ledger.ERASED: lambda content: None,
      }[record.kind](record.content)
      self.num_changes = max(self.num_changes, record.content.get('changes', 0))
    except (KeyError, TypeError, IndexError, AttributeError) as error:
      raise refusals.LogError(
        f'{self._path}: record {record.position} is none of a population'
      ) from error

  def _begin(self, content: json_files.Object) -> None:
    values = dict(content)
    self.identity = values.pop('identity')
    self.claim = PopulationClaim(**values)
    mus = {name: self.claim.mu(name) for name in self.claim.epsilons}
    self.losses = population_losses.PopulationLosses(mus, self.claim.default)

  def _open(self, content: json_files.Object) -> None:
    document: Any = content['claim']
    claim = run_claim.Claim.from_json(document, self._strategies(document['strategy']['sha256']))
    self.losses.open(entries(claim), claim.noise_multiplier, rounding(claim).mu)
    self.runs.append(ReservedRun(content, claim))

  def _reserve(self, content: json_files.Object) -> None:
    place, t = content['run'], content['first']
    for cohort in content['cohorts']:
      self._take_cohort(place, t, *cohort)
      t += 1

  def _take_cohort(
    self, place: int, t: int, kind: str, text: str, owners: list | None = None
  ) -> None:
    run = self.runs[place]
    if t != run.num_rounds or run.has_ended:
      raise refusals.LogError(f'{self._path}: reserves round {t} of run {place + 1} out of order')
    units, rows = charged(kind, text, owners)
    if self._is_checked and len(units):
      counts = np.ones(len(units), int) if rows is None else rows
      ids = ids_of(units)
      for number in np.unique(counts).tolist():
        if (self.losses.reasons(place, ids[counts == number], number) != '').any():
          self.passed.append(
            f'round {t} of run {place + 1} passes the budget of a {self.claim.unit}'
          )
    self.charge(place, units, rows)
    self.confirm(place, ledger_format.next_head(run.head, t, kind, text))

  def charge(self, place: int, units: pa.Array, rows: np.ndarray | None) -> None:
    """Charges units for the next round of a run, before it is confirmed."""
    self.losses.charge(place, ids_of(units), rows)
    self._record_ids(units)

  def _record_ids(self, units: pa.Array) -> None:
    if len(units):
      is_text = not pa.types.is_integer(units.type)
      self.kinds.add(ledger_format.TEXT if is_text else ledger_format.NUMBERS)
      self.spellings.add(units)

  def confirm(self, place: int, head: bytes) -> None:
    """Counts the next round of a run, with its chained digest."""
    self.runs[place].heads.append(head)

  def _classify(self, content: json_files.Object) -> None:
    units = ledger_format.ids_of(content['kind'], content['ids'])
    self._record_ids(units)
    self.losses.classify(ids_of(units), content['name'])

  def _withdraw(self, content: json_files.Object) -> None:
    units = ledger_format.ids_of(content['kind'], content['ids'])
    self._record_ids(units)
    self.num_withdrawn += self.losses.withdraw(ids_of(units))

  def _end(self, content: json_files.Object) -> None:
    run = self.runs[content['run']]
    if run.has_ended:
      raise refusals.LogError(f'{self._path}: a run ends twice')
    run.has_ended = True
    if run.num_rounds:
      entries_at = run.claim.strategy.gram_entries(run.num_rounds)
      self.losses.end(content['run'], endless.FiniteGram.of(entries_at, run.num_rounds))

  @property
  def largest_shares(self) -> float:
    """The largest share of its μ that any unit was charged; 0 before the first round."""
    return float(self.losses.shares().max(initial=0.0))

  @property
  def chance(self) -> float:
    """δ₀ of the whole numbers of all runs, see `arithmetics.Rounding`."""
    return math.fsum(rounding(run.claim).chance for run in self.runs)


def charged(kind: str, text: str, owners: list | None) -> tuple[pa.Array, np.ndarray | None]:
  """Returns the units that a cohort charges, and rows of each; None for a row each."""
  if owners is None:
    return ledger_format.ids_of(kind, text), None
  unit_kind, unit_text, rows = owners
  return ledger_format.ids_of(unit_kind, unit_text), np.array(rows, np.int64)


def ids_of(column: pa.Array) -> np.ndarray:
  """Returns ids as numbers or text."""
  return np.asarray(column.to_numpy(zero_copy_only=False))


def unit_of(claim: run_claim.Claim) -> str:
  """Returns what a claim's budget is of: 'device', or the unit that owns several."""
  participation = claim.participation
  return participation.name if isinstance(participation, per_units.PerUnit) else 'device'
