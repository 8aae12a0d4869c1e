"""Results of a study: a row a run, chosen learning rates, means and comparisons over seeds."""

import dataclasses
import itertools
import math
import os
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import scipy

from fl_dpftrl.support import tables
from fl_dpftrl.support.files import durable
from fl_dpftrl.support.text import messages

DONE, DIVERGED, VOID, FAILED, WAITING = 'done', 'diverged', 'void', 'failed', 'not run'
_LEVEL = 0.05
_NAME = re.compile(r'(?=.{1,40}$)\w[\w@-]*( [\w@-]+)*')


@dataclasses.dataclass(frozen=True)
class Metric:
  """Quantity by which a study compares models.

  An accuracy is a share from 0 to 1 and shown in percent. Any other metric is shown as it is.
  """

  name: str = 'accuracy'
  lower_is_better: bool | None = None

  def __post_init__(self):
    if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
      raise ValueError(
        'metric must be a name of 1 to 40 letters, digits, _, -, @ and single spaces, got'
        f' {messages.quoted(self.name)}'
      )
    allowed = (False, None) if self.is_accuracy else (True, False)
    if self.lower_is_better not in allowed:
      raise ValueError(f'lower_is_better must be {allowed[0]} or {allowed[1]} for {self.name}')

  @property
  def is_accuracy(self) -> bool:
    """True for shares from 0 to 1, which are shown in percent."""
    return self.name == 'accuracy'

  @property
  def scale(self) -> float:
    """Factor of values as they are shown."""
    return 100.0 if self.is_accuracy else 1.0

  @property
  def sign(self) -> float:
    """Factor of values with which larger is better."""
    return -1.0 if self.lower_is_better else 1.0

  def label(self, words: str, unit: str = '%') -> str:
    """Returns words of a head or an axis, with the unit of accuracies if it is one."""
    return f'{words} ({unit})' if self.is_accuracy else words

  def text(self, value: float, margin: float | None = None) -> str:
    """Returns a value as it is shown, without its unit, and ± its margin."""
    forms = ('.2f', '.2f') if self.is_accuracy else ('.5g', '.2g')
    numbers = [n for n in (value, margin) if n is not None]
    return ' ± '.join(f'{self.scale * number:{form}}' for number, form in zip(numbers, forms))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
  """Result of a run, and its row of results.csv.

  Attributes:
    mechanism, epsilon: label, and target ε; 'no noise' and None without noise.
    server_learning_rate, seed: those of the run; the rate is None before it is chosen.
    status: 'done', 'diverged', 'void' (nothing proves its ε), 'failed' or 'not run'.
    reason: why it is not done.
    validation, test: the metric on validation and test data; None unless it is done.
    epsilon_of_run: ε that the run proves; None where it proves none.
    noise_multiplier, num_parts: std(Z) / clip norm, and parts from which batches are drawn.
  """

  mechanism: str
  epsilon: float | None
  server_learning_rate: float | None
  seed: int
  status: str
  reason: str = ''
  validation: float | None = None
  test: float | None = None
  epsilon_of_run: float | None = None
  noise_multiplier: float | None = None
  num_parts: int | None = None
  seconds: float | None = None


def write(path: str | os.PathLike[str], results: Iterable[Result]) -> None:
  """Writes results as a CSV file, whole and durably."""
  names = [field.name for field in dataclasses.fields(Result)]
  durable.write_durably(path, tables.as_csv(names, map(dataclasses.asdict, results)))


def chosen_rate(results: Sequence[Result], metric: Metric) -> float | None:
  """Returns the rate whose run of the first seed is best on validation data; None without one."""
  tried = [r for r in results if r.seed == results[0].seed]
  if any(r.status == WAITING for r in tried):
    return None
  done = [(metric.sign * r.validation, r) for r in tried if r.validation is not None]
  return max(done, key=lambda pair: pair[0])[1].server_learning_rate if done else None


def margin(values: Sequence[float]) -> float | None:
  """Returns half of the 95 % interval of a mean (Student's t); None for fewer than two values."""
  quantile = scipy.stats.t.ppf(1.0 - 0.5 * _LEVEL, len(values) - 1)
  return float(quantile * scipy.stats.sem(values)) if len(values) > 1 else None


def holm(p_values: Sequence[float]) -> list[float]:
  """Returns p-values corrected for their number. Source: Holm 1979."""
  order = np.argsort(p_values)
  corrected = np.empty(len(order))
  steps = np.asarray(p_values)[order] * np.arange(len(order), 0, -1)
  corrected[order] = np.minimum(1.0, np.maximum.accumulate(steps))
  return corrected.tolist()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """A mechanism at one ε and its chosen learning rate.

  Attributes:
    mechanism, epsilon: label, and target ε; None without noise.
    results: runs at the chosen rate, a run a seed; all where none is chosen.
    at_end: whether the chosen rate is at an end of several.
    tests: metric on test data by seed; empty where a run at the rate failed, diverged or is void.
    differences: those from the best of the same ε, paired by seed; None of the best itself.
    others, distinguished: labels compared with it; those that differ significantly from it.
    is_clear: whether it is told apart from the best, or the best.
  """

  mechanism: str
  epsilon: float | None
  results: tuple[Result, ...]
  at_end: bool
  tests: Mapping[int, float]
  differences: tuple[float, ...] | None
  others: tuple[str, ...]
  distinguished: tuple[str, ...]
  is_clear: bool

  @property
  def mean(self) -> float | None:
    """Mean over seeds; None where there is none."""
    return statistics.fmean(self.tests.values()) if self.tests else None


def rows(results: Sequence[Result], metric: Metric) -> list[Row]:
  """Returns a row for each mechanism at each ε: by ε, the best first, no noise last.

  Mechanisms share data, cohorts and initial weights for a seed, so they are compared by paired
  t-tests. All pairs of all ε are corrected together: which mechanism is the best is decided by the
  same data, so any pair may turn out to be the one that is looked at.
  """
  settings: dict[tuple[str, float | None], list[Result]] = {}
  for result in results:
    settings.setdefault((result.mechanism, result.epsilon), []).append(result)
  rates = {key: chosen_rate(own, metric) for key, own in settings.items()}
  at_rate = lambda key: lambda r: rates[key] in (None, r.server_learning_rate)
  runs = {key: tuple(filter(at_rate(key), own)) for key, own in settings.items()}
  tests = {key: _tests(rates[key], own) for key, own in runs.items()}
  peers = lambda a, b: a != b and a[1] == b[1] and bool(tests[a] and tests[b])
  pairs = [pair for pair in itertools.combinations(settings, 2) if peers(*pair)]
  corrected = holm([_p_value(_less(tests[a], tests[b])) for a, b in pairs])
  significant = {frozenset(pair) for pair, p in zip(pairs, corrected) if p < _LEVEL}
  gain = lambda key: (
    metric.sign * statistics.fmean(tests[key].values() or [-metric.sign * math.inf])
  )
  table = []
  for key in sorted(settings, key=lambda key: (key[1] or math.inf, -gain(key))):
    others = [other for other in settings if peers(key, other)]
    best = max([key, *others], key=gain)
    seed = settings[key][0].seed  # The first, which tries all rates.
    grid = [r.server_learning_rate or 0.0 for r in settings[key] if r.seed == seed]
    row = Row(
      mechanism=key[0],
      epsilon=key[1],
      results=runs[key],
      at_end=len(grid) > 1 and rates[key] in (min(grid), max(grid)),
      tests=tests[key],
      differences=None if best == key else tuple(_less(tests[key], tests[best])),
      others=tuple(label for label, _ in others),
      distinguished=tuple(o[0] for o in others if frozenset((key, o)) in significant),
      is_clear=best == key or frozenset((key, best)) in significant,
    )
    table.append(row)
  return table


def _tests(rate: float | None, results: Sequence[Result]) -> dict[int, float]:
  """Returns the metric on test data by seed: nothing where a run at the rate is no number."""
  if rate is None or any(r.status not in (DONE, WAITING) for r in results):
    return {}
  return {r.seed: r.test for r in results if r.test is not None}


def _less(values: Mapping[int, float], baseline: Mapping[int, float]) -> list[float]:
  """Returns the differences from another's values, for the seeds of both."""
  return [value - baseline[seed] for seed, value in values.items() if seed in baseline]


def _p_value(differences: Sequence[float]) -> float:
  """Returns the p-value of a paired t-test; 1 where nothing can be told."""
  if len(differences) < 2 or not any(differences):
    return 1.0
  mean, error = statistics.fmean(differences), scipy.stats.sem(differences)
  return float(2.0 * scipy.stats.t.sf(abs(mean) / error, len(differences) - 1)) if error else 0.0
