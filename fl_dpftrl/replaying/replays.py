"""Computation of the guarantees of runs from their logs.

Figures for the declared schema, for the observed schema and for the observed participation
stand side by side and are never mixed.
"""

import bisect
import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Sequence

from fl_dpftrl import claims, sensitivities
from fl_dpftrl.accounting import guarantees
from fl_dpftrl.logs import id_spellings, refusals
from fl_dpftrl.participation import participation_counts
from fl_dpftrl.replaying import (
  counting,
  device_tallies,
  exposures,
  observed_sensitivities,
  opened_runs,
  run_facts,
  statements,
  void_reasons,
)
from fl_dpftrl.text import messages

QUANTILES = (0.5, 0.9, 0.99, 0.999)

_BARS = 32
Run = opened_runs.Run | str | os.PathLike[str]
Runs = Run | Sequence[Run]
_LISTED = 10


def replay(
  runs: Runs,
  *,
  delta: float | Sequence[float],
  adjacency: str = 'zero_out',
  group_size: int = 1,
  disjoint: bool = False,
  progress: Callable[[str], None] = lambda text: None,
) -> statements.Statement:
  """Computes the guarantees of runs from their logs.

  Args:
    runs: one run, or several of one population, whose guarantees are composed; each as `open_run`
      returns it, or the path of a run's folder.
    delta: δ, one or several.
    adjacency: 'zero_out' or 'replace_one'.
    group_size: devices that are protected together.
    disjoint: whether every device is in one of the runs only, such as patients of sites that train
      for themselves. The guarantee is then that of the costliest run, and not of all together.
    progress: called often with a line about the progress.

  Raises:
    LogError: for a log that cannot be believed, and a device in two runs that are disjoint.
  """
  runs = opened_runs.together(opened(runs))
  run_claims = [run.claim for run in runs]
  terms = guarantees.Terms(delta, adjacency, group_size)
  disjoint = disjoint and len(runs) > 1
  most = 1 if disjoint else None  # Of one device, in how many runs.
  spend = claims.spending(run_claims, [run.log.num_rounds for run in runs], terms, most)
  _check(runs, terms)
  tally = runs[0].tally if len(runs) == 1 else None
  if tally is None:
    tally = counting.count(runs, num_exposed=group_size, progress=progress)
  if disjoint and tally.repeated is not None:
    raise refusals.LogError(
      f'disjoint: {runs[0].unit} {messages.quoted(tally.repeated)} is in the logs of several runs,'
      ' whose losses add up; leave out that they are disjoint'
    )
  if len(tally.most_exposed) < min(group_size, tally.num_devices):
    raise ValueError(
      f'group_size={group_size} needs the losses of as many devices, which counts do not hold;'
      ' replay the log'
    )
  happened = [_whole(run, devices) for run, devices in zip(runs, tally.logs)]
  by_device = tally.devices or tally
  devices = [_whole(run, counts) for run, counts in zip(runs, by_device.logs)]
  facts = tuple(map(_facts, runs, happened, devices, opened_runs.charged(runs)))
  observed = per_device = None
  if tally.num_devices:
    largest = spend(observed_sensitivities.of_largest(tally, group_size))
    observed = dataclasses.replace(largest, group_size=group_size)
    per_device = _per_device(tally, spend)
  violations = _violations(facts, tally, spend, disjoint)
  return statements.of_facts(
    facts,
    terms=terms,
    num_devices=tally.num_devices,
    observed=observed,
    violations=violations,
    most_over_runs=tally.most_rounds if len(runs) > 1 else None,
    disjoint=disjoint,
    planned=_planned(runs, happened, tally.violators or 0, terms, disjoint),
    per_device=per_device,
    void_reason=void_reasons.reason(runs),
    ids=_ids(tally),
    warnings=tuple(
      f'run {place}: {warning}' if len(runs) > 1 else warning
      for place, (run, counts) in enumerate(zip(runs, devices), 1)
      for warning in (*run.log.warnings, *counts.warnings())
    )
    + id_spellings.warnings(tally.mergeable, tally.num_devices, runs[0].unit),
  )


def opened(runs: Runs) -> list[opened_runs.Run]:
  """Returns one run or several, each opened."""
  alone = [runs] if isinstance(runs, (opened_runs.Run, str, os.PathLike)) else runs
  return [run if isinstance(run, opened_runs.Run) else opened_runs.open_run(run) for run in alone]


def _check(runs: Sequence[opened_runs.Run], terms: guarantees.Terms) -> None:
  for run in runs if len(runs) == 1 else ():
    participation = run.claim.answers
    participation.check(run.claim.strategy, terms)
    if run.from_counts and participation.needs_rows:
      raise ValueError(
        f'counts cannot confirm a {type(participation).__name__}; replay the log itself'
      )
  opened_runs.id_type(runs)


def _per_device(
  tally: device_tallies.Tally, spend: observed_sensitivities.Spend
) -> exposures.PerDevice:
  kind = sensitivities.EXACT if tally.exact else sensitivities.UPPER_BOUND
  guarantee_of = lambda value: spend(sensitivities.Sensitivity(value, kind))
  quantiles = tuple(
    (share, guarantee_of(value))
    for share, value in observed_sensitivities.quantiles(tally, QUANTILES)
  )
  has_noise = quantiles[0][1].noise_multiplier > 0.0
  bars = (
    observed_sensitivities.histogram(tally, lambda value: guarantee_of(value).rho, _BARS)
    if has_noise
    else []
  )
  return exposures.PerDevice(
    most_exposed=tally.most_exposed[0].device_id, quantiles=quantiles, rho_histogram=tuple(bars)
  )


def _ids(tally: device_tallies.Tally) -> id_spellings.IdSummary | None:
  """Returns facts of all ids; None for counts of text, which hold none."""
  if tally.id_bytes is not None:
    return id_spellings.IdSummary(True, *tally.id_bytes, tally.mergeable)
  ends = [abs(i) for counts in tally.logs if counts.id_range for i in counts.id_range]
  return id_spellings.IdSummary(False, None, len(str(max(ends))), 0) if ends else None


def _whole(
  run: opened_runs.Run, devices: participation_counts.DeviceCounts
) -> participation_counts.RunCounts:
  """Returns the counts of a run; LogError for an empty log that does not state its rounds."""
  if not devices.cohorts.total and run.log.shards[0].num_rounds is None:
    raise refusals.LogError(
      f'{run.log.path}: the log has no rows, and does not say itself how many rounds there were'
    )
  return participation_counts.RunCounts(
    num_rounds=run.log.num_rounds, first_round=run.log.layout.first_round, **vars(devices)
  )


def _planned(
  runs: Sequence[opened_runs.Run],
  happened: Sequence[participation_counts.RunCounts],
  violators: int,
  terms: guarantees.Terms,
  disjoint: bool,
) -> statements.Part | None:
  """Returns the guarantee of what was declared or drawn, void where the logs contradict draws."""
  run_claims = [run.claim for run in runs]
  every = [
    participation.after(run.log.num_rounds)
    for run, participation in zip(runs, opened_runs.planned(run_claims))
  ]
  if not every:
    return None
  reasons = [
    reason
    for run, counted, participation in zip(runs, happened, every)
    for reason in participation.contradictions(
      counted, run.stated and run.stated['participation'], violators
    )
  ]
  whole = every[0].together(every[1:])
  if reasons and whole.is_drawn:
    run_claims = [dataclasses.replace(claim, noise_multiplier=0.0) for claim in run_claims]
  if len(runs) > 1:
    reasons = reasons and ['not every run kept to its own, see the assumptions']
  return statements.Part(
    name=whole.part,
    guarantee=claims.compose(run_claims, every, terms, opened_runs.charged(runs), disjoint),
    participation=whole,
    holds=not reasons,
    reason='; '.join(reasons) or None,
  )


def _violations(
  facts: Sequence[run_facts.RunFacts],
  tally: device_tallies.Tally,
  spend: observed_sensitivities.Spend,
  disjoint: bool,
) -> exposures.Violations | None:
  if not tally.violators:
    return None
  firsts = [0, *itertools.accumulate(run.num_rounds for run in facts)]
  places = []
  for number in tally.wrong_rounds.values[:_LISTED].tolist():
    run = bisect.bisect_right(firsts, number)
    shown = number - firsts[run - 1] + facts[run - 1].layout.first_round
    places.append({'run': run, 'round': shown})
  kind = sensitivities.EXACT if tally.exact else sensitivities.UPPER_BOUND
  largest = spend(sensitivities.Sensitivity(math.sqrt(tally.wrong_square), kind))
  return exposures.Violations(
    num_devices=tally.violators,
    num_rounds=tally.wrong_rounds.values.size,
    first_rounds=tuple(places),
    largest=largest,
    num_complied=tally.num_devices - tally.violators,
    complied=claims.compose(
      [run.claim for run in facts],
      [run.claim.participation for run in facts],
      guarantees.Terms(largest.deltas, largest.adjacency),
      disjoint=disjoint,
    ),
  )


def _facts(
  run: opened_runs.Run,
  happened: participation_counts.RunCounts,
  devices: participation_counts.RunCounts,
  charged: Sequence[int],
) -> run_facts.RunFacts:
  table, units = run.units, None
  if table is not None:
    units = run_facts.UnitFacts(
      name=run.unit,
      num_units=table.num_units,
      num_devices=table.num_devices,
      max_rows=happened.max_rows,
      cited=bool(run.log.units),
      ends=table.ends,
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
    times=run.log.times,
    claim_in_log=run.stated is not None,
    schema_in_log=run.schema_in_log,
    charged=tuple(place + 1 for place in charged),
    from_counts=run.from_counts,
    counted=devices,
    units=units,
    log=run.log.files(),
  )
