"""Losses of the units of a population in all its runs, and who has budget for another row.

The loss of a unit is Σ_r Q_r / σ_r², with Q_r its loss in run r over all rows of noise of that run.
A unit of budget μ² may have another row while √loss + √Σ e_r² is at most μ, where e_r is what the
whole numbers of each run that it is in add.

Source: docs/population-budget.md.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fl_dpftrl.participation.counts import meter, seen

SPENT, LIFE, CLASS, WITHDRAWN = 'population_budget', 'population_life', 'class', 'withdrawn'
"""Why a unit is turned away: for this round, for ever, without a class, and after it left."""

_NO_CLASS = -1
_ROUNDING = 1.0 + 2.0**-40  # More than what sums over runs, roots and sums of two round.


class PopulationLosses:
  """Losses of units, which are numbered in the order in which they came.

  Args:
    budgets: μ of each class by its name, each above 0.
    default: class of units that are given none; None to refuse them.
  """

  def __init__(self, budgets: Mapping[str, float], default: str | None):
    self._classes = {name: place for place, name in enumerate(budgets)}
    self._budgets = np.array(list(budgets.values()))
    self._default = _NO_CLASS if default is None else self._classes[default]
    self._numbers = seen.Numbers()
    self._class_of = np.zeros(0, np.int16)
    self._has_left = np.zeros(0, bool)
    self._runs: list[tuple[meter.Meters, float]] = []  # And e, what whole numbers add to μ.

  def open(self, gram: Any, noise_multiplier: float, rounding: float) -> None:
    """Adds the next run; rounding: e, at least 0."""
    meters = meter.Meters(gram, weight=noise_multiplier**-2.0, numbered=True)
    self._runs.append((meters, rounding))

  def classify(self, units: seen.Ids, name: str) -> None:
    """Gives units a class from now on."""
    numbers = self._numbered(units)  # The arrays may be new ones then.
    self._class_of[numbers] = self._classes[name]

  def withdraw(self, units: seen.Ids) -> int:
    """Turns units away from now on; what they were charged stays. Returns how many were not yet."""
    numbers = self._numbered(units)
    num_away = int(self._has_left[numbers].sum())
    self._has_left[numbers] = True
    return numbers.size - num_away

  def charge(self, place: int, units: seen.Ids, rows: np.ndarray | None = None) -> None:
    """Charges units, each given once, for so many rows in the next round of a run; one if None."""
    self._numbered(units)
    self._runs[place][0].add(self._numbers.of(units), rows)

  def reasons(self, place: int, units: seen.Ids, rows: int = 1) -> np.ndarray:
    """Returns why each unit may not have so many rows in the next round of a run; '' if it may."""
    numbers = self._numbers.of(units)
    meters, rounding = self._runs[place]
    losses, squares, is_new = self._spent(numbers, place)
    most = self._room(numbers, squares + is_new * rounding**2)
    over = losses + meters.charges(numbers, rows) > most
    ended = losses + meters.least_charge > most
    reasons = np.where(ended, LIFE, np.where(over, SPENT, ''))
    reasons = np.where(self._of(self._class_of, numbers, self._default) < 0, CLASS, reasons)
    return np.where(self._of(self._has_left, numbers, False), WITHDRAWN, reasons)

  def end(self, place: int, gram: Any) -> None:
    """Charges a run that is over for ever only for the rows of noise that it had.

    Args:
      gram: X of these rows.
    """
    self._runs[place][0].limit(gram)

  def shares(self) -> np.ndarray:
    """Returns the share of μ that each unit with a row was charged, whatever its class is now."""
    numbers = np.arange(self._numbers.size)
    losses, squares, _ = self._spent(numbers, 0)
    shift = np.sqrt(losses) * _ROUNDING + np.sqrt(squares) * _ROUNDING
    which = losses > 0.0
    classes = self._of(self._class_of, numbers, self._default)
    return shift[which] / self._budgets[classes[which]]

  def _spent(self, numbers: np.ndarray, place: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns loss and Σ e² of numbered units, and which are new in a run; −1 is of a new unit."""
    losses, squares = np.zeros(numbers.size), np.zeros(numbers.size)
    is_new = np.ones(numbers.size, bool)
    for i, (meters, rounding) in enumerate(self._runs):
      losses += meters.losses(numbers)
      was_in = meters.of(numbers)[1] > 0
      squares += was_in * rounding**2
      is_new &= ~was_in | (i != place)
    return losses, squares, is_new

  def _room(self, numbers: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Returns the largest loss that each unit may have beside what whole numbers add."""
    classes = self._of(self._class_of, numbers, self._default)
    mu = np.where(classes < 0, 0.0, self._budgets[classes]) / _ROUNDING
    return np.maximum(mu - np.sqrt(squares), 0.0) ** 2 / _ROUNDING

  def _numbered(self, units: seen.Ids) -> np.ndarray:
    numbers = self._numbers.add(units)
    size = self._class_of.size
    more = max(int(numbers.max(initial=-1)) + 1 - size, 0)
    if more:
      more = max(more, size)
      self._class_of = np.append(self._class_of, np.full(more, self._default, np.int16))
      self._has_left = np.append(self._has_left, np.zeros(more, bool))
    return numbers

  @staticmethod
  def _of(values: np.ndarray, numbers: np.ndarray, other: Any) -> np.ndarray:
    """Returns the value of each number; another one for −1."""
    if not values.size:
      return np.full(numbers.size, other)
    return np.where(numbers < 0, other, values[np.maximum(numbers, 0)])
