"""Mechanisms side by side: figures of every candidate, participation and ε, or a reason why not."""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fl_dpftrl.mechanisms import (
  base,
  linear_noise,
  schemas,
  sensitivities,
  workload_error,
  workloads,
)
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.participation import accountant, accounting, drawn, registry
from fl_dpftrl.participation.accounting import adjacencies, gaussian
from fl_dpftrl.participation.participation import Participation
from fl_dpftrl.participation.rules import loss_budgets, separations
from fl_dpftrl.planning import candidate_sets
from fl_dpftrl.support import checks, tables
from fl_dpftrl.support.text import messages, progress_bars

if TYPE_CHECKING:
  from matplotlib import figure

SETTING = ('participation', 'num_rounds', 'min_sep', 'max_participations', 'epsilon')
_AXES = ('epsilon', 'num_rounds', 'min_sep', 'max_participations')
_LEAST_GAIN = 5e-4  # of a search that goes on


class Target(NamedTuple):
  """Terms at which candidates are compared: an ε for each row, or no ε.

  Attributes:
    epsilons: values of ε, at least one; empty to compare losses only.
    delta, adjacency: terms of each ε; see `account`.
    report_goal: number of updates in the mean of a round.
  """

  epsilons: tuple[float, ...] = ()
  delta: float | None = None
  adjacency: str = adjacencies.ZERO_OUT
  report_goal: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
  """Strategy of a candidate under a participation, with its figures.

  Attributes:
    participation: what the guarantee is of; of a run without an end, errors are those after the
      rounds of the file's schema.
    file: the strategy and its figures; at an ε the sensitivity is that of the guarantee.
    seconds: time of the search for it.
    epsilon: ε at which candidates are compared; None without.
    guarantee: that of the least noise for this ε; None without.
  """

  candidate: candidate_sets.Candidate
  participation: Participation
  file: files.StrategyFile
  seconds: float
  epsilon: float | None = None
  guarantee: accounting.Guarantee | None = None
  report_goal: int = 1

  @functools.cached_property
  def row(self) -> dict[str, Any]:
    """All figures by name.

    Errors and losses are per unit of noise multiplier and of clip norm. Those of the mean are in
    clip norms: errors of the workload of the means of rounds, at the ε of the comparison. A loss
    budget has B², in squares of the clip norm, and the most participations of a device ever.
    """
    schema, strategy = self.file.schema, self.file.strategy
    named: Any = schema if self.participation.num_rounds is not None else self.participation
    row = {
      'mechanism': self.candidate.label,
      'participation': self.participation.kind,
      'num_rounds': schema.num_rounds,
      'min_sep': named.min_sep,
      'max_participations': getattr(named, 'participations', named.max_participations),
      **({} if self.guarantee is None else {'epsilon': self.epsilon}),
      **self.file.figures,
      'memory_copies': strategy.memory_copies(schema.num_rounds),
      'rows_drawn': linear_noise.rows_drawn(strategy.noise(schema.num_rounds), schema.num_rounds)[
        0
      ],
      'seconds': self.seconds,
    }
    if (budget := loss_budgets.endless_budget(self.participation)) is not None:
      row['loss_budget'] = budget.square(strategy)
      row['most_participations'] = budget.most_participations(strategy)
    if self.guarantee is not None:
      scale = self.guarantee.noise_multiplier / self.report_goal
      row |= {
        'noise_multiplier': self.guarantee.noise_multiplier,
        'effective_noise_multiplier': self.guarantee.effective_noise_multiplier,
        'rms_error_of_mean': scale * self.file.error.rms,
        'max_error_of_mean': scale * self.file.error.max,
      }
    return row


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Mechanisms side by side."""

  entries: tuple[Entry, ...]
  skipped: tuple[candidate_sets.Skipped, ...]

  @property
  def rows(self) -> list[dict[str, Any]]:
    """Figures of each candidate under each participation, at each ε."""
    rows = [entry.row for entry in self.entries]
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]

  def __repr__(self) -> str:
    skipped = f', {len(self.skipped)} left out' if self.skipped else ''
    title = f'Comparison: {len(self.entries)} evaluated{skipped}'
    hidden = ('sensitivity_kind', 'rms_error', 'max_error', 'seconds', 'rows_drawn')
    rows = [{k: v for k, v in row.items() if k not in hidden} for row in self.rows]
    reasons = dict.fromkeys(f'{skip.label} is left out: {skip.reason}' for skip in self.skipped)
    lines = [messages.one_line(reason, limit=100) for reason in reasons]
    return tables.at_a_prompt(title, [*lines[:3], *tables.columns(rows).splitlines()])

  def plot(self) -> 'figure.Figure':
    """Draws losses, or noise and errors at equal ε, over the field that varies or side by side."""
    from fl_dpftrl.planning import comparison_figures  # Loads matplotlib.

    values: dict[str, dict[Any, set[Any]]] = {name: {} for name in _AXES}
    for entry in self.entries:
      row, is_drawn = entry.row, entry.participation.is_drawn
      for name in _AXES[: 2 if is_drawn else None]:  # Draws have the min-sep of the bands.
        line = row['mechanism'], row['participation']
        values[name].setdefault(line, set()).add(row.get(name))
    varying = [name for name in _AXES if any(len(v) > 1 for v in values[name].values())]
    fields = [name for name in varying if name != 'max_participations'] or varying
    if not self.entries or len(fields) > 1:
      raise ValueError(
        f'entries must be evaluated at schemas of which one field varies, got {len(self.entries)}'
        f' entries with {" and ".join(fields) or "none"} varying'
      )
    return comparison_figures.draw(self.entries, fields[0] if fields else None)


def compare(
  mechanisms: candidate_sets.Names,
  participations: Participation | Sequence[Participation],
  *,
  objective: str = 'max',
  workload: workloads.Workload = workloads.Workload(),
  epsilon: float | Sequence[float] | None = None,
  delta: float | None = None,
  adjacency: str = adjacencies.ZERO_OUT,
  report_goal: int = 1,
  num_rounds: int | Sequence[int] = (),
) -> Comparison:
  """Compares mechanisms, strategies and their files under one or several participations.

  A mechanism is optimised once for each participation, and then has a row at each ε. Where draws
  are secret, several sizes are, and each ε has the one with the least noise. A search ends where
  ten steps lower the loss by less than 0.05 %; `optimize` goes on.

  Args:
    mechanisms: one or several; each is a mechanism, a mechanism with its size (blt:3), a name in
      matrices/ or a strategy file, also as label=file, or a strategy, which has its family's name.
      Or a mapping from labels to these.
    participations: schemas, loss budgets of max_participations and min_sep, and schemes by which
      batches or secret bins are drawn.
      Batches are drawn from as many parts as a strategy has bands, whatever their num_parts.
    objective: 'rms' or 'max', the loss that optimisers minimise.
    workload: linear workload of all errors and losses.
    epsilon, delta: ε, one or several, at δ, at which noise multipliers and errors of the mean are
      stated, too; give both of them or none. Draws need them.
    adjacency: see `account`.
    report_goal: number of updates in the mean of a round; 1 for the error of the sum.
    num_rounds: rounds after which errors count, of a run without an end; others have their own.

  Raises:
    ValueError: if a name is unknown, two candidates have the same label, or a number is out of
      range.
  """
  every = participations if isinstance(participations, Sequence) else [participations]
  epsilons = () if epsilon is None else np.atleast_1d(epsilon).tolist()
  with progress_bars.steps('compare') as report:
    return run(
      candidate_sets.named(mechanisms),
      every,
      objective=objective,
      workload=workload,
      target=Target(tuple(epsilons), delta, adjacency, report_goal),
      horizons=np.atleast_1d(num_rounds).tolist(),
      watch=lambda searched: report,
    )


def run(
  candidates: Sequence[candidate_sets.Candidate],
  participations: Sequence[Participation],
  *,
  objective: str,
  workload: workloads.Workload = workloads.Workload(),
  target: Target = Target(),
  horizons: Sequence[int] = (),
  watch: candidate_sets.Watch = lambda searched: lambda steps, loss: None,
  show: Callable[[Entry], None] = lambda entry: None,
) -> Comparison:
  """Finds, evaluates and shows strategies, one candidate after the other; see `compare`.

  Args:
    horizons: numbers of rounds, ascending, after which errors count in a run without an end;
      mechanisms are optimised for all of these.
  """
  _check(participations, target, horizons)
  workload_error.check_objective(objective)
  checks.instance(workloads.Workload, workload=workload)
  entries: list[Entry] = []
  skipped: list[candidate_sets.Skipped] = []
  for candidate in candidates:
    for participation in participations:
      endless: list[base.Strategy] = []  # Those of all horizons.
      for schema in _schemas(participation, horizons):
        searched = f'{candidate.label} at {_words(participation, schema)}'
        progress, start = watch(searched), time.monotonic()
        goal: Any = {'objective': objective, 'workload': workload, 'progress': progress}
        try:
          strategies = endless or [*_searched(candidate, participation, schema, horizons, **goal)]
          endless = strategies if participation.num_rounds is None and candidate.optimised else []
          seconds = time.monotonic() - start
          calibrating = lambda words, searched=searched: watch(f'{searched}: {words}')
          terms = (schema, objective, workload, target, calibrating)
          figures = _evaluated(strategies, participation, *terms)
          shared: Any = {'seconds': seconds, 'report_goal': target.report_goal}
          evaluated = [Entry(candidate=candidate, **shared, **values) for values in figures]
        except candidate_sets.UNSUPPORTED as e:
          why = candidate_sets.reason(e)
          skipped.append(candidate_sets.Skipped(candidate.label, why, schema, participation.kind))
          continue
        entries += evaluated
        for entry in evaluated:
          show(entry)
  return Comparison(tuple(entries), tuple(skipped))


def _check(
  participations: Sequence[Participation], target: Target, horizons: Sequence[int]
) -> None:
  """Raises ValueError for a target out of range, and participations that need one, or horizons."""
  epsilons, delta, adjacency, report_goal = target
  if bool(epsilons) != (delta is not None):
    shown = ', '.join(map(str, epsilons)) or None
    raise ValueError(f'epsilon={shown} and delta={delta} must be given together')
  for epsilon in epsilons:
    gaussian.effective_noise_multiplier(epsilon, delta)  # type: ignore[arg-type]
  checks.one_of((*adjacencies.ADJACENCIES, adjacencies.ADD_OR_REMOVE), adjacency=adjacency)
  checks.whole(report_goal=report_goal)
  for participation in participations:
    registry.check(participation)
    if participation.num_rounds is None and not horizons:
      raise ValueError('num_rounds, after which errors count, are needed for a run without an end')
    budget = loss_budgets.endless_budget(participation)
    if budget is not None and budget.squared is not None:
      raise ValueError(
        f'the loss budget squared={budget.squared:g} buys other participations of each mechanism:'
        ' to compare them, name it by max_participations and min_sep'
      )
    if participation.is_drawn and not epsilons:
      raise ValueError(f'epsilon is needed to compare {participation.kind} with others')


def _schemas(participation: Participation, horizons: Sequence[int]) -> list[schemas.Schema]:
  """Returns the schema of a participation; one for each horizon where it has no end."""
  if participation.num_rounds is not None:
    return [participation.schema]
  named: Any = participation
  return [separations.MinSep(n, named.min_sep or 1, named.max_participations) for n in horizons]


def _words(participation: Participation, schema: schemas.Schema) -> str:
  """Returns a participation in a few words."""
  if participation.is_drawn:
    return f'n={schema.num_rounds}, {participation.kind}'
  most = schema.max_participations if participation.num_rounds is None else schema.participations
  return f'n={schema.num_rounds}, b={schema.min_sep}, k={most}'


def _searched(
  candidate: candidate_sets.Candidate,
  participation: Participation,
  schema: schemas.Schema,
  horizons: Sequence[int],
  **goal: Any,
) -> Iterator[base.Strategy]:
  """Yields the strategies to choose among: one, or of secret draws one for each size."""
  problems: list[tuple[Any, dict[str, Any]]] = [(schema, {})]
  if candidate.optimised and isinstance(participation, drawn.Drawn):
    problems = participation.problems(candidate.size, is_fixed=candidate.has_size)
  elif candidate.optimised and participation.num_rounds is None:
    problems = [(participation, {'horizons': (horizons[0], horizons[-1])})]
  for problem, options in problems:
    options = {'least_gain': _LEAST_GAIN, **options}
    strategy = candidate.find(problem, **goal, **options)
    _with_parts(participation, strategy)  # An error for one that is not amplified comes early.
    yield strategy


def _with_parts(participation: Participation, strategy: base.Strategy) -> Participation:
  """Returns the participation; batches have as many parts as the strategy has bands."""
  if isinstance(participation, drawn.Drawn):
    return participation.for_bands(strategy)
  return participation


def _evaluated(
  strategies: Sequence[base.Strategy],
  participation: Participation,
  schema: schemas.Schema,
  objective: str,
  workload: workloads.Workload,
  target: Target,
  say: Callable[[str], object],
) -> Iterator[dict[str, Any]]:
  """Yields fields of an `Entry`, of the strategy with the least noise at each ε.

  Without ε there are the figures of the only strategy.
  """
  evaluated = []
  for strategy in strategies:
    bound = _with_parts(participation, strategy)
    figures: dict[str, Any] = {'schema': schema, 'workload': workload}
    if participation.is_drawn:
      figures['schema'] = bound.schema
    elif participation.num_rounds is None:
      figures['sensitivity'] = participation.worst_case(strategy)
    evaluated.append((bound, files.describe(strategy, **figures)))
  if not target.epsilons:
    bound, file = evaluated[0]
    yield {'participation': bound, 'file': file}
  if not participation.is_drawn and target.epsilons:
    if any(file.sensitivity.kind == sensitivities.LOWER_BOUND for _, file in evaluated):
      raise ValueError(candidate_sets.LOWER_BOUND)
  terms: Any = {'delta': target.delta, 'adjacency': target.adjacency}
  candidates = [(file.strategy, bound, getattr(file.error, objective)) for bound, file in evaluated]
  for epsilon in target.epsilons:
    words = f'noise for ε = {epsilon:g}, {{}} of {len(candidates)}'
    terms['watch'] = lambda place, words=words: say(words.format(place + 1))
    place, least = accountant.least(candidates, epsilon=epsilon, **terms)
    bound, file = evaluated[place]
    sensitivity = sensitivities.Sensitivity(least.sensitivity, least.sensitivity_kind)
    file = dataclasses.replace(file, sensitivity=sensitivity)
    yield {'epsilon': epsilon, 'participation': bound, 'file': file, 'guarantee': least}
