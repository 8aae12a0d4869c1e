"""Empirical ε of one training run, from its canaries.

Canary i takes part in the rounds of pattern pᵢ (zeros and ones). In direction cᵢ, the released
sums hold pᵢ, noise of covariance σ² N Nᵀ over the rounds, and what other devices send. The score
of a canary is the likelihood ratio of that noise, its matched filter

  Tᵢ = qᵢ · L⁻¹sᵢ / eᵢ,  qᵢ = L⁻¹pᵢ,  eᵢ = ‖qᵢ‖,  L Lᵀ = N Nᵀ,

for the inner products sᵢ of cᵢ with the sums of the rounds. By the lemma of Neyman and Pearson, no
other function of them tells a canary better from its control under Gaussian noise. The mean of Tᵢ
is eᵢ for a canary and 0 for a control, if what other devices send does not depend on cᵢ. The
standard deviation of both is σ if noise dominates; updates of other devices, nearly orthogonal in
high dimension, add a little. Where those updates pull a model back that was moved along cᵢ, the
mean is smaller: the filter sees releases alone. eᵢ is ‖C pᵢ‖ for a square C, by which the
accountant bounds the same device. Rounds that released nothing are left out of the filter.

Source: Andrew et al. 2023, "One-shot empirical privacy estimation for federated learning", whose
statistic of several rounds is the largest cosine; the filter takes its place for correlated noise.
"""

import dataclasses
import math

import numpy as np
from scipy import linalg, special, stats

from fl_dpftrl.accounting import gaussian
from fl_dpftrl.auditing import bounds
from fl_dpftrl.auditing import canaries as canaries_lib
from fl_dpftrl.families import base
from fl_dpftrl.files import json_files
from fl_dpftrl.logs import canaries as ids

MOST_ROUNDS = 10_000
"""Rounds whose noise is whitened at once, with a matrix of their square."""

MEANING = (
  'the empirical ε is what the canaries of this one run show. It is an estimate from below, no'
  ' guarantee: others may see more, other runs may differ, and it takes the scores as Gaussian'
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneRunAudit:
  """Empirical privacy of one run.

  Attributes:
    num_canaries: number of canaries, and of controls.
    size: parameters of the model.
    num_rounds: rounds that consumed noise.
    num_released: rounds whose release was scored.
    delta: δ.
    confidence: confidence of each lower bound.
    exposure: eᵢ of the most exposed canary.
    response: measured part of the canaries' updates in the releases; 1 if they are whole.
    deviation: standard deviation of the scores, about the noise multiplier.
    mu: exposure · response / deviation, of the most exposed canary; at least 0.
    epsilon: ε at delta of two Gaussians mu standard deviations apart.
    lower_bound_epsilon: lower bound on it, if the scores are independent and Gaussian.
    counted_lower_bound_epsilon: lower bound from counted errors, for scores of any distribution.
    claimed_epsilon: ε at delta that the noise multiplier gives for the most exposed canary; None
      without noise.
    patterns: which canary takes part in which round, shape [num_canaries, num_rounds].
    exposures: eᵢ, shape [num_canaries]; 0 for a canary whose rounds released nothing.
    canary_scores, control_scores: Tᵢ, shape [num_canaries] each.
  """

  num_canaries: int
  size: int
  num_rounds: int
  num_released: int
  delta: float
  confidence: float
  exposure: float
  response: float
  deviation: float
  mu: float
  epsilon: float
  lower_bound_epsilon: float
  counted_lower_bound_epsilon: float
  claimed_epsilon: float | None
  patterns: np.ndarray = dataclasses.field(repr=False)
  exposures: np.ndarray = dataclasses.field(repr=False)
  canary_scores: np.ndarray = dataclasses.field(repr=False)
  control_scores: np.ndarray = dataclasses.field(repr=False)

  def contradicts(self, epsilon: float | None) -> bool:
    """True if a lower bound exceeds a proven ε."""
    largest = max(self.lower_bound_epsilon, self.counted_lower_bound_epsilon)
    return epsilon is not None and largest > epsilon

  def figures(self) -> json_files.Object:
    """Returns the figures as a JSON object, without those of single canaries."""
    arrays = ('patterns', 'exposures', 'canary_scores', 'control_scores')
    names = (field.name for field in dataclasses.fields(self))
    return {name: getattr(self, name) for name in names if name not in arrays}

  def to_json(self) -> json_files.Object:
    """Returns the figures, their meaning, and each canary with its scores."""
    columns = zip(self.patterns, self.exposures, self.canary_scores, self.control_scores)
    return {
      **self.figures(),
      'meaning': MEANING,
      'canaries': [
        {
          'device_id': ids.device_id(number),
          'rounds': np.flatnonzero(pattern).tolist(),
          'exposure': float(exposure),
          'score': float(score),
          'control_score': float(control),
        }
        for number, (pattern, exposure, score, control) in enumerate(columns)
      ],
    }


def audit_run(
  canaries: canaries_lib.Canaries,
  scores: np.ndarray,
  strategy: base.Strategy,
  *,
  noise_multiplier: float,
  delta: float,
  confidence: float = 0.95,
) -> OneRunAudit:
  """Computes the empirical ε of a run.

  Response and deviation are pooled over all canaries and controls, since both have the same
  noise. ε is that of two Gaussians of this one deviation. Deviations that are estimated apart
  would differ by chance alone, which dominates ε at a small δ.

  Args:
    canaries: the canaries of the run.
    scores: `Canaries.scores` of each round, shape [num_rounds, 2 · num_canaries]; NaN for a round
      that released nothing.
    strategy: the claimed C and N.
    noise_multiplier: the claimed std(Z) / clip_norm, for claimed_epsilon alone.
    delta: δ.
    confidence: probability that a lower bound holds; each has its own.

  Raises:
    ValueError: for an argument that will not do, or if fewer than 8 canaries took part in a
      round that released anything.
  """
  gaussian.check_delta(delta)
  if not 0.0 < confidence < 1.0:
    raise ValueError(f'confidence must lie strictly between 0 and 1, got {confidence!r}')
  num_rounds, count = canaries.schema.num_rounds, canaries.num_canaries
  if np.shape(scores) != (num_rounds, 2 * count):
    raise ValueError(f'scores must have shape {(num_rounds, 2 * count)}, got {np.shape(scores)}')
  patterns = canaries.patterns()
  all_seen, all_controls, all_exposures = _filtered(
    np.asarray(scores, np.float64), patterns, strategy
  )
  shown = all_exposures > 0.0
  seen, controls, exposures = all_seen[shown], all_controls[shown], all_exposures[shown]
  if len(seen) < canaries_lib.LEAST:
    raise ValueError(
      f'scores must hold, for at least {canaries_lib.LEAST} canaries, a round that released'
      f' something; {len(seen)} have one'
    )
  response = float(exposures @ seen / (exposures @ exposures))
  residuals = seen - response * exposures
  freedom = 2 * len(seen) - 1
  square = float(residuals @ residuals + controls @ controls)
  deviation = math.sqrt(square / freedom)
  alpha = 1.0 - confidence
  most_deviation = math.sqrt(square / stats.chi2.ppf(alpha / 2.0, freedom))
  exposure = float(exposures.max())
  error = -float(special.ndtri(alpha / 2.0)) / float(np.linalg.norm(exposures))
  mu = exposure * max(0.0, response / deviation)
  least_mu = exposure * max(0.0, response / most_deviation - error)
  return OneRunAudit(
    num_canaries=count,
    size=canaries.size,
    num_rounds=num_rounds,
    num_released=int(np.isfinite(scores).all(axis=1).sum()),
    delta=delta,
    confidence=confidence,
    exposure=exposure,
    response=response,
    deviation=deviation,
    mu=mu,
    epsilon=bounds.gaussian_epsilon(mu, delta),
    lower_bound_epsilon=bounds.gaussian_epsilon(least_mu, delta),
    counted_lower_bound_epsilon=bounds.lower_bound(
      controls, seen, delta=delta, confidence=confidence
    ),
    claimed_epsilon=(
      gaussian.epsilon(noise_multiplier / exposure, delta) if noise_multiplier else None
    ),
    patterns=patterns,
    exposures=all_exposures,
    canary_scores=all_seen,
    control_scores=all_controls,
  )


def _filtered(
  scores: np.ndarray, patterns: np.ndarray, strategy: base.Strategy
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns Tᵢ of the canaries, Tᵢ of their controls, and eᵢ; 0 where nothing is known."""
  num_rounds = len(scores)
  if num_rounds > MOST_ROUNDS:
    raise ValueError(f'num_rounds={num_rounds} is beyond the {MOST_ROUNDS} that can be whitened')
  released = np.isfinite(scores).all(axis=1)
  if not released.any():
    nothing = np.zeros(len(patterns))
    return nothing, nothing, nothing
  noising = strategy.noising_matrix(num_rounds)[released]
  factor = linalg.cholesky(noising @ noising.T, lower=True)
  whiten = lambda columns: linalg.solve_triangular(factor, columns, lower=True)
  filters = whiten(patterns[:, released].T.astype(np.float64))
  exposures = np.linalg.norm(filters, axis=0)
  count = len(patterns)
  whitened = whiten(scores[released])
  lower_bounds = [
    np.einsum('ti,ti->i', filters, part) / np.where(exposures > 0.0, exposures, 1.0)
    for part in (whitened[:, :count], whitened[:, count:])
  ]
  return lower_bounds[0], lower_bounds[1], exposures
