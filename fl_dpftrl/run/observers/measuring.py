"""Observers that measure: evaluation, ε so far and seconds."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from fl_dpftrl.run.observers import observer
from fl_dpftrl.support import checks, metrics
from fl_dpftrl.support.text import roundings

VALIDATION = 'validation/'
EPSILON, SECONDS = 'epsilon', 'seconds'
ACCURACY = f'{VALIDATION}accuracy'
RELEASED, DEVIATION = 'aggregator/metrics/', 'aggregator/metrics_stddev/'


def is_due(run: Any, round_index: int, every: int) -> bool:
  """True after every so many rounds, and after the last."""
  done = round_index + 1
  return done % every == 0 or done == run.max_rounds


class Evaluation(observer.Observer):
  """Evaluates the model of `train` after every so many rounds, and after the last."""

  measures = True

  def __init__(self, evaluate: Callable[[Any], Mapping[str, Any]], every: int = 10):
    """Takes a function from weights to metrics."""
    self._evaluate = evaluate
    self._every = checks.whole(rounds_per_evaluation=every)

  def released(self, run, round_index, measurements):
    """Returns the metrics, named validation/NAME."""
    if not is_due(run, round_index, self._every):
      return {}
    measured = self._evaluate(run.weights())
    if not isinstance(measured, Mapping):
      raise ValueError(
        "evaluate must return a mapping from names to numbers, such as {'accuracy': 0.5}, got"
        f' {type(measured).__name__}'
      )
    return metrics.flatten(measured, VALIDATION)


class EpsilonSoFar(observer.Observer):
  """Measures ε of the log up to a round, in the worst case, if no release decides the run's end."""

  measures = True

  def __init__(self, every: int = 10):
    """Takes the number of rounds between two figures."""
    self._every = checks.whole(every=every)

  def released(self, run, round_index, measurements):
    """Returns epsilon, or 'unbounded', unless the run guarantees nothing."""
    if not is_due(run, round_index, self._every) or run.claim.void_reason is not None:
      return {}
    guarantee = run.privacy_loss()
    return {EPSILON: roundings.UNBOUNDED if guarantee.void_reason else guarantee.epsilon()}


class Seconds(observer.Observer):
  """Measures the wall-clock time of a round, with what was measured after the round before."""

  measures = True

  def __init__(self):
    self._last: float | None = None

  def begin(self, run, round_index=None):
    if self._last is None and round_index is not None:
      self._last = time.monotonic()

  def released(self, run, round_index, measurements):
    last, self._last = self._last, time.monotonic()
    # A round of an earlier start has no known time.
    return {} if last is None else {SECONDS: round(self._last - last, 3)}
