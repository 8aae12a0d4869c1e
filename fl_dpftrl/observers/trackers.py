"""Observers that write measurements to TensorBoard, Weights & Biases and MLflow."""

import importlib
import os
import pathlib
import socket
import time
from collections.abc import Mapping
from typing import Any, BinaryIO

from fl_dpftrl.observers import observer

TENSORBOARD_NAME = 'tensorboard'


class TensorBoard(observer.Observer):
  """Writes the numbers of each round to an event file in tensorboard/ of the run's folder.

  It needs the package tensorboard, and no TensorFlow.
  """

  def __init__(self, settings: Mapping[str, Any] | None = None):
    """Takes flags of the run by name, for the page HParams; None for no such page."""
    self._settings = settings
    self._file: BinaryIO | None = None

  def released(self, run, round_index, measurements):
    values = _numbers(measurements)
    if not values:
      return
    if self._file is None:
      self._file = self._opened(run.folder)
    summary_pb2 = importlib.import_module('tensorboard.compat.proto.summary_pb2')
    entries = [summary_pb2.Summary.Value(tag=n, simple_value=v) for n, v in values.items()]
    self._write(step=round_index, summary=summary_pb2.Summary(value=entries))

  def end(self, run, round_index=None, error=None):
    if round_index is None and self._file is not None:
      self._file.close()
      self._file = None

  def _opened(self, folder: pathlib.Path) -> BinaryIO:
    """Opens a new event file in a folder named after the run, as TensorBoard names runs."""
    events = folder / TENSORBOARD_NAME / (folder.name or 'run')
    for path in (events.parent, events):  # Only their owner may read measurements.
      path.mkdir(mode=0o700, exist_ok=True)
      path.chmod(0o700)
    name = f'events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}'
    self._file = (events / name).open('xb')
    self._write(file_version='brain.Event:2')
    if self._settings is not None:
      api = importlib.import_module('tensorboard.plugins.hparams.api')  # Slow to load.
      shown = {name: value for name, value in self._settings.items() if value is not None}
      self._write(step=0, summary=api.hparams_pb(shown, trial_id=events.name))
    return self._file

  def _write(self, **event: Any) -> None:
    """Appends an event, so that it is in the file when this returns."""
    event_pb2 = importlib.import_module('tensorboard.compat.proto.event_pb2')
    records = importlib.import_module('tensorboard.summary.writer.record_writer')
    record = event_pb2.Event(wall_time=time.time(), **event).SerializeToString()
    writer = records.RecordWriter(self._file)
    writer.write(record)
    writer.flush()


class _Tracker(observer.Observer):
  """Base class of what sends numbers elsewhere, without those that lack the noise."""

  def __init__(self, *, exact: bool = False, **settings: Any):
    """Takes arguments of the tracker's run; `exact` sends numbers that lack the noise, too."""
    self._exact, self._settings = exact, settings

  def _sent(self, run: Any, measurements: observer.Measurements) -> dict[str, float]:
    """Returns the numbers that may leave the machine."""
    hidden = () if self._exact else tuple(f'{name}.' for name in run.exact_metrics)
    return {
      name: value
      for name, value in _numbers(measurements).items()
      if not f'{name.replace("/", ".")}.'.startswith(hidden)
    }


class WandB(_Tracker):
  """Sends the numbers of each round to Weights & Biases; its settings are those of `wandb.init`."""

  def begin(self, run, round_index=None):
    if round_index is None:
      self._tracked = importlib.import_module('wandb').init(**self._settings)

  def released(self, run, round_index, measurements):
    self._tracked.log(self._sent(run, measurements), step=round_index)

  def end(self, run, round_index=None, error=None):
    if round_index is None:
      self._tracked.finish()


class MLflow(_Tracker):
  """Sends the numbers of each round to MLflow; its settings are those of `mlflow.start_run`."""

  def begin(self, run, round_index=None):
    if round_index is None:
      self._mlflow = importlib.import_module('mlflow')
      self._run_id = self._mlflow.start_run(**self._settings).info.run_id

  def released(self, run, round_index, measurements):
    numbers = self._sent(run, measurements)
    self._mlflow.log_metrics(numbers, step=round_index, run_id=self._run_id)

  def end(self, run, round_index=None, error=None):
    if round_index is None:
      self._mlflow.end_run()


def _numbers(measurements: observer.Measurements) -> dict[str, float]:
  return {n: v for n, v in measurements.items() if isinstance(v, (int, float))}
