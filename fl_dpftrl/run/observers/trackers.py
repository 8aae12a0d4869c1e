"""Observers that write measurements to TensorBoard, Weights & Biases and MLflow."""

import importlib
import os
import pathlib
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any, BinaryIO, ClassVar, TypeVar

from fl_dpftrl.run.observers import observer
from fl_dpftrl.support import callers
from fl_dpftrl.support.text import messages

TENSORBOARD_NAME = 'tensorboard'
_ROUND = 'round'  # axis of Weights & Biases
SECONDS = 8.0  # longest wait for a call; without a network, libraries try for minutes
_REFUSED = 'INVALID_PARAMETER_VALUE'  # MLflow's code for a name that it does not take
_Result = TypeVar('_Result')
_Call = tuple[futures.Future, Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class TensorBoard(observer.Observer):
  """Writes the numbers of each round to an event file in tensorboard/ of the run's folder.

  It needs the package tensorboard, and no TensorFlow.
  """

  def __init__(self, settings: Mapping[str, Any] | None = None):
    """Takes flags of the run by name, for the page HParams; None for no such page."""
    _library('tensorboard', 'TensorBoard')
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
  """Base class of what sends numbers elsewhere, without those that lack the noise.

  Each run gets one of the tracker's own, also beside others in the process, and only that is ended.
  A tracker that could not begin gets nothing.
  """

  library: ClassVar[str]

  def __init__(self, *, exact: bool = False, **settings: Any):
    """Takes arguments of the tracker's run; `exact` sends numbers that lack the noise, too."""
    self._exact, self._settings = exact, settings
    self._module = _library(self.library, type(self).__name__)
    self._apart = Apart(type(self).__name__)
    self._is_begun = False

  def begin(self, run, round_index=None):
    if round_index is not None:
      return
    try:
      self._start()
    except Exception as error:
      raise ConnectionError(
        messages.one_line(f'{type(self).__name__} could not begin: {error}')
      ) from None
    self._is_begun = True

  def released(self, run, round_index, measurements):
    if self._is_begun:
      self._send(self._sent(run, measurements), round_index)

  def end(self, run, round_index=None, error=None):
    if round_index is None and self._is_begun:
      self._is_begun = False
      self._finish()

  def _start(self) -> None:
    raise NotImplementedError

  def _send(self, numbers: dict[str, float], round_index: int) -> None:
    raise NotImplementedError

  def _finish(self) -> None:
    raise NotImplementedError

  def _sent(self, run: Any, measurements: observer.Measurements) -> dict[str, float]:
    """Returns the numbers that may leave the machine."""
    hidden = () if self._exact else tuple(f'{name}.' for name in run.exact_metrics)
    return {
      name: value
      for name, value in _numbers(measurements).items()
      if not f'{name.replace("/", ".")}.'.startswith(hidden)
    }


class WandB(_Tracker):
  """Sends the numbers of each round to Weights & Biases; its settings are those of `wandb.init`.

  All metrics of its run are drawn over `round`, so a program may log others there without a step.

  Attributes:
    tracked: the run of Weights & Biases, once it is begun.
  """

  library = 'wandb'
  tracked: Any = None

  def _start(self):
    # What is active is another one's, and stays as it is.
    settings = {} if self._module.run is None else {'reinit': 'create_new'}
    self.tracked = self._apart(self._module.init, **settings | self._settings)
    self.tracked.define_metric(_ROUND)
    self.tracked.define_metric('*', step_metric=_ROUND)

  def _send(self, numbers, round_index):
    self.tracked.log({**numbers, _ROUND: round_index})

  def _finish(self):
    self.tracked.finish()


class MLflow(_Tracker):
  """Sends the numbers of each round to MLflow; its settings are those of `mlflow.start_run`.

  Inside a run of the caller's its own is a child of that.

  Attributes:
    run_id: MLflow's name of its run, for `mlflow.log_params(…, run_id=…)`; None before it begins.
  """

  library = 'mlflow'
  run_id: str | None = None

  def _start(self):
    # MLflow knows by thread which run is active.
    active = self._module.active_run()
    parent = {} if active is None else {'parent_run_id': active.info.run_id}
    self.run_id = self._apart(self._module.start_run, **parent | self._settings).info.run_id
    self._refused: set[str] = set()

  def _send(self, numbers, round_index):
    numbers = {name: value for name, value in numbers.items() if name not in self._refused}
    refused = self._apart(self._log, numbers, round_index)
    if refused:
      self._refused |= refused.keys()
      name, error = next(iter(refused.items()))
      callers.warn(
        messages.one_line(f'MLflow refuses {len(refused)} metrics, such as {name!r}: {error}')
      )

  def _finish(self):
    self._apart(self._module.end_run)

  def _log(self, numbers: dict[str, float], round_index: int) -> dict[str, Exception]:
    """Sends all numbers at once, or one by one if one is refused; returns those that are."""
    options = dict(step=round_index, run_id=self.run_id)
    refused: dict[str, Exception] = {}
    try:
      self._module.log_metrics(numbers, **options)
    except self._module.MlflowException as error:
      if error.error_code != _REFUSED:
        raise
      for name, value in numbers.items():
        try:
          self._module.log_metrics({name: value}, **options)
        except self._module.MlflowException as error:
          if error.error_code != _REFUSED:
            raise
          refused[name] = error
    return refused


def _library(package: str, name: str) -> Any:
  """Returns the package that an observer needs; ImportError in one line with the extra."""
  try:
    return importlib.import_module(package)
  except ImportError as error:
    raise ImportError(
      messages.one_line(
        f"dpftrl.observers.{name} needs {package}: pip install '.[{package}]' in a clone of"
        f' fl_dpftrl, or pip install {package} ({error})'
      )
    ) from None


def _numbers(measurements: observer.Measurements) -> dict[str, float]:
  return {n: v for n, v in measurements.items() if isinstance(v, (int, float))}


class Apart:
  """Makes calls of a library in a thread of their own, one after another; no program waits long."""

  def __init__(self, library: str):
    self._library = library
    self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
    self._last: futures.Future | None = None
    threading.Thread(target=_make, args=(self._calls,), name=library, daemon=True).start()

  def __call__(self, function: Callable[..., _Result], *args: Any, **kwargs: Any) -> _Result:
    """Returns what the function returns; TimeoutError if it takes longer, or waits for others."""
    is_late = self._last is not None and not self._last.done()
    self._last = future = futures.Future[_Result]()
    self._calls.put((future, function, args, kwargs))
    try:
      return future.result(0.0 if is_late else SECONDS)
    except TimeoutError:
      if future.done():
        raise
      raise TimeoutError(
        f'{self._library} does not answer within {SECONDS:g} s; is there a network?'
      ) from None


def _make(calls: queue.SimpleQueue[_Call]) -> None:
  while True:
    future, function, args, kwargs = calls.get()
    try:
      future.set_result(function(*args, **kwargs))
    except BaseException as error:
      future.set_exception(error)
    del future, function, args, kwargs
