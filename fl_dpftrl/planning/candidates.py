"""Strategies that a plan chooses from, found and measured."""

import dataclasses
import math
import time
from typing import Callable, Iterable, Mapping, NamedTuple, Sequence

from fl_dpftrl import catalogue
from fl_dpftrl import participation
from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl.comparison import contenders as contenders_lib
from fl_dpftrl.comparison import sweep
from fl_dpftrl.families import base

MECHANISMS = (
    'blt', 'banded_toeplitz', 'banded', 'tree_full', 'tree_online', 'identity'
)

_MOST_RANGE = 4  # schemas that one strategy is optimised for at once
_MOST_ENTRIES = 1 << 20  # of bands, that are found within a minute or so

# Called with what is being found; gives what optimisers report to.
Watch = Callable[[str], sweep.Progress]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
  """A strategy at each schema.

  Attributes:
    label: its name in the plan.
    contender: what found it.
    strategy: C.
    memory_copies: vectors of the model's size that its noise keeps.
    files: what it comes to at each schema.
    objective: rms or max.
    seconds: that finding it took.
  """

  label: str
  contender: contenders_lib.Contender
  strategy: base.Strategy
  memory_copies: int
  files: Mapping[participation.MinSep, catalogue.StrategyFile]
  objective: str
  seconds: float

  def error(self, schema: participation.MinSep) -> float:
    """Of the noise in the model, per unit of noise multiplier."""
    return getattr(self.files[schema].error, self.objective)

  def loss(self, schema: participation.MinSep) -> float:
    """Sensitivity × error: the error of the model's noise at unit noise."""
    return self.files[schema].sensitivity.value * self.error(schema)


class Skipped(NamedTuple):
  """What cannot be had, and why."""

  label: str
  reason: str


def contenders(
    names: Sequence[str] | None, planned: participation.MinSep
) -> tuple[list[contenders_lib.Contender], list[Skipped]]:
  """Those named, or without names all that are found in a few minutes.

  Args:
    names: as of `comparison.contenders`; None for mechanisms and matrices/.
    planned: that they are to be found for.

  Raises:
    ValueError: where a name is none.
  """
  if names is not None:
    return contenders_lib.contenders(names), []
  skipped = []
  chosen = [*MECHANISMS, *catalogue.names()]
  if planned.num_rounds * planned.min_sep > _MOST_ENTRIES:
    chosen.remove('banded')
    skipped.append(Skipped(
        'banded',
        f'finding {planned.min_sep} bands of {planned.num_rounds} rounds takes'
        ' many minutes; it is tried where it is named in --strategies',
    ))
  return contenders_lib.contenders(chosen), skipped


def find(
    contenders: Iterable[contenders_lib.Contender],
    schemas: Sequence[participation.MinSep],
    planned: participation.MinSep,
    *,
    objective: str,
    watch: Watch = lambda label: lambda steps, loss: None,
) -> list[Candidate | Skipped]:
  """The strategy of each, and what it comes to at each schema.

  One that is optimised is found for `planned`, and where its mechanism can be
  for all schemas at once, of which one will hold; the one with less regret is
  taken.

  Args:
    contenders: what to find.
    schemas: that may turn out to hold, `planned` among them.
    planned: the worst of them; no strategy has more bands than its min-sep.
    objective: rms or max.
    watch: see `Watch`.
  """
  return [
      _find(contender, schemas, planned, objective, watch(contender.label))
      for contender in contenders
  ]


def _find(contender, schemas, planned, objective, progress):
  start = time.monotonic()
  searches = [lambda **kwargs: contender.find(planned, **kwargs)]
  if contender.find_range is not None and len(schemas) > 1:
    some = _thinned(schemas)
    searches.append(
        lambda **kwargs: contender.find_range(some, over='regret', **kwargs)
    )
  found, reasons = [], []
  for search in searches:
    try:
      strategy = search(objective=objective, progress=progress)
      found.append(
          measure(contender, strategy, schemas, objective=objective)
      )
    except sweep.BEYOND as e:
      reasons.append(sweep.one_line(e))
  if not found:
    return Skipped(contender.label, reasons[0])
  best = found[least_regret(found, schemas)]
  return dataclasses.replace(best, seconds=time.monotonic() - start)


def measure(
    contender: contenders_lib.Contender,
    strategy: base.Strategy,
    schemas: Sequence[participation.MinSep],
    *,
    objective: str,
    seconds: float = 0.0,
) -> Candidate:
  """What a strategy comes to at each schema.

  Raises:
    ValueError: where it cannot run for as many rounds, or nothing is proven of
      its sensitivity.
  """
  files = {s: catalogue.evaluate(strategy, schema=s) for s in schemas}
  for file in files.values():
    if file.sensitivity.kind == sensitivity_lib.LOWER_BOUND:
      raise ValueError('only a lower bound of its sensitivity is known')
  most_rounds = max(schema.num_rounds for schema in schemas)
  return Candidate(
      label=contender.label,
      contender=contender,
      strategy=strategy,
      memory_copies=strategy.memory_copies(most_rounds),
      files=files,
      objective=objective,
      seconds=seconds,
  )


def regrets(
    found: Sequence[Candidate], schemas: Sequence[participation.MinSep]
) -> list[float]:
  """Of each, by how much its loss is above the least, relative to that.

  The most over the schemas.
  """
  least = {s: min(candidate.loss(s) for candidate in found) for s in schemas}
  return [
      max(candidate.loss(s) / least[s] for s in schemas) - 1.0
      for candidate in found
  ]


def least_regret(
    found: Sequence[Candidate], schemas: Sequence[participation.MinSep]
) -> int:
  """The place of the one with the least regret; the first where several."""
  values = regrets(found, schemas)
  return values.index(min(values))


def too_slow(
    candidate: Candidate, schema: participation.MinSep
) -> bool:
  """Whether finding its like for another schema may take many minutes."""
  contender = candidate.contender
  return (
      contender.mechanism not in ('blt', 'banded_toeplitz', 'banded_sqrt')
      and contender.optimised
      and schema.num_rounds * schema.min_sep > _MOST_ENTRIES
  )


def _thinned(
    schemas: Sequence[participation.MinSep],
) -> list[participation.MinSep]:
  """A few of them, the first and the last among these."""
  if len(schemas) <= _MOST_RANGE:
    return list(schemas)
  step = (len(schemas) - 1) / (_MOST_RANGE - 1)
  return [schemas[round(i * step)] for i in range(_MOST_RANGE)]
