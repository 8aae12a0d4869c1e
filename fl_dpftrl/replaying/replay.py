"""Computation of the guarantees of runs from their logs.

Figures for the declared schema, for the observed schema and for the observed participation
stand side by side and are never mixed.
"""

import bisect
import dataclasses
import importlib
import itertools
import math
from collections.abc import Callable, Sequence

from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl.accounting import adjacency as adjacency_lib
from fl_dpftrl.accounting import gaussian, run_noise
from fl_dpftrl.centralized import drawn as drawn_lib
from fl_dpftrl.centralized import sampling as sampling_lib
from fl_dpftrl.logs import refusals
from fl_dpftrl.participation import counts
from fl_dpftrl.replaying import embedded, sensitivities, void
from fl_dpftrl.replaying import facts as facts_lib
from fl_dpftrl.replaying import runs as runs_lib
from fl_dpftrl.replaying import statement as statement_lib
from fl_dpftrl.replaying import tally as tally_lib

QUANTILES = (0.5, 0.9, 0.99, 0.999)

_BARS = 32
_LISTED = 10

Engine = Callable[..., tally_lib.Tally]
ENGINES = ('embedded', 'spark')
"""Relational engines that group rows by device: modules beside this one, with `count` each."""


def engine_by_name(name: str) -> Engine:
  """Imports an engine and returns its `count`; ValueError if there is none of that name."""
  if name not in ENGINES:
    raise ValueError(f'engine must be one of {", ".join(ENGINES)}, got {name!r}')
  return importlib.import_module(f'fl_dpftrl.replaying.{name}').count


def replay(
  runs: runs_lib.Run | Sequence[runs_lib.Run],
  *,
  deltas: float | Sequence[float],
  adjacency: str = 'zero_out',
  group_size: int = 1,
  report_goal: int | None = None,
  engine: Engine = embedded.count,
  progress: Callable[[str], None] = lambda text: None,
) -> statement_lib.Statement:
  """Computes the guarantees of runs from their logs.

  Args:
    runs: one run, or several of one population, whose guarantees are composed.
    deltas: δ, one or several.
    adjacency: 'zero_out' or 'replace_one'.
    group_size: devices that are protected together.
    report_goal: intended devices per round; rounds with fewer are counted.
    engine: function that counts the logs.
    progress: called often with a line about the progress.

  Raises:
    ValueError: for an argument outside its range.
    LogError: if a log cannot be believed.
  """
  runs = [runs] if isinstance(runs, runs_lib.Run) else list(runs)
  if any(
    run.declared_schema is None for run in runs
  ):  # A schema that one log records is of that run.
    runs = [
      dataclasses.replace(r, declared_schema=None, schema_in_log=False) if r.schema_in_log else r
      for r in runs
    ]
  deltas = [deltas] if isinstance(deltas, (int, float, str)) else list(deltas)
  _check(runs, deltas, adjacency, group_size, report_goal)
  noises = [run.noise for run in runs]
  tally = _count(runs, engine, group_size, progress)
  happened = [_whole(run, devices) for run, devices in zip(runs, tally.logs)]
  spend = sensitivities.Spending.of(noises, adjacency, deltas)
  schemas = [o.schema for o in happened]
  facts = tuple(_facts(run, o, report_goal) for run, o in zip(runs, happened))
  declared = _declared(runs, happened, spend, group_size)
  drawn = None
  if runs[0].sampling is not None:
    drawn = drawn_lib.guarantee(
      runs[0].sampling,
      noises[0].strategy,
      noise_multiplier=noises[0].noise_multiplier,
      happened=happened[0],
      stated=runs[0].log.metadata.get(sampling_lib.METADATA_KEY),
      deltas=deltas,
      adjacency=adjacency,
      by_schema=lambda schema: spend.loss(run_noise.worst_case(noises, [schema]), group_size),
    )
  return statement_lib.Statement(
    runs=facts,
    num_rounds=sum(run.num_rounds for run in facts),
    min_sep=min(run.min_sep for run in facts),
    max_participations=max(run.max_participations for run in facts),
    counted=facts[0].counted if len(facts) == 1 else _counted_together(tally, happened),
    worst_case=spend.loss(run_noise.worst_case(noises, schemas), group_size),
    observed=spend.loss(
      sensitivities.occurred(tally)
      if group_size == 1
      else sensitivities.of_group(tally, group_size)
    ),
    declared=declared,
    violations=_violations(runs, tally, happened, spend) if declared else None,
    most_over_runs=tally.most_rounds if len(runs) > 1 else None,
    drawn=drawn,
    adjacency=adjacency,
    group_size=group_size,
    per_device=_per_device(tally, spend),
    void_reason=void.reason(runs),
    warnings=tuple(
      warning for run, o in zip(runs, happened) for warning in (*run.log.warnings, *o.warnings())
    ),
  )


def _check(runs, deltas, adjacency, group_size, report_goal) -> None:
  if not runs:
    raise ValueError('runs must hold at least one run')
  if not deltas:
    raise ValueError('deltas must hold at least one delta')
  for delta in deltas:
    gaussian.check_delta(delta)
  adjacency_lib.check(adjacency, group_size)
  if report_goal is not None and report_goal < 1:
    raise ValueError(f'report_goal must be at least 1, got {report_goal!r}')
  for run in runs:
    if run.sampling is not None and len(runs) > 1:
      raise ValueError(
        'sampling is for one run: guarantees of batches that were drawn are'
        ' not composed over several'
      )
    drawn_lib.check(run.sampling, run.noise.strategy, adjacency, group_size)
  kinds = {str(run.log.id_type) for run in runs}
  if len(kinds) > 1:
    raise refusals.LogError(
      f'{runs[-1].log.shards[0].path}: device_id is of another type than in'
      ' the logs before, so that devices cannot be told to be the same'
    )


def _count(
  runs: Sequence[runs_lib.Run], engine: Engine, num_exposed: int, progress: Callable[[str], None]
) -> tally_lib.Tally:
  try:
    return engine(runs, num_exposed=num_exposed, progress=progress)
  except tally_lib.DeviceTwice as e:
    place = runs[e.log_index].log.place(e.round_index, e.device_id)
    raise refusals.LogError(f'{place}: {e}') from None


def _per_device(tally: tally_lib.Tally, spend: sensitivities.Spending) -> statement_lib.PerDevice:
  kind = sensitivities.occurred(tally).kind
  bars = sensitivities.histogram(tally, spend.rho, _BARS) if spend.noise_multiplier else []
  return statement_lib.PerDevice(
    most_exposed=tally.most_exposed[0].device_id,
    quantiles=tuple(
      statement_lib.Quantile(share, spend.loss(sensitivity_lib.Sensitivity(value, kind)))
      for share, value in sensitivities.quantiles(tally, QUANTILES)
    ),
    rho_histogram=tuple(statement_lib.Bar(*bar) for bar in bars),
  )


def _whole(run: runs_lib.Run, devices: counts.DeviceCounts) -> counts.RunCounts:
  """Returns the counts of a run; LogError if its log has no rows."""
  if not devices.cohorts.total:
    raise refusals.LogError(f'{run.log.shards[0].path}: the log is empty')
  return counts.RunCounts(num_rounds=run.log.num_rounds, **vars(devices))


def _declared(
  runs: Sequence[runs_lib.Run],
  happened: Sequence[counts.RunCounts],
  spend: sensitivities.Spending,
  group_size: int,
) -> statement_lib.DeclaredGuarantee | None:
  schemas = [run.declared_schema for run in runs if run.declared_schema is not None]
  if not schemas:
    return None
  if len(schemas) < len(runs):
    raise ValueError('declared must be given for each run, or for none')
  holds = [o.keeps_to(s) for o, s in zip(happened, schemas)]
  return statement_lib.DeclaredGuarantee(
    min_sep=min(s.min_sep for s in schemas),
    max_participations=max(s.participations for s in schemas),
    loss=spend.loss(run_noise.worst_case([run.noise for run in runs], schemas), group_size),
    holds=all(holds),
  )


def _violations(
  runs: Sequence[runs_lib.Run],
  tally: tally_lib.Tally,
  happened: Sequence[counts.RunCounts],
  spend: sensitivities.Spending,
) -> statement_lib.Violations | None:
  schemas = [run.declared_schema for run in runs if run.declared_schema is not None]
  if all(o.keeps_to(s) for o, s in zip(happened, schemas)):
    return None
  found = tally.breaches
  firsts = [0, *itertools.accumulate(of.num_rounds for of in happened)]
  places = []
  for number in found.rounds.values[:_LISTED].tolist():
    run = bisect.bisect_right(firsts, number)
    places.append(statement_lib.Place(run, number - firsts[run - 1]))
  kind = sensitivity_lib.EXACT if tally.exact else sensitivity_lib.UPPER_BOUND
  return statement_lib.Violations(
    num_devices=found.num_devices,
    num_rounds=found.rounds.values.size,
    first_rounds=tuple(places),
    largest=spend.loss(sensitivity_lib.Sensitivity(math.sqrt(found.square), kind)),
    num_complied=tally.num_devices - found.num_devices,
    complied=spend.loss(run_noise.worst_case([run.noise for run in runs], schemas)),
  )


def _facts(
  run: runs_lib.Run, happened: counts.RunCounts, report_goal: int | None
) -> facts_lib.RunFacts:
  sizes = happened.cohorts.counts
  return facts_lib.RunFacts(
    noise=run.noise,
    min_sep=happened.min_sep,
    max_participations=happened.max_participations,
    num_rounds_assumed=run.log.num_rounds_assumed,
    layout=run.log.layout,
    report_goal=report_goal,
    declared_schema=run.declared_schema,
    schema_in_log=run.schema_in_log,
    **facts_lib.recorded(run.log.metadata),
    counted=facts_lib.Counted(
      num_devices=happened.num_devices,
      num_participations=happened.num_participations,
      rounds_without_participants=happened.rounds_without_participants,
      separations=tuple(happened.separations.to_dict().items()),
      witness=happened.witness,
      participations=tuple(happened.participations.to_dict().items()),
      cohort_sizes=facts_lib.CohortSizes(
        least=int(sizes.min()), mean=math.fsum(sizes) / sizes.size, most=int(sizes.max())
      ),
      rounds_short_of_report_goal=(
        None if report_goal is None else happened.rounds_short_of(report_goal)
      ),
    ),
    log=run.log.files(),
  )


def _counted_together(
  tally: tally_lib.Tally, happened: Sequence[counts.RunCounts]
) -> facts_lib.Counted:
  separations = happened[0].separations
  for other in happened[1:]:
    separations += other.separations
  return facts_lib.Counted(
    num_devices=tally.num_devices,
    num_participations=sum(o.num_participations for o in happened),
    rounds_without_participants=sum(o.rounds_without_participants for o in happened),
    separations=tuple(separations.to_dict().items()),
  )
