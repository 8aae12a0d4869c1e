"""Simulated batches of centralized training, and secret bins.

The cohorts follow a scheme of sampling: rounds take turns at parts of the examples and draw
within their part. They are simulated from a seed. Draws that amplify a guarantee must
be secret, so a known or guessable seed does not amplify.
"""

import functools
import math
from collections.abc import Iterator

from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.participation.rules import sampling
from fl_dpftrl.planning.simulation import cohorts, seeds
from fl_dpftrl.support import checks

_ROUND_SECONDS = 60


def rounds(
  scheme: sampling.Scheme, seed: int, *, num_devices: int | None = None, first: int = 0
) -> Iterator[schemas.Cohort]:
  """Returns the cohorts of a sampling scheme from a round on, each a function of seed and round.

  The device_ids of the cohorts are the numbers of examples, from 0. Example i is in part i mod
  num_parts, and those beyond num_parts equal parts are in no round. The cost of a sampled batch is
  proportional to its size, that of a shuffled order to its part, once per pass.

  Args:
    num_devices: for secret bins: devices, each of which takes part in all rounds of its bin.
  """
  if type(scheme) not in sampling.SCHEMES.values():
    raise ValueError(f'scheme must be one of {", ".join(sampling.SCHEMES)}, got {scheme!r}')
  checks.whole(0, math.inf, seed=seed)
  if (num_devices is None) == (scheme.unit == 'device'):
    raise ValueError('num_devices goes with secret bins, and they need it')
  if num_devices is not None:
    num_devices = checks.whole(num_devices=num_devices)
  if not 0 <= first <= scheme.num_rounds:
    raise ValueError(f'first must lie in 0 to {scheme.num_rounds}, got {first!r}')
  draw = scheme.drawer(functools.partial(seeds.generator, seed), num_devices)
  begins = lambda t: cohorts.START + t * _ROUND_SECONDS
  return (
    schemas.Cohort(t, draw(t), begins(t), begins(t + 1)) for t in range(first, scheme.num_rounds)
  )
