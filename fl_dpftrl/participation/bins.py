"""Guarantee of secret bins, for any strategy, and the noise that one needs."""

import dataclasses
import math
from typing import Any

import numpy as np

from fl_dpftrl.mechanisms import base, sensitivities
from fl_dpftrl.participation import drawn
from fl_dpftrl.participation.accounting import bound, certified, gaussian, guarantees
from fl_dpftrl.support import checks
from fl_dpftrl.support.files import json_files

BOUND, CERTIFIED = METHODS = ('bound', 'certified')
"""How ε is proven: without coins, or by Monte Carlo."""

_MOST_ENTRIES = 2**30  # of a strategy matrix
_MORE = (1.01, 1.03, 1.1)  # noise over what a pilot finds
_CERTIFIED = (
  'ε was certified by Monte Carlo with coins of the operating system: it is too small with'
  ' probability beta at most, and every certificate of this run is counted in tries; where ε was'
  ' given and the noise found, no probability is left, as beta is a part of δ'
)
_PRECISION, _MOST_STEPS = 1e-4, 20  # The first is relative, of the ε that noise is found for.


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class BinsGuarantee(guarantees.Guarantee):
  """Guarantee for every device of a run with secret bins.

  The sensitivity is that of a device whose bin is known. No single Gaussian release is as private,
  so there is no ρ and no μ.

  Attributes:
    sampling: the bins.
    gram: Gram matrix of the bins, as `gram` returns it.
    method: how ε is proven, of `METHODS`.
    num_samples, tries: see `proven`.
  """

  sampling: drawn.Secret
  gram: np.ndarray = dataclasses.field(compare=False)
  method: str = BOUND
  num_samples: int = 10**6
  tries: int = 1
  _found: dict[float, float] = dataclasses.field(default_factory=dict, compare=False, init=False)
  _certificates: dict[float, json_files.Object] = dataclasses.field(
    default_factory=dict, compare=False, init=False
  )

  rho = mu = None  # type: ignore[assignment]

  def _epsilon(self, delta: float) -> float:
    if delta not in self._found:
      entries = self.gram / self.noise_multiplier**2
      value = bound.epsilon(entries, delta)
      if self.method == CERTIFIED:
        value, rests_on = certified.certificate(
          entries,
          delta,
          most=value,
          num_samples=self.num_samples,
          tries=self.tries + len(self._certificates),
        )
        self._certificates[delta] = rests_on
      self._found[delta] = value
    return self._found[delta]

  def to_dp_event(self) -> Any:
    """Raises ValueError: no event of dp_accounting is as private."""
    raise ValueError('dp_accounting has no event of secret bins')

  def to_json(self) -> json_files.Object:
    """Returns the figures and the method, with beta, samples, tries and digest of its coins."""
    figures = {**super().to_json(), 'method': self.method}
    return figures | self._certificates.get(self.delta, {})


def proven(
  strategy: base.Strategy, scheme: drawn.Secret, noise_multiplier: float, terms: guarantees.Terms
) -> BinsGuarantee:
  """Returns the guarantee; ValueError for another adjacency than zero-out or an unknown method.

  Args:
    terms: its method has `method`, and for 'certified', which takes one δ, `num_samples` and
      `tries`: the number of this certificate among all that are made for the run, so that the best
      may be taken.
  """
  how = {'method': BOUND, **terms.method}
  method, assumptions = how['method'], (*scheme.conditions, scheme.relation(terms.adjacency)[2])
  checks.one_of(METHODS, method=method)
  if method == CERTIFIED:
    if len(terms.deltas) > 1:
      raise ValueError('delta: a certificate is of one δ; give one, or the method bound')
    assumptions = (*assumptions, _CERTIFIED)
  elif len(how) > 1:
    raise ValueError("num_samples and tries go with method 'certified'")
  entries = gram(strategy, scheme)
  return BinsGuarantee(
    sensitivity=math.sqrt(entries.diagonal().max()),
    sensitivity_kind=sensitivities.UPPER_BOUND,
    noise_multiplier=noise_multiplier,
    deltas=terms.deltas,
    adjacency=terms.adjacency,
    assumptions=assumptions,
    sampling=scheme,
    gram=entries,
    **how,
  )


def calibrated(start: BinsGuarantee, epsilon: float) -> BinsGuarantee:
  """Returns the guarantee with the least noise, up to 1e-4 of ε, that meets ε at the first δ."""
  if start.method == CERTIFIED:
    return _certified(start, epsilon)
  least = gaussian.effective_noise_multiplier(epsilon, start.delta)  # Enough without a secret.
  noise, slope, previous = start.sensitivity * least, -1.0, None
  for _ in range(_MOST_STEPS):
    certificate = dataclasses.replace(start, noise_multiplier=noise)
    excess = math.log(max(certificate.epsilon(), 1e-300) / epsilon)
    if -_PRECISION <= excess <= 0.0:
      break
    if previous is not None and excess != previous[1]:
      slope = min((excess - previous[1]) / math.log(noise / previous[0]), -0.1)
    previous = noise, excess
    # It aims at the middle of what will do.
    noise *= math.exp((excess + 0.5 * _PRECISION) / -slope)
  if certificate.epsilon() > epsilon:
    certificate = dataclasses.replace(start, noise_multiplier=start.sensitivity * least)
  return certificate


def _certified(start: BinsGuarantee, epsilon: float) -> BinsGuarantee:
  """Returns the guarantee of a little more noise than a pilot finds, or of the bound."""
  others = tuple(sentence for sentence in start.assumptions if sentence != _CERTIFIED)
  fallback = calibrated(dataclasses.replace(start, method=BOUND, assumptions=others), epsilon)
  noise = fallback.noise_multiplier
  for _ in range(4):
    entries = start.gram / noise**2
    noise *= certified.approximate(entries, start.delta, 2.0 * epsilon) / epsilon
  failed = 0
  for more in (more for more in _MORE if noise * more < fallback.noise_multiplier):
    found = dataclasses.replace(start, noise_multiplier=noise * more, tries=start.tries + failed)
    if found.epsilon() <= epsilon:
      return found
    failed += 1
  retry_sentences = (
    (f'{failed} certificates failed and count as tries of this run',) if failed else ()
  )
  return dataclasses.replace(fallback, assumptions=(*others, *retry_sentences))


def gram(strategy: base.Strategy, scheme: Any) -> np.ndarray:
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
