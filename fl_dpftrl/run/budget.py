"""Privacy budget of a run, spent by the declared schema."""

import bisect
import dataclasses
import functools

import numpy as np

from fl_dpftrl.claims import run_claim
from fl_dpftrl.mechanisms import base
from fl_dpftrl.participation import accountant
from fl_dpftrl.participation.accounting import gaussian, guarantees
from fl_dpftrl.participation.participation import Participation
from fl_dpftrl.support import checks
from fl_dpftrl.support.files import json_files
from fl_dpftrl.support.text import roundings


class Budget:
  """The number of rounds whose ε stays within a budget.

  A run of n rounds is the beginning of a longer one, so that the ε of the longer
  one covers it. Bisection finds the most rounds whose ε is within the budget.

  Attributes:
    max_rounds: these rounds.
    claim: the claim of them.
  """

  def __init__(
    self,
    claim: run_claim.Claim,
    terms: guarantees.Terms,
    max_epsilon: float,
    recorded_rounds: int | None = None,
  ):
    """Takes the rounds that the run allowed when it was begun, on this processor or another."""
    self._claim, self._schema = claim, claim.answers
    checks.positive(noise_multiplier=claim.noise_multiplier)
    checks.positive(max_epsilon=max_epsilon)
    self.max_epsilon, self._terms = max_epsilon, terms
    # That of all planned rounds is an upper bound for fewer.
    self._rounding = run_claim.rounding([claim], [self._schema.num_rows])
    _check_prefixes(claim.strategy, self._schema.num_rows)
    self.epsilon = functools.lru_cache(None)(self._epsilon)
    self.max_rounds = self._max_rounds(recorded_rounds)
    if not self.max_rounds:
      is_endless = self._schema.num_rounds is None  # Its ε is one figure, before any round.
      extent = 'a run without an end' if is_endless else 'one round'
      raise ValueError(
        f'max_epsilon={max_epsilon:g} is too little for {extent}, whose ε is'
        f' {roundings.up(self.epsilon(1))}; give more noise or a larger budget'
      )
    self.claim = dataclasses.replace(claim, participation=self._schema.within(self.max_rounds))

  def _epsilon(self, num_rounds: int) -> float:
    """Returns ε of the first num_rounds rounds, by the declared schema."""
    guarantee = run_claim.compose([self._claim], [self._schema.within(num_rounds)], self._terms)
    return dataclasses.replace(guarantee, rounding=self._rounding).epsilon()

  def _max_rounds(self, recorded_rounds: int | None) -> int:
    planned = self._schema.num_rows
    if recorded_rounds is not None and recorded_rounds <= planned:
      rounding = self.max_epsilon * json_files.ROUNDING
      is_last = (
        recorded_rounds == planned
        or self.epsilon(recorded_rounds + 1) > self.max_epsilon - rounding
      )
      if is_last and self.epsilon(recorded_rounds) <= self.max_epsilon + rounding:
        return recorded_rounds
    if self.epsilon(planned) <= self.max_epsilon:
      return planned
    return bisect.bisect_right(range(planned), self.max_epsilon, lo=1, key=self.epsilon) - 1


def limited(
  claim: run_claim.Claim,
  *,
  delta: float | None,
  max_epsilon: float | None,
  recorded_rounds: int | None = None,
) -> run_claim.Claim:
  """Returns the claim of the rounds that a budget allows; the claim itself without a budget."""
  check(claim, max_epsilon, delta)
  if max_epsilon is None:
    return claim
  return Budget(claim, guarantees.Terms(delta), max_epsilon, recorded_rounds=recorded_rounds).claim


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


def least_noise(
  strategy: base.Strategy,
  participation: Participation | None,
  max_epsilon: float | None,
  delta: float | None,
  *,
  num_coordinates: int,
) -> float:
  """Returns the least noise multiplier with which all planned rounds are within a budget."""
  if participation is not None and participation.is_drawn:
    raise ValueError('give noise_multiplier, as of dpftrl.calibrate: max_epsilon is for no draws')
  if participation is None or max_epsilon is None or delta is None:
    needed = {'participation': participation, 'max_epsilon': max_epsilon, 'delta': delta}
    missing = ', '.join(name for name, value in needed.items() if value is None)
    raise ValueError(f'give noise_multiplier, or {missing} to calibrate it by')
  return accountant.calibrate(
    strategy, participation, epsilon=max_epsilon, delta=delta, num_coordinates=num_coordinates
  ).noise_multiplier


def check(claim: run_claim.Claim, max_epsilon: float | None, delta: float | None) -> None:
  """Raises ValueError for δ out of range, and a budget without schema, δ or guarantee."""
  if delta is not None:
    gaussian.check_delta(delta)
  if max_epsilon is None:
    return
  missing = ['schema'] * (claim.declared is None) + ['delta'] * (delta is None)
  if missing or claim.void_reason:
    raise ValueError(
      f'max_epsilon={max_epsilon:g} needs '
      + (' and '.join(missing) if missing else f'a guarantee; {claim.void_reason}')
    )
