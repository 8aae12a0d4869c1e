"""Recommendation of a strategy and its noise, and comparison of alternatives.

Every ε here is a prediction. Only the log of a run proves its guarantee.
"""

import dataclasses
import statistics
from collections.abc import Sequence

from fl_dpftrl.participation.accounting import Guarantee, gaussian
from fl_dpftrl.participation.accounting.guarantees import Terms
from fl_dpftrl.participation.rules import separations
from fl_dpftrl.planning import search
from fl_dpftrl.support.files import json_files


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
  """Strategy compared with the recommended one.

  Attributes:
    candidate: strategy and its figures.
    fits: True if its noise stores at most max_copies model copies.
    regret: largest relative excess of its loss over the lowest loss of those that fit, over the
      schemas; negative if it is lower.
    loss_ratio: its loss over that of the recommended one under the planned schema, which is the
      ratio of the noise in the model at the same ε.
    guarantee: guarantee with the noise at which it has the same ε.
    same_noise_epsilon: its ε at the same noise in the model.
  """

  candidate: search.Evaluated
  fits: bool
  regret: float
  loss_ratio: float
  guarantee: Guarantee
  same_noise_epsilon: float

  def to_json(self, planned: separations.MinSep) -> json_files.Object:
    """Returns the figures under the planned schema."""
    return {
      'strategy': self.candidate.label,
      'memory_copies': self.candidate.memory_copies,
      'fits': self.fits,
      'loss': self.candidate.loss(planned),
      'sensitivity_kind': self.candidate.files[planned].sensitivity.kind,
      'loss_ratio': self.loss_ratio,
      'regret': self.regret,
      'noise_multiplier': self.guarantee.noise_multiplier,
      'same_noise_epsilon': self.same_noise_epsilon,
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recommendation:
  """Recommended strategy with its noise and predicted ε.

  Attributes:
    options: all strategies including this one, sorted by loss.
  """

  candidate: search.Evaluated
  planned: separations.MinSep
  guarantee: Guarantee
  epsilons: tuple[float, ...]
  options: tuple[Option, ...]

  @property
  def noise_in_model(self) -> float:
    """Noise of the sum of the updates, per unit of clip norm."""
    return self.guarantee.noise_multiplier * self.candidate.error(self.planned)

  @property
  def alternatives(self) -> tuple[Option, ...]:
    """All other strategies, sorted by loss."""
    return tuple(o for o in self.options if o.candidate is not self.candidate)

  def to_json(self) -> json_files.Object:
    """Returns the recommended strategy, its noise and its predicted ε."""
    guarantee = self.guarantee
    return {
      'strategy': self.candidate.label,
      'family': self.candidate.strategy.family,
      'optimised': self.candidate.origin.optimised,
      'noise_multiplier': guarantee.noise_multiplier,
      'epsilon': guarantee.epsilon(),
      'expected_epsilon': statistics.fmean(self.epsilons),
      'epsilon_range': [min(self.epsilons), max(self.epsilons)],
      'delta': guarantee.delta,
      'rho': guarantee.rho,
      'adjacency': guarantee.adjacency,
      'sensitivity': guarantee.sensitivity,
      'sensitivity_kind': guarantee.sensitivity_kind,
      'error': self.candidate.error(self.planned),
      'loss': self.candidate.loss(self.planned),
      'memory_copies': self.candidate.memory_copies,
    }


def choose(
  evaluated: Sequence[search.Evaluated], schemas: Sequence[separations.MinSep], max_copies: int
) -> search.Evaluated:
  """Returns the candidate with the least regret among those that fit."""
  fitting = _fitting(evaluated, max_copies)
  if not fitting:
    least = min(candidate.memory_copies for candidate in evaluated)
    raise ValueError(f'max_copies={max_copies} is below the {least} that every strategy here needs')
  return min(fitting, key=lambda candidate: search.regret(candidate, schemas, fitting))


def _fitting(evaluated: Sequence[search.Evaluated], max_copies: int) -> list[search.Evaluated]:
  return [candidate for candidate in evaluated if candidate.memory_copies <= max_copies]


def recommend(
  evaluated: Sequence[search.Evaluated],
  schemas: Sequence[separations.MinSep],
  planned: separations.MinSep,
  simulated: Sequence[separations.MinSep],
  *,
  max_copies: int,
  delta: float,
  noise_multiplier: float | None = None,
  epsilon: float | None = None,
) -> Recommendation:
  """Chooses a strategy and computes the predicted ε of all candidates."""
  if (noise_multiplier is None) == (epsilon is None):
    raise ValueError('give noise_multiplier or epsilon, and not both')
  best = choose(evaluated, schemas, max_copies)
  sensitivity = best.files[planned].sensitivity
  if noise_multiplier is None:
    effective = gaussian.effective_noise_multiplier(epsilon, delta)  # type: ignore[arg-type]
    noise_multiplier = effective * sensitivity.value
  guarantee = Guarantee.of(sensitivity, Terms(delta), noise_multiplier=noise_multiplier)
  fitting = _fitting(evaluated, max_copies)

  def option(candidate):
    ratio = candidate.loss(planned) / best.loss(planned)
    effective = guarantee.effective_noise_multiplier
    candidate_sensitivity = candidate.files[planned].sensitivity
    # Dividing and multiplying would round.
    noise = noise_multiplier if candidate is best else effective * candidate_sensitivity.value
    return Option(
      candidate=candidate,
      fits=candidate.memory_copies <= max_copies,
      regret=search.regret(candidate, schemas, fitting),
      loss_ratio=ratio,
      guarantee=Guarantee.of(candidate_sensitivity, Terms(delta), noise_multiplier=noise),
      same_noise_epsilon=gaussian.epsilon(effective / ratio, delta),
    )

  by_loss = sorted(evaluated, key=lambda candidate: candidate.loss(planned))
  values = [best.files[schema].sensitivity.value for schema in simulated]
  return Recommendation(
    candidate=best,
    planned=planned,
    guarantee=guarantee,
    epsilons=tuple(dataclasses.replace(guarantee, sensitivity=s).epsilon() for s in values),
    options=tuple(option(candidate) for candidate in by_loss),
  )
