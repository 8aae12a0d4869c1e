"""One round of a `PrivateAggregator`."""

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fl_dpftrl.run import admission, live_round, noised_sums, sums
from fl_dpftrl.support import callers
from fl_dpftrl.support.files import durable

_TORN = 'was torn, as an add was interrupted or its update changed meanwhile'


class Round(live_round.LiveRound):
  """One round of a `PrivateAggregator`: add each device's update, and read the mean after it.

  Threads may add at the same time. Means do not depend on the order of the updates.

  Attributes:
    index, device_ids, is_open: see `LiveRound`.
    at_least: fewest updates for a mean.
    clip_norm: bound on the updates of the round, once it has begun.
    num_updates, clipped_count, zeroed_count, rejected_count: updates so far, and what became of
      them. They are exact, without noise, and outside the guarantee: publish none of them.
  """

  def __init__(self, noised: noised_sums.NoisedSums, at_least: int, *arguments: Any):
    """Makes a round with the sums that it enters; the arguments are those of `LiveRound`."""
    super().__init__(*arguments)
    self._noised, self.at_least = noised, at_least
    self.num_updates = self.clipped_count = self.zeroed_count = self.rejected_count = 0
    self.clip_norm: float | None = None
    self._like: Any = None
    self._mean: Any = None
    self._metrics: dict[str, float] = {}
    self._has_added: dict[str | int, bool] | None = None  # By device, if updates say theirs.
    self._is_torn = False  # An update may be in the sum, or a part of it, that nobody counts.

  def __exit__(self, kind: type | None, error: BaseException | None, *unused: Any) -> None:
    try:
      if kind is None and self.is_open:  # It failed before if the aggregator was closed.
        self.end()
    finally:  # An interrupt may have kept `end` from it.
      with contextlib.suppress(ValueError):  # Another thread ends it meanwhile.
        super().__exit__(kind, error)

  def _prepare(self, admitted: admission.Admission) -> None:
    self.clip_norm = self._noised.begin(admitted.canaries)

  def _discard(self) -> None:
    self._like = None
    self._noised.rows.skip_to(self.index + 1)

  @durable.letting_go
  def end(self) -> None:
    """Makes the mean, with the row of noise that was used up when the round began.

    Raises:
      ValueError: for a round that is not open; for one with fewer updates than at_least, and one in
        which an `add` was interrupted, which have failed then.
      OSError: if what is released beside the mean cannot be written: it failed.
    """
    with self._ended():  # No update is halfway in the sum.
      like, self._like = self._like, None
      why = f'has {self.num_updates} updates and needs {self.at_least}'
      if self._is_torn or self.num_updates < self.at_least:
        self._discard()
        why = _TORN if self._is_torn else why
        raise ValueError(
          f'round {self.index} {why}: nothing of it is released, and its row of noise is used up'
        )
      mean, metrics = self._noised.release(self.index, like)
      measurements = {'clip_norm': self.clip_norm, **metrics}
      self._mean, self._metrics, self._measurements = mean, metrics, measurements
    claim = self._noised.coordinates.claim
    if not claim.is_drawn and self.num_updates > (goal := claim.report_goal or 1):
      callers.warn(
        f'{self.num_updates} updates for report_goal={goal}, which divides their sum: the mean is'
        f' {self.num_updates / goal:.3g} times theirs; stop adding at the goal'
      )

  def add(
    self,
    update: Any,
    *,
    metrics: Mapping[str, Any] | None = None,
    device_id: str | int | None = None,
  ) -> str:
    """Adds the update of one device.

    Args:
      update: nested structure of arrays, as the template.
      metrics: name → number, for each metric of the run; what is out of bounds is taken for the
        nearest bound, and NaN for 0. None for zeros.
      device_id: the device, if it is to be checked that it is of this round and adds once; for each
        update of a round or for none. Without it, only the number of updates is checked: that none
        is twice a device's is then yours.

    Returns:
      What became of it: 'kept', 'clipped', 'zeroed' or 'rejected'.

    Raises:
      ValueError: for another structure, shape or type, for more updates than devices, for a device
        of another round or twice, and outside the block; nothing has changed then. After any other
        error or interrupt, the round is torn: it takes no update any more, and fails at its end.
    """
    return self._add(self._flat(update), update, metrics, device_id)[0]

  def add_batch(
    self, updates: Any, *, metrics: Mapping[str, Any] | None = None, count: int | None = None
  ) -> list[str]:
    """Adds the updates of several devices at once, such as the gradients of single examples.

    The mean is bit for bit that of `add` for one after another.

    Args:
      updates: nested structure of arrays, as the template, each with a leading axis of updates.
      metrics: name → array with a number for each update, see `add`.
      count: only the first updates, of a batch that was filled up to a size; None for all.

    Returns:
      What became of each, as `add` returns it.

    Raises:
      ValueError: for another structure, shape or type, for more updates than devices, and outside
        the block; nothing has changed then.
    """
    return self._add(self._flat(updates, is_batch=True), updates, metrics, count=count)

  def _flat(self, updates: Any, *, is_batch: bool = False) -> list[np.ndarray]:
    if not self.num_updates:
      with self._lock:  # Nobody closes the aggregator meanwhile.
        if self.is_open:
          self._noised.prepare()  # While JAX makes the updates.
    return self._noised.template.flat(updates, is_batch=is_batch)

  def _add(
    self,
    arrays: list[np.ndarray],
    update: Any,
    metrics: Mapping[str, Any] | None,
    device_id: str | int | None = None,
    count: int | None = None,
  ) -> list[str]:
    values = self._noised.coordinates.metrics(metrics, len(arrays[0]))
    values = None if values is None else values[:count]
    is_begun = False
    try:
      with self._lock:
        num_added = len(arrays[0][:count])
        self._check_room(num_added)
        self._check_device(device_id)
        is_begun = self._is_torn = True  # Until it is whole, whatever ends it.
        outcomes = self._noised.add([array[:count] for array in arrays], values)
        self.num_updates += num_added
        self.clipped_count += outcomes.count(sums.CLIPPED)
        self.zeroed_count += outcomes.count(sums.ZEROED)
        self.rejected_count += outcomes.count(sums.REJECTED)
        self._like = update if self._like is None else self._like
        self._is_torn = False
        return outcomes
    except BaseException:  # Also after it is whole: whoever sees that may add the update again.
      self._is_torn |= is_begun
      raise

  @property
  def mean(self) -> Any:
    """The mean with noise, of the structure and the kind of arrays of the first update.

    Raises:
      ValueError: before the end of the block, and if the round failed.
    """
    self._check_released()
    return self._mean

  @property
  def metrics(self) -> dict[str, float]:
    """Means of metrics, and counts of adaptive clipping, by name.

    All have noise, and lie within the guarantee. A mean is over the report goal.

    Raises:
      ValueError: before the end of the block, and if the round failed.
    """
    self._check_released()
    return self._metrics

  def _check_released(self) -> None:
    if self.is_open or not self._has_begun:
      raise ValueError('the mean is there after the block of its round, and so are metrics')
    if self._mean is None:
      raise ValueError(f'round {self.index} failed, and nothing of it is released')

  def _check_room(self, count: int) -> None:
    if not self.is_open:
      raise ValueError('an update can be added only within the block of its round')
    if self._is_torn:
      raise ValueError(f'round {self.index} {_TORN}, and fails; end its block')
    most = min(len(self.device_ids), self._noised.coordinates.room)
    if self.num_updates + count > most:
      more = 'one more' if count == 1 else f'{self.num_updates + count}'
      raise ValueError(f'round {self.index} has {most} devices, each with one update; got {more}')

  def _check_device(self, device_id: str | int | None) -> None:
    has_ids = self._has_added is not None
    if has_ids if device_id is None else self.num_updates and not has_ids:
      raise ValueError('device_id must be given for each update of a round, or for none')
    if device_id is None:
      return
    if hasattr(device_id, 'item'):  # A number of NumPy, PyTorch or JAX.
      device_id = device_id.item()
    if isinstance(device_id, bool) or not isinstance(device_id, (str, int)):  # True counts as 1.
      kind = type(device_id).__name__
      raise ValueError(f'device_id must be text or a whole number, got a {kind}')
    if self._has_added is None:
      self._has_added = dict.fromkeys(np.asarray(self.device_ids).tolist(), False)
    if self._has_added.get(device_id, True):
      known = device_id in self._has_added
      raise ValueError(
        'device_id is of a device that '
        + ('added an update before' if known else f'is not of round {self.index}')
      )
    self._has_added[device_id] = True
