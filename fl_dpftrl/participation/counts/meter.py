"""Meters: the loss Σ X[s, t] of each device, followed round by round."""

from typing import Any

import numpy as np

from fl_dpftrl.participation.counts import seen

ROUNDING = 1.0 + 2.0**-40
"""Factor of each charge, which covers the rounding of X, and of a sum of 2¹¹ terms, in float64."""

_EMPTY = -1
_COVERED, _A_TERM = 1 << 11, 2.0**-52  # More than what adding a term to a sum rounds.
_LEAST_LAGS = 1 << 12
_AT_ONCE_DEVICES = 1 << 16


class Meters(seen.Seen):
  """Participation so far, with the loss Q of each device: 8 bytes, and 4 a round it was in.

  A device that comes to round t is charged X[t, t] + 2 Σ X[s, t] over the rounds s it was in. A
  client that meters itself may keep a float a buffer of a BLT in place of its rounds.

  Args:
    gram: X of the strategy, as `Strategy.endless_gram` gives it.
    weight: factor of each charge, such as (first noise multiplier / that of the run)².
    numbered: see `Seen`.

  Source: docs/endless.md.
  """

  def __init__(self, gram: Any, *, weight: float = 1.0, numbered: bool = False):
    super().__init__(numbered=numbered)
    self._gram, self._weight, self._lags = gram, weight * ROUNDING, 0
    self._losses = np.zeros(self._times.size)
    self._rounds = np.full((self._times.size, 1), _EMPTY, np.int32)

  @property
  def least_charge(self) -> float:
    """At most what any further round adds to Q of a device."""
    return self._weight * self._gram.least

  def losses(self, device_ids: seen.Ids) -> np.ndarray:
    """Returns Q of each device."""
    numbers, is_known = self._known(device_ids)
    return np.where(is_known, self._losses[numbers * is_known], 0.0)

  def charges(self, device_ids: seen.Ids, rows: int = 1) -> np.ndarray:
    """Returns what so many rows of the next round would add to Q of each device."""
    numbers, is_known = self._known(device_ids)
    rounds = np.where(is_known[:, None], self._rounds[numbers * is_known], _EMPTY)
    t = np.array(self.num_rounds)
    within = rows * (rows - 1) * self._weight * self._gram.entries(t, t).item() if rows > 1 else 0.0
    return rows * self._charges(rounds, t) + within

  def returns(self, device_ids: seen.Ids, square: float, last: int) -> np.ndarray:
    """Returns the first round after the last one in which each device is within B².

    It needs an X that falls with the lag: a device that may come may come later too.

    Args:
      square: B².
      last: last round; devices that may not come by then have last + 1.
    """
    from fl_dpftrl.support.kernels import device_loops as loops  # Slow to load.

    numbers, _ = self._known(device_ids)
    self._tabulate(last + 1)
    room = (square - self._losses[numbers]) / ROUNDING
    return loops.returns(
      self._rounds[numbers], room, self._gram.table, self._weight, self.num_rounds, last
    )

  def share_within(self, square: float) -> float | None:
    """Returns the share of the devices so far that B² may leave a round; None without any."""
    losses = self._losses[self._times > 0]
    return float((losses + self.least_charge <= square).mean()) if losses.size else None

  def limit(self, gram: Any) -> None:
    """Lowers each loss to that of its rounds by another X, such as that of the rows that were."""
    gram, self._gram = self._gram, gram
    lags, self._lags = self._lags, 0
    losses = np.zeros(self._losses.size)
    for place in range(self._rounds.shape[1]):
      which = np.flatnonzero(self._rounds[:, place] != _EMPTY)
      for part in np.array_split(which, 1 + which.size // _AT_ONCE_DEVICES):
        t = self._rounds[part, place, None].astype(np.int64)
        charges = self._charges(self._rounds[part, :place], t)
        losses[part] = np.nextafter(losses[part] + charges, np.inf)
    self._losses = np.minimum(self._losses, losses)
    self._gram, self._lags = gram, lags

  def forget(self, numbers: np.ndarray) -> None:
    """Starts the meters of numbered devices anew, as those of other devices."""
    which = numbers[numbers < self._losses.size]
    self._losses[which], self._rounds[which], self._times[which] = 0.0, _EMPTY, 0

  def _charges(self, rounds: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Returns the charges of devices with these rounds, [devices, any], in round t or rounds t."""
    if self.num_rounds >= self._lags:
      self._tabulate(max(_LEAST_LAGS, 2 * self.num_rounds))
    crossed = self._gram.entries(np.where(rounds == _EMPTY, t, rounds), t)
    crossed = np.where(rounds == _EMPTY, 0.0, crossed).sum(axis=1)
    weight = self._weight * (1.0 + max(0, rounds.shape[1] - _COVERED) * _A_TERM)
    return weight * (self._gram.entries(t, t).reshape(-1) + 2.0 * crossed)

  def _tabulate(self, lags: int) -> None:
    """Computes X of so many lags at least, once."""
    self._lags = max(self._lags, lags)
    self._gram = self._gram.tabulated(self._lags)

  def _grow(self, size: int) -> None:
    super()._grow(size)
    self._losses = seen.grown(self._losses, self._times.size)
    more = self._times.size - len(self._rounds)
    if more:
      self._rounds = np.pad(self._rounds, ((0, more), (0, 0)), constant_values=_EMPTY)

  def add(self, device_ids: seen.Ids, rows: np.ndarray | None = None) -> None:
    """Adds the next round's devices, each given once, with so many rows; with one if None."""
    num_rows = np.ones(len(device_ids), int) if rows is None else rows
    # A row meets those of its own round too.
    for further in range(1, int(num_rows.max(initial=1))):
      self._charge(self._numbered(np.asarray(device_ids)[num_rows > further]))
    super().add(device_ids)

  def _add(self, numbers: np.ndarray) -> None:
    self._charge(numbers)
    super()._add(numbers)

  def _charge(self, numbers: np.ndarray) -> None:
    if not numbers.size:
      return
    self._grow(int(numbers.max()) + 1)
    charges = self._charges(self._rounds[numbers], np.array(self.num_rounds))
    # Sums of any number are not too small.
    self._losses[numbers] = np.nextafter(self._losses[numbers] + charges, np.inf)
    if (self._rounds[numbers, -1] != _EMPTY).any():
      more = self._rounds.shape[1]
      self._rounds = np.pad(self._rounds, ((0, 0), (0, more)), constant_values=_EMPTY)
    places = (self._rounds[numbers] != _EMPTY).sum(axis=1)
    self._rounds[numbers, places] = self.num_rounds
