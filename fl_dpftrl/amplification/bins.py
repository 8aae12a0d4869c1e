"""Guarantee of secret bins, for any strategy, and the noise that one needs."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl.accounting import gaussian
from fl_dpftrl.accounting import guarantee as guarantee_lib
from fl_dpftrl.amplification import bound
from fl_dpftrl.amplification import sampling as sampling_lib
from fl_dpftrl.families import base
from fl_dpftrl.files import json_files

BOUND = 'bound'
METHODS = (BOUND,)

_MOST_ENTRIES = 2**30  # of a strategy matrix
_PRECISION = 1e-4  # relative, of the ε that noise is found for
_MOST_STEPS = 20


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class BinsGuarantee(guarantee_lib.Guarantee):
  """Guarantee for every device of a run with secret bins.

  The sensitivity is that of a device whose bin is known. No single Gaussian release is as private,
  so there is no ρ and no μ.

  Attributes:
    sampling: the bins.
    gram: Gram matrix of the bins, as `gram` returns it.
    method: how ε is proven, of `METHODS`.
  """

  sampling: sampling_lib.SecretBins
  gram: np.ndarray = dataclasses.field(compare=False)
  method: str = BOUND
  _found: dict[float, float] = dataclasses.field(default_factory=dict, compare=False, init=False)

  rho = mu = None  # type: ignore[assignment]

  def _epsilon(self, delta: float) -> float:
    if delta not in self._found:
      self._found[delta] = bound.epsilon(self.gram / self.noise_multiplier**2, delta)
    return self._found[delta]

  def to_dp_event(self) -> Any:
    """Raises ValueError: no event of dp_accounting is as private."""
    raise ValueError('dp_accounting has no event of secret bins')

  def to_json(self) -> json_files.Object:
    """Returns the figures and the method."""
    return {**super().to_json(), 'method': self.method}


def proven(
  strategy: base.Strategy,
  scheme: sampling_lib.SecretBins,
  *,
  noise_multiplier: float,
  deltas: Sequence[float],
  adjacency: str,
  method: str = BOUND,
  assumptions: tuple[str, ...] = (),
) -> BinsGuarantee:
  """Returns the guarantee; ValueError for another adjacency than zero-out or an unknown method."""
  scheme.relation(adjacency)
  if method not in METHODS:
    raise ValueError(f'method must be one of {", ".join(METHODS)}, got {method!r}')
  entries = gram(strategy, scheme)
  return BinsGuarantee(
    sensitivity=math.sqrt(entries.diagonal().max()),
    sensitivity_kind=sensitivity_lib.UPPER_BOUND,
    noise_multiplier=noise_multiplier,
    deltas=tuple(deltas),
    adjacency=adjacency,
    assumptions=assumptions,
    sampling=scheme,
    gram=entries,
    method=method,
  )


def calibrated(start: BinsGuarantee, epsilon: float) -> BinsGuarantee:
  """Returns the guarantee with about the least noise that meets ε at the first δ.

  The noise multiplier is minimal up to about a relative 1e-4 of ε.
  """
  least = gaussian.effective_noise_multiplier(epsilon, start.delta)  # Enough without a secret.
  noise, slope, before = start.sensitivity * least, -1.0, None
  for _ in range(_MOST_STEPS):
    found = dataclasses.replace(start, noise_multiplier=noise)
    excess = math.log(max(found.epsilon(), 1e-300) / epsilon)
    if -_PRECISION <= excess <= 0.0:
      break
    if before is not None and excess != before[1]:
      slope = min((excess - before[1]) / math.log(noise / before[0]), -0.1)
    before = noise, excess
    # It aims at the middle of what will do.
    noise *= math.exp((excess + 0.5 * _PRECISION) / -slope)
  if found.epsilon() > epsilon:
    found = dataclasses.replace(start, noise_multiplier=start.sensitivity * least)
  return found


def gram(strategy: base.Strategy, scheme: sampling_lib.SecretBins) -> np.ndarray:
  """Returns M|C|ᵀ|C|M, [bins, bins], of the rounds M of each bin and a clip norm of 1, rounded up.

  Raises:
    ValueError: if the strategy runs fewer rounds, or its matrix would be too large.
  """
  num_rounds, num_bins = scheme.num_rounds, scheme.num_bins
  base.check_num_rounds(strategy, num_rounds)
  if strategy.num_noise_rows(num_rounds) * num_rounds > _MOST_ENTRIES:
    raise ValueError(f'num_rounds={num_rounds} is too large for bins, which take all of C')
  matrix = strategy.strategy_matrix(num_rounds)
  sums = np.zeros((len(matrix), num_bins))
  for start in range(0, num_rounds, num_bins):
    block = matrix[:, start : start + num_bins]
    sums[:, : block.shape[1]] += np.abs(block)
  return (sums.T @ sums) * (1.0 + 1e-11)


def assumptions(scheme: sampling_lib.SecretBins) -> tuple[str, ...]:
  """Returns the assumptions of a guarantee with secret bins, in words."""
  return (
    scheme.assumption,
    'no device takes the place of another: no round closes at a report goal or fails below one,'
    ' every update of a member of the bin is summed, every round is released, and the divisor is a'
    ' constant',
    'strategy and noise multiplier are fixed before the run; in a round of its bin a device adds'
    ' one update, clipped to the clip norm, or nothing',
    'who took part, and how many in which round, is secret for ever: log, counts, failures and what'
    ' devices store',
    'bins serve this run alone, as guarantees of runs that share them do not add up',
    'Z is independent Gaussian noise, secret, and none of its rows enters two sums',
  )
