"""Privacy budget of a run, spent by the declared schema."""

import functools

import numpy as np

from fl_dpftrl import participation
from fl_dpftrl.accounting import adjacency as adjacency_lib
from fl_dpftrl.accounting import gaussian
from fl_dpftrl.families import base


class Budget:
  """The number of rounds whose ε stays within a budget.

  A run of n rounds is the beginning of a longer one, so that the ε of the longer
  one covers it. Bisection finds the most rounds whose ε is within the budget.

  Args:
    strategy: C.
    schema: the declared schema, of all planned rounds.
    noise_multiplier: std(Z) / clip_norm; positive.
    delta: δ.
    max_epsilon: the budget; None for no limit.
    adjacency: 'zero_out' or 'replace_one'.
    group_size: devices that are protected together.

  Raises:
    ValueError: if an argument is out of range, if the noise of a shorter run is
      not the beginning of that of a longer one, and if a single round would
      pass the budget.
  """

  def __init__(
    self,
    strategy: base.Strategy,
    schema: participation.MinSep,
    *,
    noise_multiplier: float,
    delta: float,
    max_epsilon: float | None,
    adjacency: str = adjacency_lib.ZERO_OUT,
    group_size: int = 1,
  ):
    base.check_num_rounds(strategy, schema.num_rounds)
    gaussian.check_positive('noise_multiplier', noise_multiplier)
    gaussian.check_delta(delta)
    _check_prefixes(strategy, schema.num_rounds)
    if max_epsilon is not None:
      gaussian.check_positive('max_epsilon', max_epsilon)
    self.max_epsilon, self._schema = max_epsilon, schema
    self._account = functools.partial(
      gaussian.account,
      strategy,
      noise_multiplier=noise_multiplier,
      delta=delta,
      adjacency=adjacency,
      group_size=group_size,
    )
    self.epsilon = functools.lru_cache(None)(self._epsilon)
    self.max_rounds = self._max_rounds()
    if not self.max_rounds:
      raise ValueError(
        f'max_epsilon={max_epsilon:g} is too little for one round, whose ε is'
        f' {self.epsilon(1):.4g}; give more noise or a larger budget'
      )

  def _epsilon(self, num_rounds: int) -> float:
    """Returns ε of the first num_rounds rounds, by the declared schema."""
    schema = participation.MinSep(
      num_rounds=num_rounds,
      min_sep=min(self._schema.min_sep, num_rounds),
      max_participations=min(self._schema.participations, num_rounds),
    )
    return self._account(schema).epsilon

  def _max_rounds(self) -> int:
    planned = self._schema.num_rounds
    if self.max_epsilon is None or self.epsilon(planned) <= self.max_epsilon:
      return planned
    within, beyond = 0, planned
    while beyond - within > 1:
      middle = (within + beyond) // 2
      if self.epsilon(middle) <= self.max_epsilon:
        within = middle
      else:
        beyond = middle
    return within


def _check_prefixes(strategy: base.Strategy, num_rounds: int) -> None:
  """Raises ValueError unless the noise of a short run is the beginning of a longer one's.

  The covariances of the first noise rows are compared, for a few rounds.
  """
  longest = min(num_rounds, 8)
  whole = _covariance(strategy, longest)
  for n in range(1, longest):
    if not np.allclose(_covariance(strategy, n), whole[:n, :n], rtol=1e-9, atol=1e-12):
      raise ValueError(
        f'strategy: this {strategy.family} depends on the number of rounds, so that a run which'
        f' the budget ends early has another; give it num_rounds={num_rounds}'
      )


def _covariance(strategy: base.Strategy, num_rounds: int) -> np.ndarray:
  rows = strategy.noising_matrix(num_rounds)
  return rows @ rows.T
