"""Evaluation of plans on simulations that they have not seen."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

from fl_dpftrl import accounting
from fl_dpftrl.participation import schemas as participation
from fl_dpftrl.planning import candidates as compared
from fl_dpftrl.planning import forecast as forecast_lib
from fl_dpftrl.planning import recommendation, search

NAMES = (*search.MECHANISMS, 'blt-b100', 'blt-b400', 'blt-b1000')
NUM_SIMULATIONS = 3
NOISE_MULTIPLIER, DELTA = 7.379, 1e-10

_OBJECTIVE = 'max'

Found = list[search.Evaluated]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
  """Plan compared with the best strategy for the log of another seed.

  Attributes:
    seed: seed of the log.
    max_copies: limit of model copies, for the plan and for hindsight.
    planned: n, b and k that the plan accounts for.
    log: n, b and k of the log.
    recommended: strategy of the plan.
    best: best strategy in hindsight.
    loss: loss of the plan's strategy under the log.
    best_loss: loss of the best strategy in hindsight.
    predicted_epsilon: ε of the plan, before the run.
    epsilon: ε with the log.
  """

  seed: int
  max_copies: int
  planned: participation.MinSep
  log: participation.MinSep
  recommended: str
  best: str
  loss: float
  best_loss: float
  predicted_epsilon: float
  epsilon: float

  @property
  def excess(self) -> float:
    """Relative excess of the plan's loss over the best loss."""
    return self.loss / self.best_loss - 1.0

  @property
  def is_covered(self) -> bool:
    """True if the log satisfies the planned schema."""
    return (
      self.log.min_sep >= self.planned.min_sep
      and self.log.participations <= self.planned.participations
    )


class Judge:
  """Evaluator that finds each strategy once.

  Args:
    names: names of the candidates of plans and hindsight.
    progress: called with a description of the current search.
  """

  def __init__(
    self, names: Sequence[str] = NAMES, progress: Callable[[str], None] = lambda text: None
  ):
    self._origins = [_remembering(origin, progress) for origin in compared.named(names)]
    self._hindsight = functools.cache(self._find_for)

  def verdicts(
    self, outcomes: Sequence[forecast_lib.Outcome], index: int, max_copies: Sequence[int]
  ) -> list[Verdict]:
    """Plans from the simulations that follow one of them, and evaluates on it.

    Args:
      outcomes: outcomes of simulations with different seeds.
      index: index of the simulation to evaluate on.
      max_copies: limits of model copies; one verdict for each.
    """
    after = [outcomes[(index + 1 + i) % len(outcomes)] for i in range(NUM_SIMULATIONS)]
    forecast = forecast_lib.Forecast(outcomes=tuple(after))
    log = outcomes[index].schema
    found = self._find(forecast.schemas, forecast.planned)
    epsilon = lambda candidate, schema: accounting.Guarantee.of(
      candidate.files[schema].sensitivity, noise_multiplier=NOISE_MULTIPLIER, delta=DELTA
    ).epsilon()
    verdicts = []
    for most in max_copies:
      chosen = recommendation.choose(found, forecast.schemas, most)
      ours = search.measure(chosen.origin, chosen.strategy, [log], objective=_OBJECTIVE)
      best = recommendation.choose(self._hindsight(log), [log], most)
      verdicts.append(
        Verdict(
          seed=outcomes[index].seed,
          max_copies=most,
          planned=forecast.planned,
          log=log,
          recommended=chosen.label,
          best=best.label,
          loss=ours.loss(log),
          best_loss=best.loss(log),
          predicted_epsilon=epsilon(chosen, forecast.planned),
          epsilon=epsilon(ours, log),
        )
      )
    return verdicts

  def _find_for(self, log: participation.MinSep) -> Found:
    return self._find([log], log)

  def _find(self, schemas, planned) -> Found:
    found = search.find(self._origins, schemas, planned, objective=_OBJECTIVE)
    return [c for c in found if isinstance(c, search.Evaluated)]


def _remembering(origin, progress):
  """Returns the candidate with cached searches."""

  @functools.cache
  def find(schema):
    progress(f'{origin.label} for {_said(schema)}')
    return origin.find(schema, objective=_OBJECTIVE)

  @functools.cache
  def find_range(schemas):
    progress(f'{origin.label} for {"; ".join(map(_said, schemas))}')
    return origin.find_range(schemas, objective=_OBJECTIVE)

  return dataclasses.replace(
    origin,
    find=lambda schema, **kwargs: find(schema),
    find_range=origin.find_range and (lambda schemas, **kwargs: find_range(tuple(schemas))),
  )


def _said(schema: participation.MinSep) -> str:
  return f'b={schema.min_sep}, k={schema.participations}'
