"""Guarantees of a run with sampled or shuffled batches, if its log allows them.

The figures are those of the accountant for the stated scheme, which a log can only refute.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

from fl_dpftrl.accounting import guarantee as guarantee_lib
from fl_dpftrl.families import base
from fl_dpftrl.files import json_files
from fl_dpftrl.participation import counts, registry, schemas
from fl_dpftrl.participations import sampling
from fl_dpftrl.text import messages

_NO_LOG_SHOWS = (
  'that it was drawn so, in secret and whatever the data, no log shows: what this one has'
  ' does not contradict it, a check that only gross deviations fail'
)
_LOG_IS_SECRET = (
  'the log, which tells whose examples were drawn, is as secret as the draws, and so is what was'
  ' counted in it, min_sep and max_participations too; worst case and observed take the rounds of'
  ' the log as given, and need no secret draws'
)


def part(scheme: sampling.Scheme) -> str:
  """Returns the name of the guarantee in a statement: 'amplified' if it rests on secret draws."""
  return 'amplified' if isinstance(scheme, sampling.Sampled) else 'shuffled'


def sentences(scheme: sampling.Scheme, adjacency: str, holds: bool) -> list[str]:
  """States the assumptions, and that the log refutes them if it does."""
  if isinstance(scheme, sampling.Shuffled):
    result = [guarantee_lib.assumptions(scheme.schema)[0], scheme.assumption]
  else:
    from fl_dpftrl.participations import accountant

    result = [*accountant.assumptions(scheme), scheme.relation(adjacency)[2], _LOG_IS_SECRET]
    result += [_NO_LOG_SHOWS] if holds else []
  if not holds:
    result.append(
      'THE LOG CONTRADICTS THE SAMPLING that was stated, so that nothing is guaranteed here'
    )
  return [f'{part(scheme)}: {sentence}' for sentence in result]


def to_json(scheme: Any) -> json_files.Object:
  """Returns a scheme as a statement has it."""
  result = registry.to_json(scheme) | {'assumption': scheme.assumption}
  result = {'sampling': result.pop('kind'), **result}
  del result['num_rounds']
  if isinstance(scheme, sampling.Shuffled):
    schema = scheme.schema
    result |= {
      'min_sep': schema.min_sep,
      'max_participations': schema.participations,
      'separation': 'fixed' if isinstance(schema, schemas.FixedSeparation) else 'min',
    }
  elif isinstance(scheme, sampling.Batches):
    result |= {'sampling_probability': scheme.sampling_probability, 'compositions': scheme.turns}
  return result


def check(
  scheme: sampling.Scheme | None, strategy: base.Strategy, adjacency: str, group_size: int
) -> None:
  """Raises ValueError before counting a log for which no guarantee is known."""
  if not isinstance(scheme, sampling.Sampled):
    return
  from fl_dpftrl.participations import accountant

  accountant.check_alone(scheme, group_size)
  if isinstance(scheme, sampling.SecretBins):
    scheme.relation(adjacency)
  else:
    accountant.sensitivity(strategy, scheme, adjacency)


def check_public(scheme: sampling.Scheme | None) -> None:
  """Raises ValueError for a run of which no figure of the log may be published."""
  if not (scheme is None or isinstance(scheme, sampling.Shuffled)):
    raise ValueError(
      'participation that was drawn in secret has no public report: least separation and most'
      ' participations in the log are as secret; publish what account says of the sampling'
    )


def guarantee(
  scheme: sampling.Scheme,
  strategy: base.Strategy,
  *,
  noise_multiplier: float,
  happened: counts.RunCounts,
  stated: json_files.Object | None,
  deltas: Sequence[float],
  adjacency: str,
  by_schema: Callable[[schemas.MinSep], guarantee_lib.Guarantee],
) -> tuple[guarantee_lib.Guarantee, str | None]:
  """Returns the guarantee of the scheme, without ε if the log refutes it, and why it does.

  Args:
    noise_multiplier: std(Z) / clip_norm.
    stated: scheme that the log states, if any.
    deltas: δ, at least one.
    by_schema: function that returns the guarantee under a schema.
  """
  # Most replays have no sampling scheme, and need none of the mathematics of one.
  from fl_dpftrl.participations import accountant, log_checks

  reasons = log_checks.contradictions(happened, scheme)
  own = registry.to_json(scheme)
  # Of rounds that were planned, a run may have had fewer.
  if stated is not None and stated | {'num_rounds': scheme.num_rounds} != own:
    said = messages.one_line(json.dumps(stated), 200)
    reasons.insert(0, f'its own file says that participation was drawn as {said}')
  if isinstance(scheme, sampling.Shuffled):
    result = by_schema(scheme.schema)
  else:
    result = accountant.proven(
      strategy,
      scheme,
      noise_multiplier=0.0 if reasons else noise_multiplier,
      deltas=tuple(deltas),
      adjacency=adjacency,
    )
  if not reasons:
    return result, None
  return dataclasses.replace(result, noise_multiplier=0.0), '; '.join(reasons)
