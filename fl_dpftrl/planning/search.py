"""Candidate strategies of a plan: search and evaluation."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from fl_dpftrl import sensitivity
from fl_dpftrl.families import base
from fl_dpftrl.participation import schemas as participation
from fl_dpftrl.planning import candidates as compared
from fl_dpftrl.planning import comparison
from fl_dpftrl.strategies import files as catalogue

MECHANISMS = ('blt', 'banded_toeplitz', 'banded', 'tree_full', 'tree_online', 'identity')

_MOST_RANGE = 4  # maximum number of schemas for one optimisation
_MOST_ENTRIES = 1 << 20  # maximum band entries, which takes about a minute

# Called with the label of a candidate; returns the optimiser's progress callback.
Watch = Callable[[str], comparison.Progress]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
  """Strategy and its figures at each schema.

  Attributes:
    origin: mechanism or file that gave the strategy.
    strategy: C.
    memory_copies: number of model-sized vectors that its noise stores.
    files: evaluation of the strategy at each schema.
    objective: 'rms' or 'max'.
  """

  origin: compared.Candidate
  strategy: base.Strategy
  memory_copies: int
  files: Mapping[participation.MinSep, catalogue.StrategyFile]
  objective: str

  @property
  def label(self) -> str:
    """Name of the strategy in the plan."""
    return self.origin.label

  def error(self, schema: participation.MinSep) -> float:
    """Returns the error of the noise in the model, per unit noise multiplier."""
    return getattr(self.files[schema].error, self.objective)

  def loss(self, schema: participation.MinSep) -> float:
    """Returns sensitivity × error: the error of the model's noise at unit noise."""
    return self.files[schema].sensitivity.value * self.error(schema)


class Skipped(NamedTuple):
  """Strategy that could not be evaluated, with the reason."""

  label: str
  reason: str


def named(
  names: Sequence[str] | None, planned: participation.MinSep
) -> tuple[list[compared.Candidate], list[Skipped]]:
  """Returns the named candidates, by default all that take a few minutes.

  Args:
    names: names as in `comparison.candidates.named`; None for all mechanisms and matrices/.
  """
  if names is not None:
    return compared.named(names), []
  skipped = []
  chosen = [*MECHANISMS, *catalogue.names()]
  if planned.num_rounds * planned.min_sep > _MOST_ENTRIES:
    chosen.remove('banded')
    skipped.append(
      Skipped(
        'banded',
        f'optimising {planned.min_sep} bands over {planned.num_rounds} rounds'
        ' takes many minutes; name it in --strategies to try it',
      )
    )
  return compared.named(chosen), skipped


def find(
  origins: Iterable[compared.Candidate],
  schemas: Sequence[participation.MinSep],
  planned: participation.MinSep,
  *,
  objective: str,
  watch: Watch = lambda label: lambda steps, loss: None,
) -> list[Candidate | Skipped]:
  """Finds the strategy of each candidate and evaluates it at each schema.

  A mechanism is optimised for `planned` and, if it supports a range, for all schemas at once.
  The result with the smaller regret is taken.

  Args:
    schemas: schemas that may occur, including `planned`.
    planned: worst of the schemas; strategies have at most its min-sep as bands.
    objective: 'rms' or 'max'.
    watch: progress callback; see `Watch`.
  """
  return [_find(origin, schemas, planned, objective, watch(origin.label)) for origin in origins]


def _find(origin, schemas, planned, objective, progress):
  searches = [lambda **kwargs: origin.find(planned, **kwargs)]
  if origin.find_range is not None and len(schemas) > 1:
    some = _thinned(schemas)
    searches.append(lambda **kwargs: origin.find_range(some, over='regret', **kwargs))
  measured, reasons = [], []
  for search in searches:
    try:
      strategy = search(objective=objective, progress=progress)
      measured.append(measure(origin, strategy, schemas, objective=objective))
    except comparison.UNSUPPORTED as e:
      reasons.append(comparison.one_line(e))
  if not measured:
    return Skipped(origin.label, reasons[0])
  return min(measured, key=lambda candidate: regret(candidate, schemas, measured))


def measure(
  origin: compared.Candidate,
  strategy: base.Strategy,
  schemas: Sequence[participation.MinSep],
  *,
  objective: str,
) -> Candidate:
  """Evaluates a strategy at each schema."""
  files = {s: catalogue.describe(strategy, schema=s) for s in schemas}
  for file in files.values():
    if file.sensitivity.kind == sensitivity.LOWER_BOUND:
      raise ValueError('only a lower bound of its sensitivity is known')
  most_rounds = max(schema.num_rounds for schema in schemas)
  return Candidate(
    origin=origin,
    strategy=strategy,
    memory_copies=strategy.memory_copies(most_rounds),
    files=files,
    objective=objective,
  )


def regret(
  candidate: Candidate, schemas: Sequence[participation.MinSep], others: Sequence[Candidate]
) -> float:
  """Returns the largest excess of a candidate's loss over the least of others, relative to it.

  The maximum is over the schemas.
  """
  return max(candidate.loss(s) / min(other.loss(s) for other in others) for s in schemas) - 1.0


def _thinned(schemas: Sequence[participation.MinSep]) -> list[participation.MinSep]:
  """Returns a few of the schemas, including the first and the last."""
  if len(schemas) <= _MOST_RANGE:
    return list(schemas)
  step = (len(schemas) - 1) / (_MOST_RANGE - 1)
  return [schemas[round(i * step)] for i in range(_MOST_RANGE)]
