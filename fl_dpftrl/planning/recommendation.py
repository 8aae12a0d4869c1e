"""Which strategy to run, with how much noise, and what the others would bring.

Every ε here is a prediction: what a run guarantees is for its own log to say.
"""

import dataclasses
from typing import Sequence

from fl_dpftrl import participation
from fl_dpftrl.accounting import calibration
from fl_dpftrl.accounting import gaussian
from fl_dpftrl.planning import candidates as candidates_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
  """A strategy beside the recommended one.

  Attributes:
    candidate: the strategy.
    fits: whether its noise takes no more copies than it may.
    regret: by how much its loss is above the least of those that fit, at most,
      over the schemas; negative where it is below.
    loss_ratio: its loss over that of the recommended one, under the planned
      schema: of the noise in the model at the same ε.
    noise_multiplier: with which it has the same ε.
    same_noise_epsilon: its ε with as much noise in the model.
  """

  candidate: candidates_lib.Candidate
  fits: bool
  regret: float
  loss_ratio: float
  noise_multiplier: float
  same_noise_epsilon: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recommendation:
  """A strategy, its noise, and the ε that is predicted.

  Attributes:
    candidate: the strategy.
    guarantee: what would be guaranteed if devices took part as planned.
    epsilons: if they did as in each simulation.
    options: all strategies, this one too, by loss.
  """

  candidate: candidates_lib.Candidate
  guarantee: gaussian.Guarantee
  epsilons: tuple[float, ...]
  options: tuple[Option, ...]

  @property
  def noise_in_model(self) -> float:
    """Of the sum of the updates, per unit of clip norm."""
    error = self.candidate.error(self.guarantee.schema)
    return self.guarantee.noise_multiplier * error


def choose(
    found: Sequence[candidates_lib.Candidate],
    schemas: Sequence[participation.MinSep],
    max_copies: int,
) -> candidates_lib.Candidate:
  """The one with the least regret over the schemas among those that fit.

  Raises:
    ValueError: where none does.
  """
  fitting = [c for c in found if c.memory_copies <= max_copies]
  if not fitting:
    least = min(candidate.memory_copies for candidate in found)
    raise ValueError(
        f'max_copies={max_copies} is below the {least} that a strategy here'
        ' needs at least'
    )
  return fitting[candidates_lib.least_regret(fitting, schemas)]


def recommend(
    found: Sequence[candidates_lib.Candidate],
    schemas: Sequence[participation.MinSep],
    planned: participation.MinSep,
    simulated: Sequence[participation.MinSep],
    *,
    max_copies: int,
    delta: float,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
) -> Recommendation:
  """Chooses, and accounts for the choice and for all others.

  Args:
    found: what there is to choose from, measured at all schemas.
    schemas: that may turn out to hold.
    planned: for which ε is stated; one of them.
    simulated: of each simulation, for the range of ε.
    max_copies: vectors of the model's size that the noise may keep.
    delta: δ.
    noise_multiplier: of the strategy that is chosen, as stored.
    epsilon: to be met under the planned schema; give this or noise_multiplier.

  Raises:
    ValueError: where both are given or none, nothing fits, or an argument is
      outside its range.
  """
  if (noise_multiplier is None) == (epsilon is None):
    raise ValueError('give noise_multiplier or epsilon, and not both')
  best = choose(found, schemas, max_copies)
  sensitivity = best.files[planned].sensitivity
  if noise_multiplier is None:
    effective = calibration.effective_noise_multiplier(epsilon, delta)
    noise_multiplier = effective * sensitivity.value
  guarantee = gaussian.from_sensitivity(
      sensitivity, planned, noise_multiplier=noise_multiplier, delta=delta
  )
  fitting = [c for c in found if c.memory_copies <= max_copies]
  least = {s: min(c.loss(s) for c in fitting) for s in schemas}

  def option(candidate):
    ratio = candidate.loss(planned) / best.loss(planned)
    effective = guarantee.effective_noise_multiplier
    own = candidate.files[planned].sensitivity.value
    return Option(
        candidate=candidate,
        fits=candidate.memory_copies <= max_copies,
        regret=max(candidate.loss(s) / least[s] for s in schemas) - 1.0,
        loss_ratio=ratio,
        noise_multiplier=effective * own,
        same_noise_epsilon=gaussian.epsilon(effective / ratio, delta),
    )

  by_loss = sorted(found, key=lambda candidate: candidate.loss(planned))
  epsilons = {
      schema: gaussian.epsilon(
          noise_multiplier / best.files[schema].sensitivity.value, delta
      )
      for schema in set(simulated)
  }
  return Recommendation(
      candidate=best,
      guarantee=guarantee,
      epsilons=tuple(epsilons[schema] for schema in simulated),
      options=tuple(option(candidate) for candidate in by_loss),
  )
