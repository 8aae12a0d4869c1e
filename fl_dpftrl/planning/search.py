"""The strategy of each candidate of a plan, evaluated at every schema that may occur."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from fl_dpftrl.mechanisms import base, sensitivities
from fl_dpftrl.mechanisms.files import files as catalogue
from fl_dpftrl.participation.rules import separations
from fl_dpftrl.planning import candidate_sets

MECHANISMS = ('blt', 'banded_toeplitz', 'banded', 'tree_full', 'tree_online', 'identity')

_MOST_RANGE = 4  # maximum number of schemas for one optimisation
_MOST_ENTRIES = 1 << 20  # maximum band entries, which takes about a minute


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluated:
  """Strategy of a candidate, and its figures at each schema."""

  origin: candidate_sets.Candidate
  strategy: base.Strategy
  memory_copies: int
  files: Mapping[separations.MinSep, catalogue.StrategyFile]
  objective: str

  @property
  def label(self) -> str:
    """Name of the strategy in the plan."""
    return self.origin.label

  def error(self, schema: separations.MinSep) -> float:
    """Returns the error of the noise in the model, per unit noise multiplier."""
    return getattr(self.files[schema].error, self.objective)

  def loss(self, schema: separations.MinSep) -> float:
    """Returns sensitivity × error: the error of the model's noise at unit noise."""
    return self.files[schema].sensitivity.value * self.error(schema)


def named(
  names: Sequence[str] | None, planned: separations.MinSep
) -> tuple[list[candidate_sets.Candidate], list[candidate_sets.Skipped]]:
  """Returns the named candidates, by default all that take a few minutes."""
  if names is not None:
    return candidate_sets.named(names), []
  skipped = []
  chosen = [*MECHANISMS, *catalogue.names()]
  if planned.num_rounds * planned.min_sep > _MOST_ENTRIES:
    chosen.remove('banded')
    reason = (
      f'optimising {planned.min_sep} bands over {planned.num_rounds} rounds'
      ' takes many minutes; name it in strategies to try it'
    )
    skipped.append(candidate_sets.Skipped('banded', reason, planned))
  return candidate_sets.named(chosen), skipped


def find(
  origins: Iterable[candidate_sets.Candidate],
  schemas: Sequence[separations.MinSep],
  planned: separations.MinSep,
  *,
  objective: str,
  watch: candidate_sets.Watch = lambda searched: lambda steps, loss: None,
) -> list[Evaluated | candidate_sets.Skipped]:
  """Finds the strategy of each candidate and evaluates it at each schema.

  It is optimised for `planned` and, if it can be, for all schemas at once; less regret wins.
  """
  return [_find(origin, schemas, planned, objective, watch(origin.label)) for origin in origins]


def _find(origin, schemas, planned, objective, progress):
  searches = [(origin.find, planned)]
  if origin.find_range is not None and len(schemas) > 1:
    searches.append((origin.find_range, _thinned(schemas)))
  measured, reasons = [], []
  for search, wanted in searches:
    try:
      strategy = search(wanted, objective=objective, progress=progress)
      measured.append(measure(origin, strategy, schemas, objective=objective))
    except candidate_sets.UNSUPPORTED as e:
      reasons.append(candidate_sets.reason(e))
  if not measured:
    return candidate_sets.Skipped(origin.label, reasons[0], planned)
  return min(measured, key=lambda entry: regret(entry, schemas, measured))


def measure(
  origin: candidate_sets.Candidate,
  strategy: base.Strategy,
  schemas: Sequence[separations.MinSep],
  *,
  objective: str,
) -> Evaluated:
  """Evaluates a strategy at each schema."""
  files = {s: catalogue.describe(strategy, schema=s) for s in schemas}
  if any(file.sensitivity.kind == sensitivities.LOWER_BOUND for file in files.values()):
    raise ValueError(candidate_sets.LOWER_BOUND)
  most_rounds = max(schema.num_rounds for schema in schemas)
  return Evaluated(
    origin=origin,
    strategy=strategy,
    memory_copies=strategy.memory_copies(most_rounds),
    files=files,
    objective=objective,
  )


def regret(
  evaluated: Evaluated, schemas: Sequence[separations.MinSep], others: Sequence[Evaluated]
) -> float:
  """Returns the largest relative excess of a loss over the least of others, over the schemas."""
  return max(evaluated.loss(s) / min(other.loss(s) for other in others) for s in schemas) - 1.0


def _thinned(schemas: Sequence[separations.MinSep]) -> list[separations.MinSep]:
  """Returns a few of the schemas, including the first and the last."""
  if len(schemas) <= _MOST_RANGE:
    return list(schemas)
  step = (len(schemas) - 1) / (_MOST_RANGE - 1)
  return [schemas[round(i * step)] for i in range(_MOST_RANGE)]
