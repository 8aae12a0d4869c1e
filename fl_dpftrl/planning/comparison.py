"""Mechanisms side by side: figures of every candidate at every schema, or a reason why not."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fl_dpftrl import accounting, checks, sensitivities, tables, workloads
from fl_dpftrl.accounting import gaussian, guarantees
from fl_dpftrl.families import base
from fl_dpftrl.participation import schemas as participation
from fl_dpftrl.participations import loss_budgets
from fl_dpftrl.planning import candidate_sets
from fl_dpftrl.strategies import files
from fl_dpftrl.text import messages, progress_bars

if TYPE_CHECKING:
  from matplotlib import figure

Calibrate = Callable[[sensitivities.Sensitivity], accounting.Guarantee | None]
SCHEMA = ('num_rounds', 'min_sep', 'max_participations')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
  """Strategy of a candidate at a schema, with its figures.

  Attributes:
    guarantee: that of the ε at which candidates are compared, with its noise; None without.
    budget: loss budget of a run without an end, whose B is the sensitivity; None with an end.
  """

  candidate: candidate_sets.Candidate
  file: files.StrategyFile
  seconds: float
  guarantee: accounting.Guarantee | None = None
  report_goal: int = 1
  budget: loss_budgets.LossBudget | None = None

  @property
  def row(self) -> dict[str, Any]:
    """All figures by name.

    Errors and losses are per unit of noise multiplier and of clip norm. Those of the mean are in
    clip norms: errors of the workload of the means of rounds, at the ε of the comparison.
    """
    schema, figures = self.file.schema, self.file.figures
    row = {
      'mechanism': self.candidate.label,
      'num_rounds': schema.num_rounds,
      'min_sep': schema.min_sep,
      'max_participations': schema.max_participations if self.budget else schema.participations,
      **figures,
      'memory_copies': self.file.strategy.memory_copies(schema.num_rounds),
      'seconds': self.seconds,
    }
    if self.guarantee is not None:
      scale = self.guarantee.noise_multiplier / self.report_goal
      row |= {
        'noise_multiplier': self.guarantee.noise_multiplier,
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
    """Figures of each candidate at each schema."""
    return [entry.row for entry in self.entries]

  def __repr__(self) -> str:
    skipped = f', {len(self.skipped)} left out' if self.skipped else ''
    title = f'Comparison: {len(self.entries)} evaluated{skipped}'
    hidden = ('sensitivity_kind', 'rms_error', 'max_error', 'seconds')
    rows = [{k: v for k, v in row.items() if k not in hidden} for row in self.rows]
    reasons = dict.fromkeys(f'{skip.label} is left out: {skip.reason}' for skip in self.skipped)
    lines = [messages.one_line(reason, limit=100) for reason in reasons]
    return tables.at_a_prompt(title, [*lines[:3], *tables.columns(rows).splitlines()])

  def plot(self) -> 'figure.Figure':
    """Draws losses, or noise and errors at equal ε, over the field that varies or side by side."""
    from fl_dpftrl.planning import figures  # Loads matplotlib.

    rows = self.rows
    varying = [name for name in SCHEMA if len({row[name] for row in rows}) > 1]
    fields = [name for name in varying if name != 'max_participations'] or varying
    if not rows or len(fields) > 1:
      raise ValueError(
        f'entries must be evaluated at schemas of which one field varies, got {len(rows)}'
        f' entries with {" and ".join(fields) or "none"} varying'
      )
    return figures.draw(self.entries, fields[0] if fields else None)


def compare(
  mechanisms: Sequence[str | base.Strategy],
  schemas: participation.MinSep | Sequence[participation.MinSep],
  *,
  objective: str = 'max',
  workload: workloads.Workload = workloads.Workload(),
  epsilon: float | None = None,
  delta: float | None = None,
  report_goal: int = 1,
) -> Comparison:
  """Compares mechanisms and strategy files at one or several schemas.

  Args:
    mechanisms: names; each is a mechanism, a mechanism with its size (blt:3), a name in
      matrices/ or a strategy file, also as label=file, or a strategy, which has its family's name.
    schemas: participation schemas.
    objective: 'rms' or 'max', the loss that optimisers minimise.
    workload: linear workload of all errors and losses.
    epsilon, delta: ε at δ at which noise multipliers and errors of the mean are stated, too;
      give both of them or none.
    report_goal: number of updates in the mean of a round; 1 for the error of the sum.

  Raises:
    ValueError: if a name is unknown, two candidates have the same label, or a number is out of
      range.
  """
  with progress_bars.steps('compare') as report:
    return run(
      candidate_sets.named(mechanisms),
      [schemas] if isinstance(schemas, participation.MinSep) else schemas,
      objective=objective,
      workload=workload,
      epsilon=epsilon,
      delta=delta,
      report_goal=report_goal,
      watch=lambda searched: report,
    )


def run(
  candidates: Sequence[candidate_sets.Candidate],
  schemas: Sequence[participation.MinSep],
  *,
  objective: str,
  workload: workloads.Workload = workloads.Workload(),
  epsilon: float | None = None,
  delta: float | None = None,
  report_goal: int = 1,
  watch: candidate_sets.Watch = lambda searched: lambda steps, loss: None,
  show: Callable[[Entry], None] = lambda entry: None,
  budget: loss_budgets.LossBudget | None = None,
) -> Comparison:
  """Finds, evaluates and shows strategies, one candidate after the other; see `compare`.

  Args:
    budget: loss budget of a run without an end: errors are those after the rounds of each schema,
      and mechanisms are optimised for all of these horizons. Others are those of `compare`.
  """
  calibrated = _calibrated(epsilon, delta)
  checks.whole(report_goal=report_goal)
  entries: list[Entry] = []
  skipped: list[candidate_sets.Skipped] = []
  for candidate in candidates:
    endless: base.Strategy | None = None  # The one of all horizons.
    for schema in schemas:
      at = f'n={schema.num_rounds}, b={schema.min_sep}, k={schema.participations}'
      progress, start = watch(f'{candidate.label} at {at}'), time.monotonic()
      try:
        options = {'objective': objective, 'workload': workload, 'progress': progress}
        if budget is None or not candidate.optimised:
          strategy = candidate.find(schema, **options)
        else:
          horizons = schemas[0].num_rounds, schemas[-1].num_rounds
          endless = endless or candidate.find(budget, horizons=horizons, **options)
          strategy = endless
        seconds = time.monotonic() - start
        bound = None if budget is None else budget.worst_case(strategy)
        file = files.describe(strategy, schema=schema, workload=workload, sensitivity=bound)
        guarantee = calibrated(file.sensitivity)
      except candidate_sets.UNSUPPORTED as e:
        skipped.append(candidate_sets.Skipped(candidate.label, candidate_sets.reason(e), schema))
        continue
      entries.append(
        Entry(
          candidate=candidate,
          report_goal=report_goal,
          file=file,
          seconds=seconds,
          guarantee=guarantee,
          budget=budget,
        )
      )
      show(entries[-1])
  return Comparison(tuple(entries), tuple(skipped))


def _calibrated(epsilon: float | None, delta: float | None) -> Calibrate:
  """Returns what maps a sensitivity to the guarantee with the least noise for ε; None without ε."""
  if epsilon is None and delta is None:
    return lambda sensitivity: None
  if epsilon is None or delta is None:
    raise ValueError(f'epsilon={epsilon} and delta={delta} must be given together')
  effective = gaussian.effective_noise_multiplier(epsilon, delta)

  def guarantee(sensitivity: sensitivities.Sensitivity) -> accounting.Guarantee:
    if sensitivity.kind == sensitivities.LOWER_BOUND:
      raise ValueError(candidate_sets.LOWER_BOUND)
    noise_multiplier = effective * sensitivity.value
    return guarantees.Guarantee.of(
      sensitivity, guarantees.Terms(delta), noise_multiplier=noise_multiplier
    )

  return guarantee
