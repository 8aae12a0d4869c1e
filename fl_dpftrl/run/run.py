"""The run of any loop, which computes and adds noise itself."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import id_columns, unit_tables
from fl_dpftrl.prove.auditing import canary_records
from fl_dpftrl.prove.reports import settings
from fl_dpftrl.run import admission, live_round, live_run, release, shared_budgets
from fl_dpftrl.run.observers import observer
from fl_dpftrl.support import checks
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

  @live_run.opening
  def __init__(
    self,
    folder: str | os.PathLike[str],
    claim: run_claim.Claim,
    *,
    delta: float | None = None,
    max_epsilon: float | None = None,
    units: unit_tables.Given | None = None,
    population: shared_budgets.Population | None = None,
    observers: Sequence[observer.Observer] = (),
    setting: settings.Setting = settings.Setting(),
    num_coordinates: int | None = None,
  ):
    """Opens a folder; see `LiveRun`.

    Args:
      observers: see rounds; `dpftrl.observers` has some. Their errors are warnings.
      num_coordinates: coordinates of an update, if the claim has canaries: the loop adds
        `canary_updates` of each round to its sum, and tells `released` the sum with noise. None for
        those that the claim has, as that of a TFF process whose engine makes the noise.
    """
    watching = observer.Observers(observers, paths.local(folder), warns=True)
    super().__init__(
      folder,
      claim,
      watching,
      delta=delta,
      max_epsilon=max_epsilon,
      units=units,
      population=population,
      setting=setting,
      is_private=True,
      num_coordinates=_num_coordinates(claim, num_coordinates),
    )
    watching.begin(self)

  def __repr__(self) -> str:
    text = f'Run(round {self.next_round} of {self.max_rounds}, {self.folder})'
    return messages.one_line(text, 120)

  def round(
    self,
    candidates: id_columns.Ids,
    *,
    at_most: int | None = None,
    at_least: int = 0,
    row: int | None = None,
    timestamp: int | None = None,
  ) -> 'AdmittedRound':
    """Returns the next round, for a `with` block.

    Entering the block turns away the candidates that may not take part, and records the cohort
    durably. Train only its devices, within the block, and call `released` once the result may be
    used. A block that ends without it has released nothing.

    Args:
      candidates: text or whole numbers, of one type through the run.
      at_most: size of the cohort, such as the report goal; None for all who may take part.
      at_least: fewest devices, such as those without which the mean is only noise.
      row: next row of the loop's own noise, such as `state.aggregator.noise.row`, to be compared
        with the round; None where the loop takes row `round_.row`.
      timestamp: UTC second of the round; None for now.

    Raises:
      ValueError: when the block is entered, for malformed ids, a row of another round, fewer
        devices than at_least, a closed run and a round that is open; nothing has changed then.
      BudgetSpentError: when the block is entered, if the round would pass the budget, or the rounds
        that there are.
      RepeatedRowError: when the block is entered, for a row that was given out before.
      OSError: when the block is entered, if the cohort cannot be recorded; nothing has changed.
    """

    def admit() -> admission.Admission:
      self._turns.check()
      with self._turns.observers.failing(self, self.next_round):
        return self.guard.admit(
          candidates, row=row, at_most=at_most, at_least=at_least, timestamp=timestamp
        )

    return AdmittedRound(self._records, self, self._turns, admit, candidates)


class AdmittedRound(live_round.LiveRound):
  """A round of a `Run` within its block.

  Attributes:
    row: number of the round, and of its row of noise.
    device_ids: the cohort, as text or int64.
    turned_away: candidates that may not take part, each with its reason.
  """

  def __init__(self, records: canary_records.CanaryRecords | None, *arguments: Any):
    """Makes a round with the records of canaries; the arguments are those of `LiveRound`."""
    super().__init__(*arguments)
    self._records, self._canaries = records, np.zeros(0, np.int64)
    self.turned_away: tuple[admission.TurnedAway, ...] = ()

  @property
  def row(self) -> int:
    return self.index

  def canary_updates(self) -> Iterator[np.ndarray]:
    """Yields updates of canaries, for the loop to clip and add as those of devices.

    Each is a float32 array of num_coordinates. There are none without canaries in the claim.
    """
    if self._records is not None:
      yield from self._records.updates(self._canaries, self._run.claim.clip_norm)

  @durable.letting_go
  def released(self, measurements: Mapping[str, Any] = {}, *, noised_sum: Any = None) -> None:
    """Says that the result of the round may be used; observers get the measurements.

    Args:
      measurements: what has noise, or is public.
      noised_sum: sum of all updates with its row of noise, shape [num_coordinates], not divided by
        anything, for the audit of canaries, if there are any.

    Raises:
      ValueError: outside the block of the round, and a second time; for canaries without a
        noised_sum, or it without canaries; and for another shape, by which the round has failed.
    """
    if (noised_sum is None) != (self._records is None):
      raise ValueError("noised_sum, of updates and noise, and the claim's canaries need each other")
    with self._ended():
      if self._records is not None:
        self._records.put(self.index, noised_sum, self._run.claim.clip_norm)
      self._measurements = measurements

  def _prepare(self, admitted: admission.Admission) -> None:
    self.turned_away, self._canaries = admitted.turned_away, admitted.canaries


def _num_coordinates(claim: run_claim.Claim, num_coordinates: int | None) -> int | None:
  """Returns the coordinates of an update, which canaries need; None without canaries."""
  if claim.canaries is None and num_coordinates is None:
    return None
  claimed = claim.arithmetic.num_coordinates
  if claimed is not None and claim.clip_norm is not None:
    claimed -= release.num_extra(claim.clip_norm, claim.private_metrics)
  size = claimed if num_coordinates is None else num_coordinates
  if claim.canaries is None or size is None:
    raise ValueError("num_coordinates, of an update, and the claim's canaries need each other")
  if not isinstance(claim.clip_norm, float):
    raise ValueError('clip_norm of a claim with canaries must be a number in a Run')
  if claimed not in (None, size):
    raise ValueError(f'num_coordinates must be {claimed}, as the claim has it, got {size}')
  return checks.whole(num_coordinates=size)
