"""Guarantees of a run with sampled or shuffled batches, if its log allows them.

The figures are those of the accountant for the stated scheme, which a log can only refute.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence

from fl_dpftrl.accounting import guarantee as guarantee_lib
from fl_dpftrl.amplification import sampling
from fl_dpftrl.families import base
from fl_dpftrl.files import json_files
from fl_dpftrl.participation import counts, schemas
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawn:
  """The guarantee of a sampling scheme.

  Secret draws amplify it. That of shuffled batches is that of their schema, not amplified.

  Attributes:
    scheme: sampling scheme that was stated for the run.
    guarantee: that of any example; as without noise if the log refutes the scheme.
    reason: why the log contradicts the scheme; None if it does not, and if that must not be
      published.
    holds: whether the log does not contradict the scheme.
  """

  scheme: sampling.Scheme
  guarantee: guarantee_lib.Guarantee
  reason: str | None
  holds: bool

  @property
  def part(self) -> str:
    """Name of the guarantee in a statement: 'amplified' if it rests on secret draws."""
    return 'amplified' if isinstance(self.scheme, sampling.Sampled) else 'shuffled'

  @property
  def name(self) -> str:
    """Name of the scheme."""
    return sampling.name(self.scheme)

  def sentences(self) -> list[str]:
    """States the assumptions, and that the log refutes them if it does."""
    if isinstance(self.scheme, sampling.Shuffled):
      result = [guarantee_lib.assumptions(self.scheme.schema)[0], self.scheme.assumption]
    else:
      from fl_dpftrl.amplification import accountant

      result = [
        *accountant.assumptions(self.scheme),
        self.scheme.relation(self.guarantee.adjacency)[2],
        _LOG_IS_SECRET,
      ]
      if self.holds:
        result.append(_NO_LOG_SHOWS)
    if not self.holds:
      result.append(
        'THE LOG CONTRADICTS THE SAMPLING that was stated, so that nothing is guaranteed here'
      )
    return [f'{self.part}: {sentence}' for sentence in result]

  def to_json(self) -> json_files.Object:
    """Returns the scheme, the figures, the assumption and whether it holds."""
    scheme = sampling.to_json(self.scheme)
    del scheme['num_rounds']
    if isinstance(self.scheme, sampling.Shuffled):
      schema = self.scheme.schema
      scheme |= {
        'min_sep': schema.min_sep,
        'max_participations': schema.participations,
        'separation': 'fixed' if isinstance(schema, schemas.FixedSeparation) else 'min',
      }
    elif isinstance(self.scheme, sampling.Batches):
      scheme |= {
        'sampling_probability': self.scheme.sampling_probability,
        'compositions': self.scheme.turns,
      }
    return {
      **scheme,
      **self.guarantee.to_json(),
      'adjacency': self.guarantee.adjacency,
      'assumption': self.scheme.assumption,
      'holds': self.holds,
      'reason': self.reason,
    }


def check(
  scheme: sampling.Scheme | None, strategy: base.Strategy, adjacency: str, group_size: int
) -> None:
  """Raises ValueError before counting a log for which no guarantee is known."""
  if not isinstance(scheme, sampling.Sampled):
    return
  from fl_dpftrl.amplification import accountant

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
) -> Drawn:
  """Returns the guarantee of the scheme, without ε if the log refutes it.

  Args:
    noise_multiplier: std(Z) / clip_norm.
    stated: scheme that the log states, if any.
    deltas: δ, at least one.
    by_schema: function that returns the guarantee under a schema.
  """
  # Most replays have no sampling scheme, and need none of the mathematics of one.
  from fl_dpftrl.amplification import accountant, log_checks

  reasons = log_checks.contradictions(happened, scheme)
  own = sampling.to_json(scheme)
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
  return Drawn(
    scheme=scheme,
    guarantee=dataclasses.replace(result, noise_multiplier=0.0) if reasons else result,
    reason='; '.join(reasons) or None,
    holds=not reasons,
  )
