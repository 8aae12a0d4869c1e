"""Results of a study: chosen learning rates, means over seeds, paired comparisons.

Values are those of the study's metric. In gains larger is better: they are the values, negated
where lower is better.
"""

import csv
import dataclasses
import math
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fl_dpftrl.files import durable, json_files
from fl_dpftrl.studies import cells as cells_lib
from fl_dpftrl.studies import design as design_lib
from fl_dpftrl.studies import intervals, kept
from fl_dpftrl.studies import metric as metric_lib

DONE, DIVERGED, FAILED, WAITING = 'done', 'diverged', 'failed', 'not run'
_DIGITS = 4  # of a rate beyond a grid


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
  """Result of a cell.

  Attributes:
    cell: the cell.
    status: 'done', 'diverged', 'failed' or 'not run'.
    reason: why it failed, or from which round on it diverged.
    summary: its summary.json; empty unless it has ended.
  """

  cell: cells_lib.Cell
  status: str
  reason: str = ''
  summary: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def validation(self) -> float | None:
    """Returns the metric on validation data; None unless the cell is done."""
    return self.summary['validation'].get(self.cell.metric.name) if self.status == DONE else None

  @property
  def test(self) -> float | None:
    """Returns the metric on test data; None unless the cell is done."""
    return self.summary['test'].get(self.cell.metric.name) if self.status == DONE else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """A setting at its chosen learning rate.

  Attributes:
    setting: mechanism and level of noise.
    conditions: conditions of its runs.
    noise: its noise; None without.
    server_learning_rate: rate with the best mean on validation data; None
      where no cell is done.
    at_edge: True if several rates were tried, and the chosen one is the least or
      largest of them.
    results: cells of the chosen rate, by seed.
    difference: against the best of the same ε; None for the best itself.
    problems: cells of the setting that failed or diverged.
    looks: numbers of seeds at which a study that adds seeds looked at this ε; see `sequential`.
    metric: what the study compares.
  """

  setting: design_lib.Setting
  conditions: cells_lib.Conditions
  noise: cells_lib.Noise | None
  server_learning_rate: float | None
  at_edge: bool
  results: tuple[Result, ...]
  difference: intervals.Difference | None
  problems: tuple[Result, ...]
  looks: tuple[int, ...] = ()
  metric: metric_lib.Metric = metric_lib.Metric()

  @property
  def label(self) -> str:
    """Name of the mechanism."""
    return self.setting.label

  @property
  def epsilon(self) -> float:
    """Target ε; infinity without noise."""
    return math.inf if self.setting.epsilon is None else self.setting.epsilon

  @property
  def family(self) -> str:
    """Family of the strategies, or the name of the mechanism before they are known."""
    if self.setting.mechanism is None:
      return design_lib.NO_NOISE
    families = [r.summary['mechanism'] for r in self.results if r.summary.get('mechanism')]
    return families[0] if families else self.setting.mechanism.mechanism.partition(':')[0]

  @property
  def tests(self) -> dict[int, float]:
    """Metric on test data by seed."""
    return {r.cell.seed: r.test for r in self.results if r.test is not None}

  @property
  def gains(self) -> dict[int, float]:
    """Metric on test data by seed, with larger as better."""
    return {seed: self.metric.gain(value) for seed, value in self.tests.items()}

  @property
  def mean(self) -> float:
    """Mean metric on test data; NaN where no cell is done."""
    return statistics.fmean(self.tests.values()) if self.tests else math.nan

  @property
  def gain(self) -> float:
    """Mean metric on test data, with larger as better; NaN where no cell is done."""
    return self.metric.gain(self.mean)

  @property
  def deviation(self) -> float | None:
    """Standard deviation on test data over seeds; None for fewer than two."""
    return statistics.stdev(self.tests.values()) if len(self.tests) > 1 else None

  @property
  def margin(self) -> float | None:
    """Half the width of the 95 % interval of the mean, as that of a difference."""
    return intervals.margin(list(self.tests.values()), self.looks)

  @property
  def verdict(self) -> str:
    """How the setting compares with the best of its ε."""
    if not self.tests:
      return 'no result'
    if self.setting.mechanism is None:
      return ''
    return 'best' if self.difference is None else self.difference.verdict


def read(cell: cells_lib.Cell, failed: Mapping[str, str] | None = None) -> Result:
  """Returns what a cell came to.

  A run with less noise, or with participation that its noise was not calibrated for, has failed:
  its ε is not that of its setting.

  Args:
    cell: the cell.
    failed: reasons of the cells that failed, by their names.

  Raises:
    ValueError: if its summary is not one.
  """
  path = cell.folder / cells_lib.SUMMARY_NAME
  if not path.exists():
    reason = (failed or {}).get(cell.name)
    return Result(cell=cell, status=WAITING if reason is None else FAILED, reason=reason or '')
  content = json_files.read(path)
  try:
    since = content['diverged_since_round']
    name = cell.metric.name
    values = content['test'][name], content['validation'][name]
    seconds = float(content['seconds'])
    broken = kept.broken(cell, content)
  except (KeyError, TypeError, ValueError):
    raise ValueError(
      f'{path} is no summary of a run with test and validation {cell.metric.name}; remove its'
      ' folder to repeat it'
    ) from None
  if broken:
    return Result(cell=cell, status=FAILED, reason=broken)
  if since is None and None not in values and math.isfinite(seconds):
    return Result(cell=cell, status=DONE, summary=content)
  reason = 'not finite' if since is None else f'not finite from round {since} on'
  return Result(cell=cell, status=DIVERGED, reason=reason, summary=content)


def chosen_rates(
  design: design_lib.Design, results: Iterable[Result]
) -> dict[design_lib.Setting, float]:
  """Returns the rate of each setting with the best mean on validation data.

  A rate for which a tuning cell failed or diverged is not chosen. Only the
  tuning seeds count, so that the choice is the same when more seeds are done. A
  setting whose grid is not yet run has no choice.
  """
  tuning = set(design.seeds[: design.tuning_seeds])
  tried: dict[design_lib.Setting, dict[float, list[Result]]] = {}
  for result in results:
    if result.cell.seed in tuning:
      rates = tried.setdefault(result.cell.setting, {})
      rates.setdefault(result.cell.server_learning_rate, []).append(result)
  chosen = {}
  for setting, rates in tried.items():
    grid = [own for rate in setting.server_learning_rates for own in rates.get(rate, [])]
    if any(own.status == WAITING for own in grid):
      continue
    means = {}
    for rate, at_rate in rates.items():
      measured = [own.validation for own in at_rate if own.validation is not None]
      if len(measured) == len(tuning):
        means[rate] = design.metric.gain(statistics.fmean(measured))
    if means:
      chosen[setting] = max(means, key=lambda rate: (means[rate], -rate))
  return chosen


def tried_rates(
  design: design_lib.Design, results: Iterable[Result], *, ended: bool = False
) -> dict[design_lib.Setting, tuple[float, ...]]:
  """Returns the rates that the tuning seeds have cells of, ascending, by setting.

  Args:
    design: design of the study.
    results: results of its cells.
    ended: True for the rates of cells that are done or diverged alone.
  """
  tuning = set(design.seeds[: design.tuning_seeds])
  rates: dict[design_lib.Setting, set[float]] = {s: set() for s in design.settings}
  for result in results:
    if result.cell.seed in tuning and (not ended or result.status in (DONE, DIVERGED)):
      rates[result.cell.setting].add(result.cell.server_learning_rate)
  return {setting: tuple(sorted(own)) for setting, own in rates.items()}


def further(
  design: design_lib.Design, results: Sequence[Result]
) -> Mapping[design_lib.Setting, float]:
  """Returns the next rate of each setting whose best rate is at an end of those tried.

  It continues the grid with the ratio of its last two rates. A setting with a
  single rate has no grid, and one with `extend_rates` further rates no more.
  The same results give the same rates, so that a study that is resumed has the
  same cells.
  """
  tried = tried_rates(design, results)
  return {
    setting: _beyond(tried[setting], best)
    for setting, best in chosen_rates(design, results).items()
    if len(setting.server_learning_rates) > 1
    and len(tried[setting]) < len(setting.server_learning_rates) + design.extend_rates
    and best in (tried[setting][0], tried[setting][-1])
  }


def _beyond(rates: Sequence[float], end: float) -> float:
  inner = rates[1] if end == rates[0] else rates[-2]
  return float(f'{end * end / inner:.{_DIGITS}g}')


def rows(
  design: design_lib.Design, results: Sequence[Result], looks: Mapping[float, tuple[int, ...]] = {}
) -> list[Row]:
  """Returns a row for each setting, in the order of the design.

  Differences are those between means of gains that are paired by seed: two
  mechanisms share data, cohorts and initial weights for the same seed.

  Args:
    design: design of the study.
    results: results of its cells.
    looks: see `Row`, by ε.
  """
  rates = chosen_rates(design, results)
  tried = tried_rates(design, results, ended=True)
  made = []
  for setting in design.settings:
    own = [result for result in results if result.cell.setting == setting]
    rate = rates.get(setting)
    grid = tried[setting]
    made.append(
      Row(
        setting=setting,
        conditions=own[0].cell.conditions,
        noise=own[0].cell.noise,
        server_learning_rate=rate,
        at_edge=len(grid) > 1 and rate in (grid[0], grid[-1]),
        results=tuple(result for result in own if result.cell.server_learning_rate == rate),
        difference=None,
        problems=tuple(result for result in own if result.status in (DIVERGED, FAILED)),
        looks=looks.get(setting.epsilon or math.inf, ()),
        metric=design.metric,
      )
    )
  return [dataclasses.replace(row, difference=_to_best(row, made)) for row in made]


def baseline(all_rows: Sequence[Row]) -> float | None:
  """Returns the test accuracy of the best constant prediction, where accuracies are compared.

  Each seed divides data of your own in another way. The mean is over seeds.
  """
  runs = [result for row in all_rows for result in row.results if row.metric.is_accuracy]
  known = [r for r in runs if r.summary.get('unigram_accuracy') is not None]
  by_seed = {r.cell.seed: r.summary['unigram_accuracy'] for r in known}
  return statistics.fmean(by_seed.values()) if by_seed else None


def levels(all_rows: Iterable[Row]) -> dict[float, list[Row]]:
  """Returns the settings with noise and a result of each ε, the best first."""
  all_rows = [row for row in all_rows if row.setting.mechanism is not None]
  return {
    epsilon: sorted(
      (row for row in all_rows if row.tests and row.epsilon == epsilon), key=lambda row: -row.gain
    )
    for epsilon in dict.fromkeys(row.epsilon for row in all_rows)
  }


def without_noise(all_rows: Iterable[Row]) -> Row | None:
  """Returns the setting without noise, if it has a result."""
  return next((row for row in all_rows if row.setting.mechanism is None and row.tests), None)


def _to_best(row: Row, all_rows: Sequence[Row]) -> intervals.Difference | None:
  peers = [peer for peer in all_rows if peer.epsilon == row.epsilon and peer.tests]
  best = max(peers, key=lambda peer: peer.gain, default=row)
  return (
    intervals.paired(best.gains, row.gains, row.looks) if row.tests and best is not row else None
  )


def write_csv(path: str | os.PathLike[str], made: Sequence[Mapping[str, Any]]) -> None:
  """Writes the lines of a table, as `lines` makes them, as a CSV file."""
  with durable.replacing(path) as temporary, temporary.open('w', newline='') as stream:
    writer = csv.DictWriter(stream, list(made[0]), lineterminator='\n')
    writer.writeheader()
    writer.writerows(made)


def lines(design: design_lib.Design, results: Sequence[Result]) -> list[dict[str, Any]]:
  """Returns a line of a table for each cell, with all that its summary says of it."""
  rates = chosen_rates(design, results)
  return [_line(design, result, rates) for result in results]


def _line(
  design: design_lib.Design, result: Result, rates: Mapping[design_lib.Setting, float]
) -> dict[str, Any]:
  cell, said = result.cell, result.summary
  noise, metric = cell.noise, cell.metric
  deployment = said.get('hypothetical_deployment') or {}
  return {
    'label': cell.setting.label,
    'mechanism': said.get('mechanism'),
    'strategy_digest': said.get('strategy_digest'),
    'target_epsilon': cell.setting.epsilon,
    'epsilon_of': design.epsilon_of if cell.setting.epsilon else None,
    'noise_multiplier': cell.noise_multiplier,
    'rms_noise': noise and noise.rms,
    'max_noise': noise and noise.max,
    'optimiser_noise': noise and noise.optimiser,
    'client_learning_rate': said.get('client_learning_rate'),
    'server_learning_rate': cell.server_learning_rate,
    'seed': cell.seed,
    'chosen': rates.get(cell.setting) == cell.server_learning_rate,
    'status': result.status,
    'reason': result.reason,
    f'validation_{metric.key}': (said.get('validation') or {}).get(metric.name),
    f'test_{metric.key}': (said.get('test') or {}).get(metric.name),
    f'published_test_{metric.key}': cell.setting.published,
    'run_epsilon': said.get('epsilon'),
    'declared_epsilon': (said.get('declared') or {}).get('epsilon'),
    'deployment_epsilon': deployment.get('epsilon'),
    'delta': said.get('delta'),
    'num_rounds': said.get('num_rounds'),
    'num_devices': said.get('num_devices'),
    'min_sep': said.get('min_sep'),
    'max_participations': said.get('max_participations'),
    'seconds': said.get('seconds'),
    'folder': f'{cells_lib.CELLS_NAME}/{cell.name}',
  }
