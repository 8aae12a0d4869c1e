"""Results of a study: chosen learning rates, means over seeds, paired comparisons."""

import csv
import dataclasses
import math
import os
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scipy import stats

from experiments.stackoverflow import report
from experiments.stackoverflow.study import cells as cells_lib
from experiments.stackoverflow.study import study_file
from fl_dpftrl.files import durable, json_files

DONE, DIVERGED, FAILED, WAITING = 'done', 'diverged', 'failed', 'not run'
_CONFIDENCE = 0.95


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
    """Returns the accuracy on validation data; None unless the cell is done."""
    return self.summary['validation'].get('accuracy') if self.status == DONE else None

  @property
  def test(self) -> float | None:
    """Returns the accuracy on test data; None unless the cell is done."""
    return self.summary['test'].get('accuracy') if self.status == DONE else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
  """Test accuracy below that of the best mechanism, paired by seed.

  Attributes:
    mean: mean over seeds of the best one's accuracy less that of this one.
    margin: half the width of its 95 % confidence interval (Student's t); None
      for fewer than two seeds.
  """

  mean: float
  margin: float | None

  @property
  def is_clear(self) -> bool:
    """Returns whether the interval does not hold 0."""
    return self.margin is not None and abs(self.mean) > self.margin

  @property
  def verdict(self) -> str:
    if self.margin is None:
      return 'unknown: one seed'
    if self.mean - self.margin > 0:
      return 'worse'
    return 'tied with the best' if self.mean + self.margin >= 0 else 'better'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """A setting at its chosen learning rate.

  Attributes:
    setting: mechanism and level of noise.
    noise: its noise; None without.
    server_learning_rate: rate with the best mean validation accuracy; None
      where no cell is done.
    at_edge: True if several rates were tried, and the chosen one is the least or
      largest of them.
    results: cells of the chosen rate, by seed.
    mean: mean test accuracy; None where no cell is done.
    deviation: standard deviation over seeds; None for fewer than two.
    difference: against the best of the same ε; None for the best itself.
    problems: cells of the setting that failed or diverged.
  """

  setting: study_file.Setting
  noise: cells_lib.Noise | None
  server_learning_rate: float | None
  at_edge: bool
  results: tuple[Result, ...]
  mean: float | None
  deviation: float | None
  difference: Difference | None
  problems: tuple[Result, ...]

  @property
  def tests(self) -> dict[int, float]:
    """Returns test accuracies by seed."""
    return {r.cell.seed: r.test for r in self.results if r.test is not None}

  @property
  def verdict(self) -> str:
    if self.mean is None:
      return 'no result'
    if self.setting.mechanism is None:
      return ''
    return 'best' if self.difference is None else self.difference.verdict


def read(
  cell: cells_lib.Cell, folder: pathlib.Path, failed: Mapping[str, str] | None = None
) -> Result:
  """Returns what a cell of the study in the folder came to.

  Raises:
    ValueError: if its summary is not one.
  """
  path = folder / cells_lib.CELLS_NAME / cell.name / report.NAME
  if not path.exists():
    reason = (failed or {}).get(cell.name)
    return Result(cell=cell, status=WAITING if reason is None else FAILED, reason=reason or '')
  content = json_files.read(path)
  try:
    since = content['diverged_since_round']
    accuracies = content['test']['accuracy'], content['validation']['accuracy']
    seconds = float(content['seconds'])
  except (KeyError, TypeError, ValueError):
    raise ValueError(f'{path} is no summary of a run; remove its folder to repeat it') from None
  if since is None and None not in accuracies and math.isfinite(seconds):
    return Result(cell=cell, status=DONE, summary=content)
  reason = f'not finite from round {since} on'
  return Result(cell=cell, status=DIVERGED, reason=reason, summary=content)


def chosen_rates(
  study: study_file.Study, results: Iterable[Result]
) -> dict[study_file.Setting, float]:
  """Returns the rate of each setting with the best mean validation accuracy.

  A rate for which a tuning cell failed or diverged is not chosen. Only the
  tuning seeds count, so that the choice is the same when more seeds are done. A
  setting whose grid is not yet run has no choice.
  """
  tuning = set(study.seeds[: study.tuning_seeds])
  measured: dict[study_file.Setting, dict[float, list[float | None]]] = {}
  undecided = set()
  for result in results:
    setting, rate = result.cell.setting, result.cell.server_learning_rate
    if result.status == WAITING and rate in setting.server_learning_rates:
      undecided |= {setting} if result.cell.seed in tuning else set()
    if result.cell.seed in tuning:
      rates = measured.setdefault(result.cell.setting, {})
      rates.setdefault(result.cell.server_learning_rate, []).append(result.validation)
  chosen = {}
  for setting, rates in measured.items():
    means = {
      rate: statistics.fmean(values)
      for rate, values in rates.items()
      if len(values) == len(tuning) and None not in values
    }
    if means and setting not in undecided:
      chosen[setting] = max(means, key=lambda rate: (means[rate], -rate))
  return chosen


def tried_rates(
  study: study_file.Study, results: Iterable[Result], *, ended: bool = False
) -> dict[study_file.Setting, tuple[float, ...]]:
  """Returns the rates that the tuning seeds have cells of, ascending, by setting.

  Args:
    study: the study.
    results: results of its cells.
    ended: True for the rates of cells that are done or diverged alone.
  """
  tuning = set(study.seeds[: study.tuning_seeds])
  rates: dict[study_file.Setting, set[float]] = {s: set() for s in study.settings}
  for result in results:
    if result.cell.seed in tuning and (not ended or result.status in (DONE, DIVERGED)):
      rates[result.cell.setting].add(result.cell.server_learning_rate)
  return {setting: tuple(sorted(own)) for setting, own in rates.items()}


def rows(
  study: study_file.Study,
  noises: Mapping[study_file.Setting, cells_lib.Noise | None],
  results: Sequence[Result],
) -> list[Row]:
  """Returns a row for each setting, in the order of the study file.

  Differences are those between means of accuracies that are paired by seed: two
  mechanisms share data, cohorts and initial weights for the same seed.
  """
  rates = chosen_rates(study, results)
  tried = tried_rates(study, results, ended=True)
  found = []
  for setting in study.settings:
    own = [result for result in results if result.cell.setting == setting]
    rate = rates.get(setting)
    at_rate = tuple(result for result in own if result.cell.server_learning_rate == rate)
    tests = [result.test for result in at_rate if result.test is not None]
    grid = tried[setting]
    found.append(
      Row(
        setting=setting,
        noise=noises[setting],
        server_learning_rate=rate,
        at_edge=len(grid) > 1 and rate in (grid[0], grid[-1]),
        results=at_rate,
        mean=statistics.fmean(tests) if tests else None,
        deviation=statistics.stdev(tests) if len(tests) > 1 else None,
        difference=None,
        problems=tuple(result for result in own if result.status in (DIVERGED, FAILED)),
      )
    )
  return [dataclasses.replace(row, difference=_to_best(row, found)) for row in found]


def baseline(found: Sequence[Row]) -> float | None:
  """Returns the test accuracy of the best constant prediction, where the runs know one.

  Each seed divides data of your own in another way. The mean is over seeds.
  """
  runs = [result for row in found for result in row.results]
  known = [r for r in runs if r.summary.get('unigram_accuracy') is not None]
  by_seed = {r.cell.seed: r.summary['unigram_accuracy'] for r in known}
  return statistics.fmean(by_seed.values()) if by_seed else None


def _to_best(row: Row, found: Sequence[Row]) -> Difference | None:
  peers = [r for r in found if r.setting.epsilon == row.setting.epsilon and r.mean is not None]
  if row.mean is None or not peers:
    return None
  best = max(peers, key=lambda peer: peer.mean)
  return None if best is row else paired(best.tests, row.tests)


def paired(best: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
  """Compares accuracies of the seeds that both have; None without such a seed."""
  differences = [best[seed] - other[seed] for seed in sorted(best.keys() & other.keys())]
  if not differences:
    return None
  margin = None
  if len(differences) > 1:
    quantile = stats.t.ppf(0.5 + 0.5 * _CONFIDENCE, len(differences) - 1)
    margin = float(quantile * statistics.stdev(differences) / math.sqrt(len(differences)))
  return Difference(mean=statistics.fmean(differences), margin=margin)


def write_csv(
  path: str | os.PathLike[str], study: study_file.Study, results: Sequence[Result]
) -> None:
  """Writes one line for each cell, with all that its summary says of it."""
  rates = chosen_rates(study, results)
  lines = [_line(study, result, rates) for result in results]
  with durable.replacing(path) as temporary, temporary.open('w', newline='') as stream:
    writer = csv.DictWriter(stream, list(lines[0]), lineterminator='\n')
    writer.writeheader()
    writer.writerows(lines)


def _line(
  study: study_file.Study, result: Result, rates: Mapping[study_file.Setting, float]
) -> dict[str, Any]:
  cell, found = result.cell, result.summary
  noise = cell.noise
  deployment = found.get('hypothetical_deployment') or {}
  return {
    'label': cell.setting.label,
    'mechanism': found.get('mechanism'),
    'strategy_digest': found.get('strategy_digest'),
    'target_epsilon': cell.setting.epsilon,
    'epsilon_of': study.epsilon_of if cell.setting.epsilon else None,
    'noise_multiplier': noise.noise_multiplier if noise else 0.0,
    'rms_noise': noise and noise.rms,
    'max_noise': noise and noise.max,
    'optimiser_noise': noise and noise.optimiser,
    'client_learning_rate': found.get('client_learning_rate'),
    'server_learning_rate': cell.server_learning_rate,
    'seed': cell.seed,
    'chosen': rates.get(cell.setting) == cell.server_learning_rate,
    'status': result.status,
    'reason': result.reason,
    'validation_accuracy': (found.get('validation') or {}).get('accuracy'),
    'test_accuracy': (found.get('test') or {}).get('accuracy'),
    'published_test_accuracy': cell.setting.published,
    'run_epsilon': found.get('epsilon'),
    'declared_epsilon': (found.get('declared') or {}).get('epsilon'),
    'deployment_epsilon': deployment.get('epsilon'),
    'delta': found.get('delta'),
    'num_rounds': found.get('num_rounds'),
    'num_devices': found.get('num_devices'),
    'min_sep': found.get('min_sep'),
    'max_participations': found.get('max_participations'),
    'seconds': found.get('seconds'),
    'folder': f'{cells_lib.CELLS_NAME}/{cell.name}',
  }
