"""Computation of the guarantees of runs from their logs.

Figures for the declared schema, for the observed schema and for the observed participation
stand side by side and are never mixed.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import claim_json, id_spellings, keys, refusals, unit_tables
from fl_dpftrl.mechanisms import sensitivities
from fl_dpftrl.participation.accounting import arithmetics, guarantees
from fl_dpftrl.participation.counts import participation_counts
from fl_dpftrl.prove.replaying import (
  counting,
  device_tallies,
  observed_losses,
  opened_runs,
  participation_sentences,
  population_runs,
  run_facts,
  statement_parts,
  statements,
  tightness,
)

_ROUNDING = 1e-9  # relative, of figures that are computed in several ways


def replay(
  runs: opened_runs.Given | population_runs.PopulationRuns | Sequence[opened_runs.Given],
  *,
  delta: float | Sequence[float],
  adjacency: str = 'zero_out',
  group_size: int = 1,
  disjoint: bool = False,
  local_ids: bool = False,
  units: Sequence[unit_tables.Given] = (),
  progress: Callable[[str], None] = lambda text: None,
) -> statements.Statement:
  """Computes the guarantees of runs from their logs.

  Args:
    runs: one run, or several of one population, whose guarantees are composed; each as `open_run`
      returns it, or the path of a run's folder. Or the folder of a `Population`: all of its runs,
      whose guarantee is that of its budgets.
    delta: δ, one or several.
    adjacency: 'zero_out' or 'replace_one'.
    group_size: devices that are protected together.
    disjoint: whether every device is in one of the runs only, such as patients of sites that train
      for themselves. The guarantee is then that of the costliest run, and not of all together.
    local_ids: whether each of the disjoint runs has numbered its devices by itself, so that one id
      in two runs is of two devices. No log can then show that they are not disjoint.
    units: for the folder of a population of people, or other units, the tables of who owns which
      device: one of all its runs, or one for each; none where runs have tables of names.
    progress: called often with a line about the progress.

  Raises:
    LogError: for a log that cannot be believed, and a device in two runs that are disjoint.
  """
  if local_ids and not disjoint:
    raise ValueError('local_ids is for disjoint runs: a device of two would be taken for two')
  population = population_runs.given(runs, units)
  if units and population is None:
    raise ValueError('units is for a population; give each run its own to open_run')
  if population is not None and disjoint:
    raise ValueError('disjoint is for runs, and not for a population, whose budgets are shared')
  separate: Any = runs if population is None else population.runs
  runs = opened_runs.together(separate, local_ids=local_ids)
  terms = guarantees.Terms(delta, adjacency, group_size)
  disjoint, local_ids = disjoint and len(runs) > 1, local_ids and len(runs) > 1
  most = 1 if disjoint else None  # Of one device, in how many runs.
  num_rounds = [run.log.num_rounds for run in runs]
  spend = run_claim.spending([run.claim for run in runs], num_rounds, terms, most)
  if len(runs) == 1:
    runs[0].check(terms)
  tally = runs[0].tally if len(runs) == 1 else None
  if tally is None:
    tally = counting.count(runs, num_exposed=group_size, local_ids=local_ids, progress=progress)
  people = tally.people or tally
  if disjoint and tally.repeated is not None:
    raise refusals.LogError(
      f'disjoint: at least one {runs[0].unit} is in the logs of several runs, whose losses add up;'
      ' leave out that they are disjoint'
    )
  if len(tally.most_exposed) < min(group_size, tally.num_devices):
    raise ValueError(
      f'group_size={group_size} needs the losses of as many devices, which counts do not hold;'
      ' replay the log'
    )
  counts = zip(runs, tally.logs, (tally.devices or people).logs)
  facts = tuple(_facts(run, happened, devices) for run, happened, devices in counts)
  observed = None
  if tally.num_devices:
    observed = spend(observed_losses.largest(tally, group_size))
    observed = dataclasses.replace(observed, group_size=group_size)
  if population is None:
    planned = _planned(runs, facts, tally, observed, terms, disjoint)
  else:
    unit = run_claim.noise_unit([run.claim for run in runs])
    planned = _of_population(population, unit, observed, terms)
  if planned and planned.is_endless:
    worst_case = planned.guarantee
  else:
    claims, schemas = [fact.claim for fact in facts], [fact.spent for fact in facts]
    worst_case = run_claim.compose(claims, schemas, terms, disjoint)
  reached = tightness.attack(facts[0].claim, facts[0].schema, terms) if len(runs) == 1 else None
  parts = [statement_parts.Part(name='worst_case', guarantee=worst_case, attack=reached)]
  per_device = violations = None
  if observed:
    parts.append(statement_parts.Part(name='observed', guarantee=observed))
    per_device = observed_losses.PerDevice.of(people, spend) if people.num_devices else None
  if tally.violators:
    violations = observed_losses.Violations.of(tally, facts, spend, disjoint)
  warnings, void_reasons = list(population.warnings) if population else [], []
  for place, (run, fact) in enumerate(zip(runs, facts), 1):
    name = f'run {place}: ' if len(runs) > 1 else ''
    of_devices = fact.counted.warnings() if fact.counted else ()
    warnings += [f'{name}{warning}' for warning in (*run.log.warnings, *of_devices)]
    reasons = [run.claim.void_reason, *against_log(run)]
    if text := '; '.join(reason for reason in reasons if reason):
      void_reasons.append(f'{name}{text}')
  warnings += id_spellings.warnings(people.mergeable, people.num_devices, runs[0].unit)
  return statements.Statement(
    runs=facts,
    tally=people,
    parts=(*parts, planned) if planned else tuple(parts),
    violations=violations,
    per_device=per_device,
    void_reason='; '.join(void_reasons) or None,
    warnings=tuple(warnings),
    disjoint=disjoint,
    local_ids=local_ids,
  )


def against_log(run: opened_runs.RecordedRun) -> Iterator[str]:
  """Yields what was said of a run against its log, but for schemas that allow more."""
  stated = run.stated
  if stated is None:
    return
  names = ['participation', *['arithmetic'] * run.claim.answers.is_secret]  # Less is covered.
  claim_document = run.claim.to_json() | {name: stated[name] for name in names}
  for sentence in claim_json.differences(stated, claim_document):
    yield f'the log is of a run with the {sentence}'
  if run.recorded and run.claim.participation:
    yield from filter(None, [participation_sentences.voided(run.claim.participation, run.recorded)])
  if run.log.layout.first_round:
    yield (
      'the log states its claim, so its rounds are counted from 0, and they were counted from'
      f' {run.log.layout.first_round}'
    )
  elif keys.VERSION_KEY in run.log.metadata and run.log.layout.own_names:
    yield 'the log states its claim, so it has columns of its own, and others were named'


def _planned(
  runs: Sequence[opened_runs.RecordedRun],
  facts: Sequence[run_facts.RunFacts],
  tally: device_tallies.Tally,
  observed: guarantees.Guarantee | None,
  terms: guarantees.Terms,
  disjoint: bool,
) -> statement_parts.Planned | None:
  """Returns the guarantee of what was declared or drawn, void where the logs contradict draws.

  What devices that kept to a declared participation have lost is no more than its guarantee: else
  its own sensitivity is wrong.
  """
  run_claims = [run.claim for run in runs]
  planned = [claim.declared if len(runs) > 1 else claim.participation for claim in run_claims]
  every = [p.after(run.log.num_rounds) for run, p in zip(runs, planned) if p is not None]
  if len(every) < len(runs):
    return None
  reasons = list[str]()
  for run, fact, participation in zip(runs, facts, every):
    counts: Any = fact.counted_units  # Known, as it is not that of a publishable statement.
    recorded = run.stated and run.stated['participation']
    reasons += participation.contradictions(counts, recorded, tally.violators)
  whole = every[0].together(every[1:])
  if reasons and whole.is_drawn:
    run_claims = [dataclasses.replace(claim, noise_multiplier=0.0) for claim in run_claims]
  if len(runs) > 1:
    reasons = reasons and ['not every run kept to its own, see the assumptions']
  guarantee = run_claim.compose(run_claims, every, terms, disjoint)
  reached = tightness.attack(run_claims[0], whole, terms) if len(runs) == 1 else None
  if not (reasons or whole.is_drawn) and observed and tally.exact:
    if observed.mu > guarantee.mu * (1.0 + _ROUNDING):
      reasons = [statement_parts.TOO_SMALL]
  return statement_parts.Planned(
    name=participation_sentences.part(whole),
    guarantee=guarantee,
    participation=whole,
    holds=not reasons,
    reason='; '.join(reasons) or None,
    attack=reached,
  )


def _of_population(
  population: population_runs.PopulationRuns,
  unit: float,
  observed: guarantees.Guarantee | None,
  terms: guarantees.Terms,
) -> statement_parts.Planned:
  """Returns the guarantee of a population's budgets, void where its ledger contradicts them.

  Its sensitivity is that of the largest budget, in units of a noise multiplier.
  """
  reasons, value = list(population.reasons), math.nextafter(population.mu * unit, math.inf)
  guarantee = guarantees.Guarantee.of(
    sensitivities.Sensitivity(value, sensitivities.UPPER_BOUND),
    terms,
    noise_multiplier=unit,
    rounding=arithmetics.Rounding(chance=population.chance),
  )
  # Observed has rows that a run which ended never had, and the whole numbers of all runs.
  most = guarantee.sensitivity * (1.0 + _ROUNDING)
  if observed and not population.budget.num_ended and observed.sensitivity > most:
    reasons.append(statement_parts.TOO_SMALL)
  return statement_parts.Planned(
    name=participation_sentences.part(population.budget),
    guarantee=guarantee,
    participation=population.budget,
    holds=not reasons,
    reason=reasons[0] if reasons else None,
  )


def _shown_pair(
  witness: participation_counts.Witness | None, run: opened_runs.RecordedRun
) -> participation_counts.Witness | None:
  """Returns a pair of participations; of a canary, whose id may be a number, with its name."""
  if witness is None or run.canary_ids is None or isinstance(witness.device_id, str):
    return witness
  number = run.canary_ids.index(witness.device_id).as_py()
  return witness if number < 0 else witness._replace(device_id=f'{id_spellings.CANARY}{number}')


def _facts(
  run: opened_runs.RecordedRun,
  counts: participation_counts.DeviceCounts,
  device_counts: participation_counts.DeviceCounts,
) -> run_facts.RunFacts:
  """Returns the facts of a run; LogError for an empty log that does not state its rounds."""
  if not counts.cohorts.total and run.log.shards[0].num_rounds is None:
    raise refusals.LogError(
      f'{run.log.path}: the log has no rows, and does not say itself how many rounds there were'
    )
  happened, devices = (
    participation_counts.RunCounts(
      num_rounds=run.log.num_rounds, first_round=run.log.layout.first_round, **vars(each)
    )
    for each in (counts, device_counts)
  )
  table, units = run.units, None
  if table is None:  # The closest pair may be of a canary, to whom the schema applies too.
    devices = dataclasses.replace(devices, witness=_shown_pair(happened.witness, run))
  if table is not None:
    units = run_facts.UnitFacts(
      name=run.unit,
      num_units=table.num_units,
      num_devices=table.num_devices,
      max_rows=happened.max_rows,
      cited=bool(run.log.units),
      counted=happened,
    )
  return run_facts.RunFacts(
    claim=run.claim,
    num_rounds=run.log.num_rounds,
    min_sep=happened.min_sep,
    max_participations=happened.max_participations,
    num_rounds_assumed=run.log.num_rounds_assumed,
    layout=run.log.layout,
    unused_columns=run.log.unused_columns,
    claim_in_log=run.stated is not None,
    recorded=run.recorded,
    schema_in_log=run.schema_in_log,
    from_counts=run.from_counts,
    counted=devices,
    units=units,
    log=run.log.files(),
  )
