"""Computation of the guarantees of runs from their logs.

Figures for the declared schema, for the observed schema and for the observed
participation stand side by side and are never mixed.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from fl_dpftrl import digests
from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl.accounting import adjacency as adjacency_lib
from fl_dpftrl.accounting import gaussian
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import noise_record
from fl_dpftrl.logs import observed as observed_lib
from fl_dpftrl.replaying import assumptions as assumptions_lib
from fl_dpftrl.replaying import embedded, guarantees, publication, void
from fl_dpftrl.replaying import runs as runs_lib
from fl_dpftrl.replaying import sampled as sampled_lib
from fl_dpftrl.replaying import tally as tally_lib

Run = runs_lib.Run
run = runs_lib.run
read_log = log_lib.read_log
publishable = publication.publishable

QUANTILES = (0.5, 0.9, 0.99, 0.999)

_BARS = 32

Engine = Callable[..., tally_lib.Tally]


def replay(
  runs: Run | Sequence[Run],
  *,
  deltas: float | Sequence[float],
  adjacency: str = 'zero_out',
  group_size: int = 1,
  report_goal: int | None = None,
  engine: Engine = embedded.count,
  progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
  """Computes the guarantees of runs from their logs.

  Args:
    runs: one run, or several of one population, whose guarantees are composed.
    deltas: δ, one or several.
    adjacency: 'zero_out' or 'replace_one'.
    group_size: devices that are protected together.
    report_goal: intended devices per round; rounds with fewer are counted.
    engine: function that counts the logs.
    progress: called often with a line about the progress.

  Returns:
    Values that JSON can hold. `worst_case` is for every device that keeps to
    the observed min_sep and max_participations. `observed` is for the patterns
    that occurred. `declared` is for the declared schemas, with whether they
    `hold`. If a sampling scheme is given, `amplified` or `shuffled` is for that
    scheme: with whether it `holds`, or else the `reason` and no guarantee.

    Each has the sensitivity used, in units of the first run's noise multiplier,
    its kind, rho, and epsilon at `delta`, the first of the deltas. If several
    deltas were given, each has a `curve` with epsilon at every delta. Without
    noise, rho and epsilon are None. For several runs, `runs` has the facts of
    each.

  Raises:
    ValueError: for an argument outside its range.
    LogError: if a log cannot be believed.
  """
  runs = [runs] if isinstance(runs, Run) else list(runs)
  deltas = [deltas] if isinstance(deltas, (int, float)) else list(deltas)
  _check(runs, deltas, adjacency, group_size, report_goal)
  noises = [run.noise for run in runs]
  tally = _count(runs, engine, group_size, progress)
  happened = [
    observed_lib.ObservedParticipation.of(run.log, counts) for run, counts in zip(runs, tally.logs)
  ]
  spend = _Spending(
    noise_multiplier=(
      noises[0].multiplier if all(all(noise.multipliers) for noise in noises) else 0.0
    ),
    factor=adjacency_lib.factor(adjacency),
    deltas=deltas,
  )
  schemas = [o.schema for o in happened]
  facts = [_facts(run, o, report_goal) for run, o in zip(runs, happened)]
  declared = _declared(runs, happened, spend, group_size)
  drawn = sampled_lib.figures(
    runs[0],
    happened[0],
    deltas=deltas,
    adjacency=adjacency,
    by_schema=lambda schema: spend.figures(guarantees.worst_case(noises, [schema]), group_size),
  )
  void_reason = _joined(void.reason(run) for run in runs)
  return {
    **_together(facts, tally, happened),
    'noise_multiplier': noises[0].multiplier,
    'strategy': facts[0]['strategy'],
    'worst_case': spend.figures(guarantees.worst_case(noises, schemas), group_size),
    'observed': spend.figures(
      guarantees.occurred(tally) if group_size == 1 else guarantees.of_group(tally, group_size)
    ),
    **declared,
    **drawn,
    'delta': deltas[0],
    'adjacency': adjacency,
    'group_size': group_size,
    'per_device': _per_device(tally, spend),
    'assumptions': assumptions_lib.sentences(
      runs,
      happened,
      holds=declared.get('declared', {}).get('holds'),
      adjacency=adjacency,
      group_size=group_size,
      void_reason=void_reason,
      drawn=drawn,
    ),
    'void_reason': void_reason,
    'warnings': [
      warning for run, o in zip(runs, happened) for warning in (*run.log.warnings, *o.warnings())
    ],
    'log': [file for fact in facts for file in fact['log']],
    **({'runs': facts} if len(runs) > 1 else {}),
    'confidential': True,
  }


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
    sampled_lib.check(run, adjacency, group_size)
  kinds = {str(run.log.id_type) for run in runs}
  if len(kinds) > 1:
    raise log_lib.LogError(
      f'{runs[-1].log.shards[0].path}: device_id is of another type than in'
      ' the logs before, so that devices cannot be told to be the same'
    )


def _count(
  runs: Sequence[Run], engine: Engine, num_exposed: int, progress: Callable[[str], None]
) -> tally_lib.Tally:
  try:
    return engine(runs, num_exposed=num_exposed, progress=progress)
  except tally_lib.DeviceTwice as e:
    place = runs[e.log_index].log.place(e.round_index, e.device_id)
    raise log_lib.LogError(f'{place}: {e}') from None


class _Spending:
  """Converts sensitivities to privacy losses."""

  def __init__(self, noise_multiplier, factor, deltas):
    self._noise_multiplier = noise_multiplier
    self._factor = factor
    self._deltas = deltas
    self._epsilon = functools.lru_cache(None)(gaussian.epsilon)

  def figures(
    self, sensitivity: sensitivity_lib.Sensitivity, group_size: int = 1
  ) -> dict[str, Any]:
    value, kind = sensitivity
    value *= group_size * self._factor
    if group_size > 1:
      kind = sensitivity_lib.UPPER_BOUND
    if kind not in (sensitivity_lib.EXACT, sensitivity_lib.UPPER_BOUND):
      raise ValueError(f'a guarantee cannot rest on a {kind} of sensitivity')
    effective = self._noise_multiplier / value
    spent = [self._epsilon(effective, d) if effective else None for d in self._deltas]
    result = {
      'sensitivity': value,
      'sensitivity_kind': kind,
      'effective_noise_multiplier': effective,
      'rho': gaussian.rho(effective) if effective else None,
      'epsilon': spent[0],
    }
    if len(self._deltas) > 1:
      result['curve'] = [{'delta': d, 'epsilon': e} for d, e in zip(self._deltas, spent)]
    return result

  def rho(self, sensitivity: float) -> float | None:
    effective = self._noise_multiplier / (sensitivity * self._factor)
    return gaussian.rho(effective) if effective else None


def _per_device(tally: tally_lib.Tally, spend: _Spending) -> dict[str, Any]:
  """Privacy loss of the devices that took part, each alone."""
  kind = guarantees.occurred(tally).kind
  result = {
    'most_exposed': tally.most_exposed[0].device_id,
    'quantiles': [
      {'share': share, **spend.figures(sensitivity_lib.Sensitivity(value, kind))}
      for share, value in guarantees.quantiles(tally, QUANTILES)
    ],
  }
  if spend.rho(1.0) is not None:
    result['rho_histogram'] = [list(bar) for bar in guarantees.histogram(tally, spend.rho, _BARS)]
  return result


def _declared(runs, happened, spend, group_size) -> dict[str, Any]:
  schemas = [run.declared for run in runs]
  if not any(schemas):
    return {}
  if not all(schemas):
    raise ValueError('declared must be given for each run, or for none')
  holds = [o.keeps_to(s) for o, s in zip(happened, schemas)]
  return {
    'declared': {
      'min_sep': min(s.min_sep for s in schemas),
      'max_participations': max(s.participations for s in schemas),
      **spend.figures(guarantees.worst_case([run.noise for run in runs], schemas), group_size),
      'holds': all(holds),
    }
  }


def _facts(
  run: Run, happened: observed_lib.ObservedParticipation, report_goal: int | None
) -> dict[str, Any]:
  """Parameters of a run and its observed participation."""
  sizes = happened.cohorts.counts
  facts = {
    'num_rounds': happened.num_rounds,
    'num_devices': happened.num_devices,
    'num_participations': happened.num_participations,
    'min_sep': happened.min_sep,
    'max_participations': happened.max_participations,
    'noise_multiplier': run.noise.multiplier,
    'strategy': {
      'family': run.noise.strategy.family,
      'sha256': digests.strategy_digest(run.noise.strategy),
    },
    'separations': [list(i) for i in happened.separations.to_dict().items()],
    'participations': [list(i) for i in happened.participations.to_dict().items()],
    'witness': happened.witness and happened.witness._asdict(),
    'rounds_without_participants': happened.rounds_without_participants,
    'cohort_sizes': {
      'least': int(sizes.min()),
      'mean': math.fsum(sizes) / sizes.size,
      'most': int(sizes.max()),
    },
    'log': [file._asdict() for file in run.log.files()],
  }
  if run.log.num_rounds_assumed:
    facts['num_rounds_assumed'] = True
  if report_goal is not None:
    facts['report_goal'] = report_goal
    facts['rounds_short_of_report_goal'] = happened.rounds_short_of(report_goal)
  if run.noise.changes:
    facts['changes'] = [list(change) for change in run.noise.changes]
  recorded = noise_record.read(run.log.metadata)
  if recorded.clip_norm is not None:
    facts['clip_norm'] = recorded.clip_norm
  if recorded.clip_norm_changes:
    facts['clip_norm_changes'] = [list(c) for c in recorded.clip_norm_changes]
  if run.noise.restarts:
    facts['restarts'] = list(run.noise.restarts)
  return facts


def _together(facts, tally, happened) -> dict[str, Any]:
  """Facts of a single run, or a summary of several runs."""
  if len(facts) == 1:
    return facts[0]
  added = ('num_rounds', 'num_participations', 'rounds_without_participants')
  separations = happened[0].separations
  for other in happened[1:]:
    separations += other.separations
  closest = min((o.witness for o in happened if o.witness), key=lambda w: w.order, default=None)
  return {
    **{name: sum(f[name] for f in facts) for name in added},
    'num_devices': tally.num_devices,
    'min_sep': min(f['min_sep'] for f in facts),
    'max_participations': max(f['max_participations'] for f in facts),
    'separations': [list(i) for i in separations.to_dict().items()],
    'witness': closest and closest._asdict(),
  }


def _joined(reasons) -> str | None:
  return '; '.join(reason for reason in reasons if reason) or None
