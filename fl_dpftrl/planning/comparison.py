"""Evaluation of every candidate at every schema: a row, or a reason why not."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fl_dpftrl import tables, workloads
from fl_dpftrl.families import base
from fl_dpftrl.participation import schemas as participation
from fl_dpftrl.planning import candidates as candidates_lib
from fl_dpftrl.strategies import files
from fl_dpftrl.text import progress as progress_lib

if TYPE_CHECKING:
  import pandas
  from matplotlib import figure

# Progress callback of optimisers: called with the number of steps and the loss.
Progress = Callable[[int, float], None]
# Called when a candidate's search at a schema starts; returns its callback.
Watch = Callable[[candidates_lib.Candidate, participation.MinSep], Progress]

# Exceptions of an optimiser or an evaluation for unsupported settings.
UNSUPPORTED = (ValueError, MemoryError, np.linalg.LinAlgError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """Figures of a candidate at a schema.

  Attributes:
    mechanism: label of the candidate.
    num_rounds: n.
    min_sep: b.
    max_participations: min(k, ⌈n / b⌉).
    sensitivity: sensitivity per unit of clip norm.
    sensitivity_kind: 'exact', 'upper_bound' or 'lower_bound'.
    rms_error: RMS error per unit of noise multiplier.
    max_error: error of the worst query, per unit of noise multiplier.
    rms_loss: sensitivity × rms_error.
    max_loss: sensitivity × max_error.
    memory_copies: number of model-sized vectors that its noise stores.
    seconds: time of the search, in seconds.
  """

  mechanism: str
  num_rounds: int
  min_sep: int
  max_participations: int
  sensitivity: float
  sensitivity_kind: str
  rms_error: float
  max_error: float
  rms_loss: float
  max_loss: float
  memory_copies: int
  seconds: float


SCHEMA = ('num_rounds', 'min_sep', 'max_participations')


class Entry(NamedTuple):
  """Candidate's strategy at a schema, with its row."""

  candidate: candidates_lib.Candidate
  schema: participation.MinSep
  strategy: base.Strategy
  row: Row


class Skipped(NamedTuple):
  """Candidate that could not be evaluated at a schema, with the reason."""

  candidate: candidates_lib.Candidate
  schema: participation.MinSep
  reason: str


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Mechanisms side by side.

  Attributes:
    entries: candidates that were evaluated, with their rows.
    skipped: candidates that could not be evaluated, with the reasons.
  """

  entries: tuple[Entry, ...]
  skipped: tuple[Skipped, ...]

  @property
  def rows(self) -> tuple[Row, ...]:
    """Figures of each candidate at each schema."""
    return tuple(entry.row for entry in self.entries)

  def __repr__(self) -> str:
    return tables.at_a_prompt(self._title(), tables.columns(self._shown()).splitlines())

  def _repr_html_(self) -> str:
    return tables.as_html(self._title(), self._shown())

  def to_pandas(self) -> 'pandas.DataFrame':
    """Returns the rows as a data frame, in full precision."""
    return tables.frame([dataclasses.asdict(row) for row in self.rows])

  def plot(self) -> 'figure.Figure':
    """Draws both losses, over the field that varies or side by side.

    Raises:
      ValueError: if nothing was evaluated, or several fields vary.
    """
    from fl_dpftrl.planning import figures  # Loads matplotlib.

    varying = [name for name in SCHEMA if len({getattr(row, name) for row in self.rows}) > 1]
    fields = [name for name in varying if name != 'max_participations'] or varying
    if not self.entries or len(fields) > 1:
      raise ValueError(
        f'entries must be evaluated at schemas of which one field varies, got {len(self.entries)}'
        f' entries with {" and ".join(fields) or "none"} varying'
      )
    return figures.draw(self.entries, fields[0] if fields else None)

  def _title(self) -> str:
    skipped = f', {len(self.skipped)} left out' if self.skipped else ''
    return f'Comparison: {len(self.entries)} evaluated{skipped}'

  def _shown(self) -> list[dict[str, Any]]:
    kept = ('mechanism', *SCHEMA, 'sensitivity', 'rms_loss', 'max_loss', 'memory_copies')
    return [{name: getattr(row, name) for name in kept} for row in self.rows]


class Searched(NamedTuple):
  """Result of a search, or the reason why there is none, and its duration."""

  strategy: base.Strategy | None
  reason: str
  seconds: float


def compare(
  mechanisms: Sequence[str],
  schemas: participation.MinSep | Sequence[participation.MinSep],
  *,
  objective: str = 'max',
  workload: workloads.Workload = workloads.Workload(),
) -> Comparison:
  """Compares mechanisms and strategy files at one or several schemas.

  Args:
    mechanisms: names; each is a mechanism, a mechanism with its size (blt:3), a name in
      matrices/ or a strategy file, also as label=file.
    schemas: participation schemas.
    objective: 'rms' or 'max', the loss that optimisers minimise.
    workload: linear workload of all errors and losses.

  Raises:
    ValueError: if a name is unknown, or two candidates have the same label.
  """
  with progress_lib.steps('compare') as report:
    return run(
      candidates_lib.named(mechanisms),
      [schemas] if isinstance(schemas, participation.MinSep) else schemas,
      objective=objective,
      watch=lambda candidate, schema: report,
      workload=workload,
    )


def run(
  candidates: Sequence[candidates_lib.Candidate],
  schemas: Sequence[participation.MinSep],
  *,
  objective: str,
  watch: Watch = lambda candidate, schema: lambda steps, loss: None,
  workload: workloads.Workload = workloads.Workload(),
) -> Comparison:
  """Finds and evaluates strategies, one candidate after the other."""
  entries: list[Entry] = []
  skipped: list[Skipped] = []
  for candidate in candidates:
    for schema, searched in zip(
      schemas, search(candidate, schemas, objective=objective, watch=watch, workload=workload)
    ):
      measured = _measure(candidate, schema, searched, workload)
      if isinstance(measured, Entry):
        entries.append(measured)
      else:
        skipped.append(measured)
  return Comparison(tuple(entries), tuple(skipped))


def progress_lines(say: Callable[[str], None]) -> Watch:
  """Returns progress callbacks that say what is evaluated, in words."""

  def begin(candidate, schema):
    where = (
      f'{candidate.label} at n={schema.num_rounds}, b={schema.min_sep}, k={schema.participations}'
    )
    say(where)

    def report(steps: int, loss: float) -> None:
      say(f'{where}: {steps} steps, loss {loss:.6g}')

    return report

  return begin


def search(
  candidate: candidates_lib.Candidate,
  schemas: Sequence[participation.MinSep],
  *,
  objective: str,
  watch: Watch,
  workload: workloads.Workload = workloads.Workload(),
) -> Iterable[Searched]:
  """Yields the candidate's strategy for each schema, on demand.

  A strategy that several schemas share is found once.
  """
  searched: dict[participation.MinSep, Searched] = {}
  for schema in schemas:
    progress = watch(candidate, schema)
    target = candidate.target(schema)
    if target not in searched:
      searched[target] = _find(
        candidate, target, objective=objective, workload=workload, progress=progress
      )
    yield searched[target]


def _find(candidate, target, **kwargs) -> Searched:
  start = time.monotonic()
  try:
    strategy, reason = candidate.find(target, **kwargs), ''
  except UNSUPPORTED as e:
    strategy, reason = None, one_line(e)
  return Searched(strategy, reason, time.monotonic() - start)


def _measure(
  candidate: candidates_lib.Candidate,
  schema: participation.MinSep,
  searched: Searched,
  workload: workloads.Workload,
) -> Entry | Skipped:
  if searched.strategy is None:
    return Skipped(candidate, schema, searched.reason)
  try:
    measured = files.describe(searched.strategy, schema=schema, workload=workload)
    copies = searched.strategy.memory_copies(schema.num_rounds)
  except UNSUPPORTED as e:
    return Skipped(candidate, schema, one_line(e))
  row = Row(
    mechanism=candidate.label,
    num_rounds=schema.num_rounds,
    min_sep=schema.min_sep,
    max_participations=schema.participations,
    **measured.figures,
    memory_copies=copies,
    seconds=searched.seconds,
  )
  return Entry(candidate, schema, searched.strategy, row)


def one_line(raised: BaseException) -> str:
  """Returns an exception's message without line breaks."""
  return ' '.join(str(raised).split()) or type(raised).__name__
