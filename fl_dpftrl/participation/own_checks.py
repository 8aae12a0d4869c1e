"""The check of participations from outside the package: no pattern that they allow costs more."""

import itertools
import math

import numpy as np

from fl_dpftrl.mechanisms import base
from fl_dpftrl.participation.participation import Participation

_PACKAGE = __package__.partition('.')[0] + '.'
_SMALL, _MOST = 7, 512  # rounds of which every pattern is tried; of a device that comes to all
_ROUNDING = 1e-9


def check(participation: Participation, strategy: base.Strategy) -> None:
  """Raises ValueError where a pattern reaches more than the stated sensitivity.

  Tried are every pattern of the first 7 rounds, for a run of so many rounds too, and the pattern of
  a device that comes to each of the first 512 rounds and takes part whenever the gate admits it.
  Participations of this package are not checked again.
  """
  if type(participation).__module__.startswith(_PACKAGE):
    return
  small = min(_SMALL, participation.num_rows)
  masks = itertools.product((False, True), repeat=small)
  patterns = [np.flatnonzero(mask) for mask in masks if any(mask)]
  _compare(participation.within(small), strategy, patterns)
  _compare(participation, strategy, [*patterns, _admitted(participation, strategy)])


def _admitted(participation: Participation, strategy: base.Strategy) -> np.ndarray:
  """Returns the rounds of a device that comes to all."""
  gate, device_ids, rounds = participation.gate(strategy), np.zeros(1, np.int64), list[int]()
  num_rounds = min(_MOST, participation.num_rows)
  if gate is None:
    return np.arange(num_rounds)
  for t in range(num_rounds):
    is_admitted = not gate.reasons(device_ids)[0]
    gate.record(device_ids[: int(is_admitted)])
    rounds += [t] * is_admitted
  return np.array(rounds, np.int64)


def _compare(
  participation: Participation, strategy: base.Strategy, patterns: list[np.ndarray]
) -> None:
  """Raises ValueError for a sensitivity below the norm that equal updates of a pattern reach."""
  sensitivity, reached = participation.worst_case(strategy).value, 0.0
  entries = strategy.gram_entries(participation.num_rounds or _MOST)
  for rounds in patterns:
    if not participation.wrong(strategy, rounds, np.zeros(rounds.size, np.int64)).any():
      reached = max(reached, math.sqrt(max(0.0, entries(rounds[:, None], rounds).sum())))
  if not sensitivity >= reached * (1.0 - _ROUNDING):
    raise ValueError(
      f'participation {participation.kind!r} has a sensitivity of {sensitivity:.6g} in'
      f' {participation.num_rounds} rounds, and a device that it allows reaches {reached:.6g}:'
      ' correct its sensitivity, or what it allows'
    )
