"""Observers of a run: table, progress lines, TensorBoard, evaluation and ε so far."""

import contextlib
import datetime
import errno
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

import tensorflow as tf

from fl_dpftrl import metrics
from fl_dpftrl.participation import schemas, seen
from fl_dpftrl.simulation import cohorts
from fl_dpftrl.text import roundings
from fl_dpftrl.training import checkpoints, loop

VALIDATION = 'validation/'
EPSILON, DAYS, SECONDS = 'epsilon', 'simulated_days', 'seconds'
ACCURACY = f'{VALIDATION}accuracy'
RELEASED, DEVIATION = 'aggregator/metrics/', 'aggregator/metrics_stddev/'
TENSORBOARD_NAME = 'tensorboard'
PLOT_NAME = 'accuracy.png'
_SECONDS = 30.0  # between lines of a run that is not watched


def _is_due(run: loop.TrainingRun, checkpoint: checkpoints.Checkpoint, every: int) -> bool:
  """True after every so many rounds, and after the last."""
  done = checkpoint.num_rounds
  return done % every == 0 or done == run.num_rounds


class Evaluation(loop.Observer):
  """Evaluates the model after every so many rounds, and after the last."""

  def __init__(self, evaluate: Callable[[Any], Mapping[str, Any]], every: int = 10):
    self._evaluate = evaluate
    self._every = schemas.positive_integer('rounds_per_evaluation', every)

  def measure(self, run, checkpoint):
    """Returns the metrics, named validation/NAME."""
    if not _is_due(run, checkpoint, self._every):
      return {}
    measured = self._evaluate(run.process.weights(checkpoint.state))
    if not isinstance(measured, Mapping):
      raise ValueError(
        "evaluate must return a mapping from names to numbers, such as {'accuracy': 0.5}, got"
        f' {type(measured).__name__}'
      )
    return metrics.flatten(measured, VALIDATION)


class EpsilonSoFar(loop.Observer):
  """Measures ε of the log up to a round, in the worst case, if no release decides the run's end.

  It follows the open log, so that a figure costs the rounds since the last one.
  """

  def __init__(self, every: int = 10, *, simulated: bool = False):
    self._every, self._simulated = schemas.positive_integer('every', every), simulated
    self._seen = seen.Seen()

  def measure(self, run, checkpoint):
    """Returns simulated_days, and epsilon, or 'unbounded', unless the run guarantees nothing."""
    if not _is_due(run, checkpoint, self._every):
      return {}
    if run.log is None:
      raise ValueError('log must be open before figures are taken from it')
    done = checkpoint.num_rounds
    if done < self._seen.num_rounds:
      self._seen = seen.Seen()
    for t in range(self._seen.num_rounds, done):
      self._seen.add(run.log.cohort(t))
    measured: dict[str, float | str] = {}
    if self._simulated:
      last = run.log.timestamp(done - 1)
      measured[DAYS] = 0.0 if last is None else round((last - cohorts.START) / 86400.0, 4)
    if run.claim.void_reason is None:
      answers = run.claim.answers  # Of a loss budget, the whole is spent.
      spent = answers if answers.num_rounds is None else self._seen.schema
      found = run.claim.guarantee(spent, run.delta)
      measured[EPSILON] = roundings.UNBOUNDED if found.void_reason else found.epsilon()
    return measured


class Seconds(loop.Observer):
  """Measures the wall-clock time of a round, with what was measured after the round before."""

  def __init__(self):
    self._last: float | None = None

  def begin(self, run, latest):
    self._last = time.monotonic()

  def measure(self, run, checkpoint):
    if self._last is None:  # A round of an earlier start, whose time is not known.
      return {}
    return {SECONDS: round(time.monotonic() - self._last, 3)}

  def released(self, run, checkpoint):
    self._last = time.monotonic()


class Table(loop.Observer):
  """Keeps metrics.csv: one row for each round whose result was used."""

  def __init__(self, table: metrics.MetricsTable):
    self._table = table

  def begin(self, run, latest):
    """Makes the table that of the rounds so far, and says what it has lost."""
    used = set(range(latest.num_rounds)) - set(latest.burnt)
    self._table.keep_only(used)
    # An interrupted run may lack its last row, which is released next.
    lost = sorted(used - set(self._table.rounds) - {latest.num_rounds - 1})
    if lost:
      more = ', …' if len(lost) > 10 else ''
      run.say(
        f'{self._table.path} has lost {len(lost)} rounds ({", ".join(map(str, lost[:10]))}{more}):'
        ' their measurements are gone, and sums over rounds in the report lack them; model, noise,'
        ' log and guarantee are not touched'
      )

  def released(self, run, checkpoint):
    done = checkpoint.num_rounds
    if done - 1 in checkpoint.burnt:
      self._table.keep_only(set(range(done)) - set(checkpoint.burnt))
    if checkpoint.measurements:
      self._table.put(done - 1, checkpoint.measurements)


class TensorBoard(loop.Observer):
  """Writes the numbers of each round to an event file in tensorboard/.

  Args:
    settings: flags of the run by name, for the page HParams; None for no such page.
  """

  def __init__(self, settings: Mapping[str, Any] | None = None):
    self._settings = settings
    self._writer: tf.summary.SummaryWriter | None = None

  def begin(self, run, latest):
    self._writer = event_writer(events_folder(run.folder), self._settings)

  def released(self, run, checkpoint):
    if self._writer is None or not checkpoint.measurements:
      return
    with events_written():
      with self._writer.as_default(step=checkpoint.num_rounds - 1):
        for name, value in checkpoint.measurements.items():
          if isinstance(value, (int, float)):
            tf.summary.scalar(name, value)
      self._writer.flush()


def events_folder(folder: pathlib.Path) -> pathlib.Path:
  """Makes a run's folder of TensorBoard events, which is named after the run.

  TensorBoard names runs by their folders. TensorFlow sets no permissions, and
  what it writes is unprotected, so that the folders keep others out.
  """
  events = folder / TENSORBOARD_NAME / (folder.name or 'run')
  for path in (events.parent, events):
    path.mkdir(mode=0o700, exist_ok=True)
    path.chmod(0o700)
  return events


def event_writer(
  events: pathlib.Path, settings: Mapping[str, Any] | None = None
) -> tf.summary.SummaryWriter:
  """Returns a writer of events, which first notes the settings for the page HParams."""
  with events_written(events):
    writer = tf.summary.create_file_writer(str(events))
    if settings is not None:
      from tensorboard.plugins.hparams import api  # Slow to load.

      given = {name: value for name, value in settings.items() if value is not None}
      with writer.as_default(step=0):
        api.hparams(given, trial_id=events.name)
    writer.flush()
  return writer


@contextlib.contextmanager
def events_written(path: str | os.PathLike[str] = "TensorBoard's event file") -> Iterator[None]:
  """Makes an OSError of each error with which TensorFlow fails to write events."""
  try:
    yield
  except (tf.errors.ResourceExhaustedError, tf.errors.OutOfRangeError) as error:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
  except tf.errors.OpError as error:
    raise OSError(f'{path}: {error.message}') from error


class ProgressLine(loop.Observer):
  """Says after a round where the run stands."""

  def __init__(self, every: int = 1, *, stream: TextIO | None = None):
    self._every, self._stream = schemas.positive_integer('every', every), stream
    self._began, self._said = 0.0, time.monotonic()
    self._began_at = 0
    self._evaluated: dict[str, Any] = {}

  def begin(self, run, latest):
    self._began = self._said = time.monotonic()
    self._began_at = latest.num_rounds

  def released(self, run, checkpoint):
    measured = checkpoint.measurements
    self._evaluated |= {
      name: value
      for name, value in measured.items()
      if name == EPSILON or name.startswith(VALIDATION)
    }
    line, stream = self.line(run, checkpoint), self._stream
    if stream is not None and stream.isatty():
      end = '\n' if checkpoint.num_rounds == run.num_rounds else ''
      stream.write(f'\r\033[K{line}{end}')
      stream.flush()
    elif _is_due(run, checkpoint, self._every) or time.monotonic() - self._said >= _SECONDS:
      self._said = time.monotonic()
      if stream is not None:
        stream.write(line + '\n')
        stream.flush()
      elif measured:
        run.say(line)

  def line(self, run: loop.TrainingRun, checkpoint: checkpoints.Checkpoint) -> str:
    """Returns the line after a checkpoint's round."""
    done = checkpoint.num_rounds
    parts = [f'round {done}/{run.num_rounds}']
    for name, value in checkpoint.measurements.items():
      if name.endswith('train/loss'):
        parts.append(f'training loss {value:.3f}')
      if name.startswith(RELEASED):
        metric = name.removeprefix(RELEASED)
        margin = 1.96 * checkpoint.measurements[f'{DEVIATION}{metric}']
        parts.append(f"clients' {metric} {value:.3f} ± {margin:.3f}")
    validation = {n: v for n, v in self._evaluated.items() if n.startswith(VALIDATION)}
    if ACCURACY in validation:
      parts.append(f'validation accuracy {100.0 * validation[ACCURACY]:.2f} %')
    else:
      for name, value in list(validation.items())[:2]:
        parts.append(f'{name.replace("/", " ")} {value:.4g}')
    if EPSILON in self._evaluated:
      epsilon = self._evaluated[EPSILON]
      parts.append(f'ε so far {epsilon if isinstance(epsilon, str) else roundings.up(epsilon)}')
    if status := run.status():
      parts.append(status)
    if done > self._began_at:
      left = (time.monotonic() - self._began) / (done - self._began_at)
      seconds = round(left * (run.num_rounds - done))
      parts.append(f'{datetime.timedelta(seconds=seconds)} left')
    return ' | '.join(parts)


class Plot(loop.Observer):
  """Draws accuracy, and ε where it was measured, against rounds into the run's folder."""

  def end(self, run, trained):
    trained.plot()
