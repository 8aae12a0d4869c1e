"""The three hooks of an observer, and several observers as one."""

import contextlib
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from fl_dpftrl.support import callers, metrics
from fl_dpftrl.support.text import messages

Measurements = Mapping[str, Any]
_WATCHED = '_watched_folder'  # attribute of an observer that has watched a run


class Observer:
  """Base class of what watches a run; each hook does nothing by default.

  A run is a `Run`, a `PrivateAggregator`, or a `TrainingRun` of `train`. Each has the members of
  `LiveRun`, such as `status()`, and `exact_metrics`: names of measurements that depend on clients
  without noise. An observer is of one run, which may be resumed with it. No hook gets ids or
  updates of clients, but the message of an error that `end` gets may name an id: keep its type
  only.

  An error in a hook loses no round. `train` ends with it: before a round, nothing of which is
  recorded then, or after one, whose result is stored; the same call goes on, and calls `released`
  of that round again. `Run` and `PrivateAggregator`, whose results may be in memory only, make a
  warning of it, go on, and call the observer again.

  Attributes:
    measures: true for an observer that adds measurements; it is called before the others.
  """

  measures: ClassVar[bool] = False

  def __repr__(self) -> str:
    return f'{type(self).__name__}({getattr(self, _WATCHED, None) or "no run yet"})'

  def begin(self, run: Any, round_index: int | None = None) -> None:
    """Called before a run, of which nothing may be written yet, and before each of its rounds.

    Args:
      run: see above.
      round_index: the round; None for the run.
    """

  def released(self, run: Any, round_index: int, measurements: Measurements) -> Measurements | None:
    """Called after each round whose result may be used.

    Args:
      run: see above.
      round_index: the round. `train` repeats the last one after a restart.
      measurements: name → number of the round. All of a `PrivateAggregator` have noise.

    Returns:
      Further measurements, from an observer that `measures`.
    """

  def end(
    self, run: Any, round_index: int | None = None, error: BaseException | None = None
  ) -> None:
    """Called after a round that released nothing, and after a run; of `train` once it is whole.

    Args:
      run: see above; `run.trained` is the result of `train`.
      round_index: a round that failed or, if it had no `begin`, was refused; None for the run.
      error: why, where an error ended the round.
    """


class Observers(Observer):
  """Several observers as one, in their order, but for those that measure, which come first."""

  def __init__(
    self, observers: Sequence[Observer], folder: str | os.PathLike[str], *, warns: bool = False
  ):
    """Checks the observers of the run in a folder; `warns` makes a warning of each error."""
    self._folder = pathlib.Path(folder).resolve()
    if not isinstance(observers, Sequence) or not all(isinstance(o, Observer) for o in observers):
      raise ValueError(f'observers must be a list of Observers, got {messages.quoted(observers)}')
    for observer in observers:
      if (watched := vars(observer).get(_WATCHED, self._folder)) != self._folder:
        raise ValueError(
          f'observers: this {type(observer).__name__} is of the run in'
          f' {messages.quoted(str(watched))}; make one for each run'
        )
    self._observers = sorted(observers, key=lambda observer: not observer.measures)
    self._warns = warns

  def begin(self, run, round_index=None):
    if round_index is None:
      for observer in self._observers:
        vars(observer)[_WATCHED] = self._folder
    self._call('begin', run, round_index)

  def released(self, run, round_index, measurements):
    """Returns the measurements with those that observers added."""
    complete = dict(measurements)
    self._call('released', run, round_index, complete)
    return complete

  def end(self, run, round_index=None, error=None):
    self._call('end', run, round_index, error)

  @contextlib.contextmanager
  def failing(self, run: Any, round_index: int) -> Iterator[None]:
    """Calls `end` of a round where the block raises an error."""
    try:
      yield
    except Exception as error:
      self.end(run, round_index, error)
      raise

  def _call(self, hook: str, run: Any, round_index: int | None, *values: Any) -> None:
    for observer in self._observers:
      try:
        added = getattr(observer, hook)(run, round_index, *values)
        if hook == 'released' and observer.measures:
          values[0].update({str(n): metrics.plain(value) for n, value in (added or {}).items()})
      except Exception as error:
        if not self._warns:
          raise
        place = 'the run' if round_index is None else f'round {round_index}'
        callers.warn(
          f'{type(observer).__name__}.{hook} of {place} raised {type(error).__name__}:'
          f' {messages.one_line(error)}; no round is lost by it'
        )
