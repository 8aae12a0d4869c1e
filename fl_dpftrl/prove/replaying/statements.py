"""The record of what logs prove about runs, with a JSON form."""

import dataclasses
import functools
import operator

from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import id_spellings
from fl_dpftrl.participation.accounting import arithmetics, guarantees
from fl_dpftrl.participation.counts.participation_counts import RunCounts, Witness
from fl_dpftrl.prove.replaying import (
  assumption_sentences,
  device_tallies,
  observed_losses,
  participation_sentences,
  run_facts,
  statement_parts,
  verdicts,
)
from fl_dpftrl.support import tables
from fl_dpftrl.support.files import json_files
from fl_dpftrl.support.text import messages, roundings

SHOWN_ARITHMETIC = {
  arithmetics.COVERED: 'covered, to the released bits',
  arithmetics.LATTICE: 'whole numbers with rounded noise, last digits not covered',
  arithmetics.NOT_COVERED: 'of unrounded numbers, last digits not covered',
}
"""The numbers that releases are made of, in a few words."""

VOID = 'its log says so, or is of another run'
ASSUMED_ROUNDS = (
  'A log does not say how many rounds consumed noise; its last round plus one'
  ' was taken. Burnt rounds after it would be missing'
)
COLUMNS, MARKS = 'COLUMNS', 'MARKS'
"""Stands for the columns of a log in what is published: their names are those of another system."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statement:
  """Guarantees that the logs of one or several runs of a population prove.

  Attributes:
    runs: the facts of each run.
    parts: its guarantees: the worst case, of any device that keeps to the observed schemas; the
      observed one, for the patterns that occurred, unless there are no devices or it is
      publishable; and that of the declared schemas or of the stated sampling scheme, if any.
    violations: devices that did not keep to the declared schemas; None if all did, or if
      publishable.
    per_device: losses of single devices; None without devices, and if publishable.
    void_reason: why the runs guarantee nothing; None if nothing voids it.
    warnings: sentences about the logs.
    disjoint: whether nobody is in two of the runs, so that it is that of the costliest one.
    local_ids: whether each of these has ids of its own, so that no log shows that nobody is.
    tally: confidential counts of all runs together; None if publishable.
    confidential: whether it must not be published.
  """

  runs: tuple[run_facts.RunFacts, ...]
  parts: tuple[statement_parts.Part, ...]
  void_reason: str | None
  warnings: tuple[str, ...]
  violations: observed_losses.Violations | None = None
  per_device: observed_losses.PerDevice | None = None
  disjoint: bool = False
  local_ids: bool = False
  tally: device_tallies.Tally | None = None
  confidential: bool = True

  def __repr__(self) -> str:
    schema = f'n = {self.num_rounds}, b = {self.min_sep}, k = {self.max_participations}'
    at = f'δ = {roundings.exact(self.delta)}, {self.adjacency}, group of {self.group_size}'
    runs = f'{len(self.runs)} run' + 's' * self.several + ', of which one counts' * self.disjoint
    lines = [
      f'{runs}, {schema}, {at}',
      *([self.quoted] if self.rounds_may_follow and self.void_reason is None else []),
      *tables.columns(self._shown()).splitlines(),
      f'arithmetic {SHOWN_ARITHMETIC[self.arithmetic.kind]}',
    ]
    void = '' if self.void_reason is None else f', void: {self.void_reason}'
    return tables.at_a_prompt(messages.one_line(f'Statement{void}'), lines)

  def _shown(self) -> list[json_files.Object]:
    """Returns a row of text for each guarantee, at the first δ; without figures if void."""
    if self.void_reason is not None:
      void = {'rho': 'void', 'epsilon': 'void', 'holds': False}
      return [{'part': part.name, **void} for part in self.parts]
    shown = lambda figure: 'none' if figure is None else roundings.up(figure, digits=6)
    return [
      {
        'part': part.name,
        'rho': shown(part.guarantee.rho),
        'epsilon': shown(part.guarantee.epsilon()),
        'holds': part.holds,
      }
      for part in self.parts
    ]

  @property
  def unit(self) -> str:
    """The unit of privacy in words: 'device', or a unit that owns several."""
    units = self.runs[0].units
    return 'device' if units is None else units.name

  @property
  def several(self) -> bool:
    """True for more than one run."""
    return len(self.runs) > 1

  @property
  def counts(self) -> tuple[RunCounts, ...]:
    """Confidential counts of each run; none if publishable."""
    return tuple(run.counted for run in self.runs if run.counted is not None)

  @property
  def num_devices(self) -> int | None:
    """Devices in at least one run; None if publishable."""
    return None if self.tally is None else self.tally.num_devices

  @property
  def most_over_runs(self) -> int | None:
    """Most rounds of one device in all runs together; None for one run, or if publishable."""
    return self.tally.most_rounds if self.tally and self.several else None

  @property
  def ids(self) -> id_spellings.IdSummary | None:
    """Facts of all ids; None without any, and if publishable."""
    return None if self.tally is None else self.tally.ids

  @property
  def num_participations(self) -> int:
    """Participations in all runs; 0 if publishable."""
    return sum(run.num_participations for run in self.counts)

  @property
  def num_rounds(self) -> int:
    """n of all runs."""
    return sum(run.num_rounds for run in self.runs)

  @property
  def min_sep(self) -> int:
    """b, rounds; the least in any run."""
    return min(run.min_sep for run in self.runs)

  @property
  def max_participations(self) -> int:
    """k, rounds; the most in any run."""
    return max(run.max_participations for run in self.runs)

  @property
  def closest_run(self) -> int:
    """Place, from 0, of the first run with the least min_sep."""
    return [run.min_sep for run in self.runs].index(self.min_sep)

  @property
  def closest(self) -> Witness | None:
    """A pair of participations that min_sep is of; None if that run has none, or if publishable."""
    counted = self.runs[self.closest_run].counted_units
    return counted.closest if counted else None

  @property
  def noise_multiplier(self) -> float:
    """std(Z) / clip_norm, the largest of any run: joint sensitivities are in units of it."""
    return max(run.claim.noise_multiplier for run in self.runs)

  @property
  def delta(self) -> float:
    """The first δ, at which ε is stated."""
    return self.worst_case.delta

  @property
  def deltas(self) -> tuple[float, ...]:
    """Every δ at which ε is stated."""
    return self.worst_case.deltas

  @property
  def adjacency(self) -> str:
    """Adjacency of neighbouring runs."""
    return self.worst_case.adjacency

  @property
  def group_size(self) -> int:
    """Number of devices that are protected together."""
    return self.worst_case.group_size

  @property
  def log(self) -> tuple[dict[str, str], ...]:
    """The files of all runs; none if publishable."""
    return tuple(file for run in self.runs for file in run.log or ())

  @property
  def assumptions(self) -> tuple[str, ...]:
    """Sentences on which the figures rest."""
    return tuple(each.sentence for each in assumption_sentences.listed(self))

  @property
  def not_private_metrics(self) -> tuple[str, ...]:
    """Metrics of all runs that no guarantee covers, by name; none if publishable."""
    return tuple(dict.fromkeys(name for run in self.runs for name in run.claim.not_private_metrics))

  @functools.cached_property
  def arithmetic(self) -> arithmetics.Arithmetic:
    """The numbers that the releases of all runs are made of."""
    return run_claim.together_arithmetic([run.claim for run in self.runs])

  @property
  def rounding(self) -> arithmetics.Rounding | None:
    """The cost of releases in whole numbers; None where it covers no last digits."""
    return self.worst_case.rounding if self.worst_case.rounding.chance else None

  @property
  def worst_case(self) -> guarantees.Guarantee:
    """Loss of any device that keeps to the observed schemas."""
    return self.parts[0].guarantee

  @property
  def observed(self) -> guarantees.Guarantee | None:
    """Loss for the patterns that occurred."""
    part = self.part('observed')
    return None if part is None else part.guarantee

  @property
  def planned(self) -> statement_parts.Planned | None:
    """The guarantee of what was declared, or of the stated draws."""
    return next((p for p in self.parts if isinstance(p, statement_parts.Planned)), None)

  @property
  def declared(self) -> statement_parts.Planned | None:
    """The guarantee of the declared participations, to which devices keep."""
    planned = self.planned
    return None if planned is None or planned.participation.is_drawn else planned

  @property
  def drawn(self) -> statement_parts.Planned | None:
    """The guarantee of the stated sampling scheme."""
    return None if self.declared else self.planned

  @property
  def headline(self) -> statement_parts.Part:
    """The guarantee to quote: that of what was declared while rounds may follow, if it holds.

    The worst case is only that of the rounds so far then: rounds that follow add to it.
    """
    planned = self.planned
    if planned is None or not planned.holds or planned.participation.is_drawn:
      return self.parts[0]
    return planned if self.num_rounds < planned.participation.num_rows else self.parts[0]

  @property
  def rounds_may_follow(self) -> bool:
    """True where the headline is of rounds that may follow too."""
    return self.headline is not self.parts[0]

  @property
  def quoted(self) -> str:
    """The headline at the first δ in words, with what the rounds so far have spent beside it."""
    head, so_far = self.headline, roundings.up(self.worst_case.epsilon())
    epsilon = roundings.up(head.guarantee.epsilon())
    text = f'ε = {epsilon} at δ = {roundings.exact(self.delta)}'
    if not isinstance(head, statement_parts.Planned):
      return text
    if head.participation.num_rounds is None:
      return f'{text}, of {head.extent}'
    if self.disjoint:
      return f'{text}, of the costliest of {len(self.runs)} runs; so far ε = {so_far}'
    rounds = f'{head.extent}; so far ε = {so_far}, {self.num_rounds} rounds'
    return f'{text}, of {rounds}'

  def verdict(self, epsilon: float, delta: float | None = None) -> verdicts.Verdict:
    """Returns whether ε at a δ is at most a claimed one, and on what that rests.

    What was declared or drawn decides, else the worst case; what was observed never does.
    """
    delta = self.delta if delta is None else delta
    return verdicts.verdict(self, verdicts.ClaimedEpsilon(epsilon, delta))

  def part(self, name: str) -> statement_parts.Part | None:
    """Returns a part by name; None if it is not there."""
    return next((part for part in self.parts if part.name == name), None)

  def publishable(self) -> 'Statement':
    """Returns the statement reduced to what may be published.

    Only what is named here is published. Some of it are functions of the log that no guarantee
    covers: the largest number of participations, the most devices of one unit in a round, the least
    separation, whether the declared schema or the stated shuffling holds, whether the run is void,
    and the number of rounds if the log does not state it. The digest of a log is left out: whoever
    knows all of its rows but a few could
    try values for those until it is right.

    Raises:
      ValueError: for a run of secret draws, whose log is as secret as they are.
    """
    for run in self.runs:
      participation_sentences.check_public(run.recorded, run.claim.participation)
    return Statement(
      runs=tuple(map(_publishable_run, self.runs)),
      parts=tuple(
        dataclasses.replace(part, reason=None) for part in self.parts if part.name != 'observed'
      ),
      void_reason=self.void_reason and VOID,
      disjoint=self.disjoint,
      local_ids=self.local_ids,
      warnings=(ASSUMED_ROUNDS,) if any(run.num_rounds_assumed for run in self.runs) else (),
      confidential=False,
    )

  def to_json(self) -> json_files.Object:
    """Returns the statement; facts of a single run are at the top."""
    result = self._of_several() if self.several else self.runs[0].to_json()
    result |= {
      'noise_multiplier': self.noise_multiplier,
      'strategy': self.runs[0].strategy,
      **{part.name: part.to_json() for part in self.parts},
    }
    if self.violations is not None:
      void = bool(self.void_reason or self.worst_case.void_reason)
      result['violations'] = self.violations.to_json(void=void)
    result |= run_facts.fields(self, 'delta', 'adjacency', 'group_size')
    if self.rounding is not None:
      lost = None if self.worst_case.void_reason else self.rounding.delta(self.worst_case.epsilon())
      result['rounding'] = {'mu': self.rounding.mu, 'delta': lost}
    if self.per_device is not None:
      result['per_device'] = self.per_device.to_json()
    result |= {
      'assumptions': list(self.assumptions),
      'void_reason': self.void_reason,
      'warnings': list(self.warnings),
    }
    if self.runs[0].log is not None:
      result['log'] = list(self.log)
    if self.disjoint:
      result['disjoint'] = True
    if self.local_ids:
      result['local_ids'] = True
    if self.ids is not None:
      result['ids'] = self.ids._asdict()
    if self.several:
      result['runs'] = [run.to_json() for run in self.runs]
    result['confidential'] = self.confidential
    return result

  def _of_several(self) -> json_files.Object:
    schema = run_facts.fields(self, 'min_sep', 'max_participations')
    if not self.counts:
      return {'num_rounds': self.num_rounds, **schema}
    separations = functools.reduce(operator.add, (run.separations for run in self.counts))
    return {
      'num_rounds': self.num_rounds,
      'num_participations': self.num_participations,
      'rounds_without_participants': sum(run.rounds_without_participants for run in self.counts),
      'num_devices': self.num_devices,
      **schema,
      'max_participations_over_runs': self.most_over_runs,
      'separations': separations.pairs(),
      'witness': self.closest and {**self.closest._asdict(), 'run': self.closest_run + 1},
    }


def _publishable_run(run: run_facts.RunFacts) -> run_facts.RunFacts:
  return dataclasses.replace(
    run,
    claim=dataclasses.replace(run.claim, not_private_metrics=(), void_reason=None),
    layout=run.layout.published(COLUMNS, MARKS),
    unused_columns=(),
    counted=None,
    units=run.units
    and dataclasses.replace(run.units, num_units=None, num_devices=None, counted=None),
    log=None,
  )
