"""Worst-case ‖C u‖ over the rounds and updates that a schema allows.

A device's updates are vectors of norm at most 1, one for each round it takes part in, so sens²
is the largest Σ X[i, j] ⟨uᵢ, uⱼ⟩ over an allowed pattern of rounds, where X = CᵀC. Where X ≥ 0
on the pattern that is Σ X[i, j]; in general it is at most Σ |X[i, j]|, and vectors of zeros and
ones, or of signs, are not enough to reach it.
"""

from fl_dpftrl.mechanisms.sensitivities.gram_search import gram_sensitivity
from fl_dpftrl.mechanisms.sensitivities.kinds import (
  EXACT,
  LOWER_BOUND,
  UPPER_BOUND,
  Sensitivity,
  sensitivity,
)
