"""Guarantees of a run with sampled or shuffled batches, if its log allows them.

They are for training in one place. The figures are those of the accountant for
the stated sampling scheme; a log can only refute the scheme.
"""

from collections.abc import Callable, Mapping
from typing import Any

from fl_dpftrl import participation
from fl_dpftrl.accounting import gaussian
from fl_dpftrl.centralized import amplification, log_checks
from fl_dpftrl.centralized import sampling as sampling_lib
from fl_dpftrl.logs import observed as observed_lib
from fl_dpftrl.replaying import runs as runs_lib

PARTS = ('amplified', 'shuffled')
"""Where in a statement the guarantee is, of which it has at most one."""

_NO_LOG_SHOWS = (
  'that batches were drawn so, in secret and whatever the data, no log shows:'
  ' what this one has does not contradict it, a check that only gross'
  ' deviations fail'
)
_LOG_IS_SECRET = (
  'the log, which tells whose examples were drawn, is as secret as the draws,'
  ' and so is what was counted in it, min_sep and max_participations too;'
  ' worst case and observed take the rounds of the log as given, and need no'
  ' secret draws'
)


def part(statement: Mapping[str, Any]) -> str | None:
  """Returns which of the parts a statement has; None if it has none."""
  return next((name for name in PARTS if name in statement), None)


def check(run: runs_lib.Run, adjacency: str, group_size: int) -> None:
  """Raises ValueError before counting a log for which no guarantee is known."""
  if not isinstance(run.sampling, sampling_lib.Sampled):
    return
  if group_size != 1:
    raise ValueError(
      f'group_size={group_size} is refused with batches that are drawn by'
      f' {sampling_lib.name(run.sampling)}: examples are drawn one by one,'
      ' and a multiple of the sensitivity bounds no group of them'
    )
  amplification.sensitivity(run.noise.strategy, run.sampling, adjacency)


def figures(
  run: runs_lib.Run,
  happened: observed_lib.ObservedParticipation,
  *,
  deltas: list[float],
  adjacency: str,
  by_schema: Callable[[participation.MinSep], dict[str, Any]],
) -> dict[str, Any]:
  """Returns the figures that the sampling scheme gives, keyed by their part.

  Without amplification, they are the guarantee for the shuffling's schema.

  Args:
    run: the run; one without a sampling scheme gives no figures.
    happened: participation observed in its log.
    deltas: δ, at least one.
    adjacency: adjacency of neighbouring runs.
    by_schema: function that returns the figures for a schema.
  """
  scheme = run.sampling
  if scheme is None:
    return {}
  reasons = [*_other_draws(run), *log_checks.contradictions(happened, scheme)]
  result = {
    'sampling': sampling_lib.name(scheme),
    'num_examples': scheme.num_examples,
    'batch_size': scheme.batch_size,
    'num_parts': scheme.num_parts,
  }
  if isinstance(scheme, sampling_lib.Sampled):
    name = 'amplified'
    result |= {
      'sampling_probability': scheme.sampling_probability,
      'compositions': scheme.compositions,
      **_amplified(run, deltas, adjacency, known=not reasons),
    }
  else:
    name = 'shuffled'
    fixed = isinstance(scheme.schema, participation.FixedSeparation)
    result |= {
      'min_sep': scheme.schema.min_sep,
      'max_participations': scheme.schema.participations,
      'separation': 'fixed' if fixed else 'min',
      **_void(by_schema(scheme.schema), bool(reasons)),
    }
  return {
    name: {
      **result,
      'adjacency': adjacency,
      'assumption': assumption(scheme),
      'holds': not reasons,
      'reason': '; '.join(reasons) or None,
    }
  }


def assumption(scheme: sampling_lib.Cyclic) -> str:
  """States in words how batches must have been drawn."""
  if isinstance(scheme, sampling_lib.Sampled):
    return scheme.how.format(probability=scheme.sampling_probability)
  return scheme.assumption


def sentences(run: runs_lib.Run, adjacency: str, found: Mapping[str, Any]) -> list[str]:
  """States the assumptions behind `figures`, and those that the log refutes."""
  scheme, name = run.sampling, part(found)
  if name is None:
    return []
  if isinstance(scheme, sampling_lib.Sampled):
    result = [
      *amplification.assumptions(scheme),
      scheme.relation(adjacency).sentence,
      _LOG_IS_SECRET,
    ]
    if found[name]['holds']:
      result.append(_NO_LOG_SHOWS)
  else:
    result = [gaussian.assumptions(scheme.schema)[0], scheme.assumption]
  result = [f'{name}: {sentence}' for sentence in result]
  if not found[name]['holds']:
    result.append(
      f'{name}: THE LOG CONTRADICTS THE SAMPLING that was stated, so that'
      ' nothing is guaranteed here'
    )
  return result


def _other_draws(run: runs_lib.Run) -> list[str]:
  """Returns a phrase if the log's metadata state another sampling scheme."""
  key = sampling_lib.METADATA_KEY
  stated = run.log.metadata.get(key)
  if stated in (None, sampling_lib.metadata(run.sampling)[key]):
    return []
  return [f'its own file says that batches were drawn as {stated}']


def _amplified(
  run: runs_lib.Run, deltas: list[float], adjacency: str, known: bool
) -> dict[str, Any]:
  """Computes figures as `account` does; no ε if the log refutes the scheme."""
  strategy, multiplier = run.noise.strategy, run.noise.multiplier
  sensitivity = amplification.sensitivity(strategy, run.sampling, adjacency)
  spent: list[float | None] = [None] * len(deltas)
  if known and multiplier:
    guarantee = amplification.account(
      strategy, run.sampling, noise_multiplier=multiplier, delta=deltas[0], adjacency=adjacency
    )
    spent = [guarantee.epsilon, *map(guarantee.epsilon_at, deltas[1:])]
  result = {
    'sensitivity': sensitivity,
    'sensitivity_kind': 'exact',
    'effective_noise_multiplier': multiplier / sensitivity,
    'rho': None,
    'epsilon': spent[0],
  }
  if len(deltas) > 1:
    result['curve'] = [{'delta': d, 'epsilon': e} for d, e in zip(deltas, spent)]
  return result


def _void(found: dict[str, Any], void: bool) -> dict[str, Any]:
  """Returns the figures, without those of the guarantee if it is void."""
  if not void:
    return found
  result = {**found, 'rho': None, 'epsilon': None}
  if 'curve' in found:
    result['curve'] = [{**point, 'epsilon': None} for point in found['curve']]
  return result
