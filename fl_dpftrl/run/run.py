"""The run of any loop, which computes and adds noise itself."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import id_columns, unit_tables
from fl_dpftrl.prove.reports import settings
from fl_dpftrl.run import admission, live_run, populations
from fl_dpftrl.run.observers import observer
from fl_dpftrl.support.files import durable, paths
from fl_dpftrl.support.text import messages


class Run(live_run.LiveRun):
  """A run of a loop of your own: admits devices, records cohorts, gives each noise row out once.

      with dpftrl.Run('folder', claim, delta=1e-6, max_epsilon=8.0) as run:
        while run.next_round < run.max_rounds:
          with run.round(candidates, at_most=650) as round_:
            state = train(state, round_.device_ids)     # adds row round_.row of the noise
            round_.released({'loss': loss})

  The budget is spent by the declared participation, and never by what is observed of single
  devices: a refusal would tell who took part. So `max_rounds` is known before the first round, and
  its ε holds whatever ends the run earlier.

  The same call continues from its folder. A round that was begun has used its row of noise up, even
  if it was never computed: after a crash a loop skips the rows before `next_round`. Threads may
  share a run; a process that was forked from this one may not. Only the owner may read the folder.

  `CorrelatedNoiseFactory.claim` gives the claim of a TFF process. All other members are those of
  `LiveRun`.
  """

  def __init__(
    self,
    folder: str | os.PathLike[str],
    claim: run_claim.Claim,
    *,
    delta: float | None = None,
    max_epsilon: float | None = None,
    units: unit_tables.Given | None = None,
    population: populations.Population | None = None,
    observers: Sequence[observer.Observer] = (),
    setting: settings.Setting = settings.Setting(),
  ):
    """Opens a folder; see `LiveRun`.

    Args:
      observers: see rounds; `dpftrl.observers` has some. Their errors are warnings.
    """
    self._watching = observer.Observers(observers, paths.local(folder), warns=True)
    options: Any = {
      'delta': delta,
      'max_epsilon': max_epsilon,
      'units': units,
      'population': population,
    }
    super().__init__(folder, claim, setting=setting, is_private=True, **options)
    self._lock = durable.ThreadLock(self.folder)
    self._open: int | None = None  # The round that is begun, and neither released nor failed.
    self._is_closed = False
    self._watching.begin(self)

  def __repr__(self) -> str:
    text = f'Run(round {self.next_round} of {self.max_rounds}, {self.folder})'
    return messages.one_line(text, 120)

  @contextlib.contextmanager
  def round(
    self,
    candidates: id_columns.Ids,
    *,
    at_most: int | None = None,
    row: int | None = None,
    timestamp: int | None = None,
  ) -> Iterator['AdmittedRound']:
    """Returns the next round, for a `with` block.

    Entering the block turns away the candidates that may not take part, and records the cohort
    durably. Train only its devices, within the block, and call `released` once the result may be
    used. A block that ends without it has released nothing.

    Args:
      candidates: text or whole numbers, of one type through the run.
      at_most: size of the cohort, such as the report goal; None for all who may take part.
      row: next row of the loop's own noise, such as `state.aggregator.noise.row`, to be compared
        with the round; None where the loop takes row `round_.row`.
      timestamp: UTC second of the round; None for now.

    Raises:
      ValueError: when the block is entered, for malformed ids, a row of another round, a closed run
        and a round that is open.
      BudgetSpentError: when the block is entered, if the round would pass the budget, or the rounds
        that there are.
      RepeatedRowError: when the block is entered, for a row that was given out before.
      OSError: when the block is entered, if the cohort cannot be recorded; nothing has changed.
    """
    is_ready, raised = False, None
    try:
      with self._lock:
        if self._is_closed:
          raise ValueError('the run is closed; open it again to go on')
        if self._open is not None:
          raise ValueError(f'round {self._open} is still open')
        is_ready = True
        with self._watching.failing(self, self.next_round):
          admitted = self.guard.admit(candidates, at_most=at_most, row=row, timestamp=timestamp)
        self._open = t = admitted.round_index
      self._watching.begin(self, t)
      yield AdmittedRound(admitted, functools.partial(self._release, t))
    except BaseException as error:
      raised = error
      raise
    finally:
      if is_ready:
        self._fail(self._open, raised)

  def _release(self, t: int, measurements: Mapping[str, Any]) -> None:
    with self._lock:
      if self._open != t:
        raise ValueError(f'round {t} is not open: it was released before, or has failed')
      self._open = None
    self._watching.released(self, t, measurements)

  def _fail(self, t: int | None, error: BaseException | None = None) -> None:
    """Ends a round that is open and released nothing; does nothing for None and for another."""
    with self._lock:
      if t is None or self._open != t:
        return
      self._open = None
    self._watching.end(self, t, error)

  def close(self) -> None:
    """Turns the log into one Parquet file, and lets another process use the folder.

    A round that is open has failed then.
    """
    if self._open is not None:
      self._fail(self._open)
    with self._lock:
      if self._is_closed:
        return
      super().close()
      self._is_closed = True
    self._watching.end(self)


class AdmittedRound:
  """A round of a `Run` within its block.

  Attributes:
    row: number of the round, and of its row of noise.
    device_ids: the cohort, as text or int64.
    turned_away: candidates that may not take part, each with its reason.
  """

  def __init__(self, admitted: admission.Admission, release: Callable[[Mapping[str, Any]], None]):
    self.row, self.device_ids = admitted.round_index, admitted.device_ids
    self.turned_away = admitted.turned_away
    self._release = release

  def released(self, measurements: Mapping[str, Any] = {}) -> None:
    """Says that the result of the round may be used; observers get the measurements.

    Raises:
      ValueError: outside the block of the round, and a second time.
    """
    self._release(measurements)
