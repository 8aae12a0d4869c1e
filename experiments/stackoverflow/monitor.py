"""Progress of a run while it trains: table, TensorBoard and a progress line."""

import dataclasses
import datetime
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import tensorflow as tf

from experiments.stackoverflow import configuration
from fl_dpftrl import rounding
from fl_dpftrl.learning import checkpoints, metrics

# Columns that differ between two runs of the same flags.
WALL_CLOCK_COLUMNS = ('seconds',)


def events_folder(within: pathlib.Path, run: str) -> pathlib.Path:
  """Makes a run's folder of TensorBoard events, which is named after the run.

  TensorBoard names runs by their folders. TensorFlow sets no permissions, and
  what it writes is unprotected, so that the folders keep others out.
  """
  events = within / (run or 'run')
  for folder in (within, events):
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
  return events


def event_writer(events: pathlib.Path, hparams: configuration.Hparams) -> tf.summary.SummaryWriter:
  """Returns a writer of events, which first notes the flags for the page HParams."""
  from tensorboard.plugins.hparams import api  # Slow to load.

  flags = {name: value for name, value in hparams.to_json().items() if value is not None}
  with metrics.events_written(events):
    writer = tf.summary.create_file_writer(str(events))
    with writer.as_default(step=0):
      api.hparams(flags, trial_id=events.name)
    writer.flush()
  return writer


@dataclasses.dataclass(kw_only=True)
class Monitor:
  """Publishes a run's checkpoints as the training loop releases them.

  Attributes:
    table: where each round gets its row.
    writer: TensorBoard's event file.
    num_rounds: of the whole run.
    rounds_per_evaluation: the model is evaluated after every so many rounds,
      and after the last.
    evaluate: model weights → measurements on the validation devices.
    so_far: rounds so far → what the log up to them says, among it `epsilon`
      unless there is no guarantee.
    warn: told, in a line, of rows that were lost.
    status: returns what the progress says of the machines that train; '' for nothing.
    stream: where the progress goes.
  """

  table: metrics.MetricsTable
  writer: tf.summary.SummaryWriter
  num_rounds: int
  rounds_per_evaluation: int
  evaluate: Callable[[Any], dict[str, float]]
  so_far: Callable[[int], dict[str, float]]
  warn: Callable[[str], None]
  status: Callable[[], str] = lambda: ''
  stream: TextIO = sys.stderr
  _began: float | None = None
  _began_at: int = 0
  _last: float = 0.0
  _evaluation: dict[str, float] = dataclasses.field(default_factory=dict)

  def begin(
    self, latest: checkpoints.Checkpoint, earlier: Iterator[checkpoints.Checkpoint]
  ) -> None:
    """Makes the table that of the rounds so far, and says what it has lost."""
    used = set(range(latest.num_rounds)) - set(latest.burnt)
    self.table.keep_only(used)
    # An interrupted run may lack its last row, which is published next.
    missing = used - set(self.table.rounds) - {latest.num_rounds - 1}
    found = set()
    while missing - found and (checkpoint := next(earlier, None)) is not None:
      t = checkpoint.num_rounds - 1
      if t in missing and checkpoint.measurements:
        self.table.put(t, {**checkpoint.measurements, **self._evaluate(checkpoint)})
        found.add(t)
    if found:
      self.warn(
        f'{self.table.path} had lost rounds {_listed(found)}: they are written'
        ' again from their checkpoints'
      )
    if missing - found:
      self.warn(
        f'{self.table.path} has lost rounds {_listed(missing - found)}: their'
        ' measurements are gone, and sums over rounds in the report lack them;'
        ' model, noise, log and guarantee are not touched'
      )

  def _evaluate(self, checkpoint: checkpoints.Checkpoint) -> dict[str, float]:
    """Returns metrics after the checkpoint's round; empty for most rounds."""
    done = checkpoint.num_rounds
    if done % self.rounds_per_evaluation and done != self.num_rounds:
      return {}
    measured = self.evaluate(checkpoint.state.global_model_weights)
    return {
      **{f'validation/{name}': value for name, value in measured.items()},
      **self.so_far(done),
    }

  def publish(self, checkpoint: checkpoints.Checkpoint) -> None:
    """Writes the row of the checkpoint's last round, and shows the progress."""
    done = checkpoint.num_rounds
    now = time.monotonic()
    if self._began is None:
      self._began, self._began_at, self._last = now, done, now
    elif done - 1 in checkpoint.burnt:
      self.table.keep_only(set(range(done)) - set(checkpoint.burnt))
    if checkpoint.measurements:
      row = dict(checkpoint.measurements)
      if evaluation := self._evaluate(checkpoint):
        self._evaluation = evaluation
        row.update(evaluation)
      row['seconds'] = round(now - self._last, 3)
      self.table.put(done - 1, row)
      metrics.write_tensorboard(self.writer, done - 1, row)
    self._last = now
    self._show(done, checkpoint.measurements, now)

  def _show(self, done: int, measurements: dict[str, float], now: float) -> None:
    parts = [f'round {done}/{self.num_rounds}']
    for name, value in measurements.items():
      if name.endswith('train/loss'):
        parts.append(f'training loss {value:.3f}')
    if 'validation/accuracy' in self._evaluation:
      accuracy = 100.0 * self._evaluation['validation/accuracy']
      parts.append(f'validation accuracy {accuracy:.2f} %')
    if 'epsilon' in self._evaluation:
      epsilon = rounding.up(self._evaluation['epsilon'])
      parts.append(f'ε so far {epsilon}')
    if status := self.status():
      parts.append(status)
    if done > self._began_at:
      left = (now - self._began) / (done - self._began_at)
      seconds = round(left * (self.num_rounds - done))
      parts.append(f'{datetime.timedelta(seconds=seconds)} left')
    line = ' | '.join(parts)
    if self.stream.isatty():
      end = '\n' if done == self.num_rounds else ''
      self.stream.write(f'\r\033[K{line}{end}')
    elif done % self.rounds_per_evaluation == 0 or done == self.num_rounds:
      self.stream.write(line + '\n')
    self.stream.flush()


def _listed(rounds: set[int]) -> str:
  """Round numbers in a few words: `0-3, 7`, cut after the first ten parts."""
  parts, ordered = [], sorted(rounds)
  while ordered:
    first = last = ordered.pop(0)
    while ordered and ordered[0] == last + 1:
      last = ordered.pop(0)
    parts.append(str(first) if first == last else f'{first}-{last}')
  return ', '.join(parts[:10]) + (', …' if len(parts) > 10 else '')
