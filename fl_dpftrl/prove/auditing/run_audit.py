"""The audit of a run by its canaries: what releases show of coins, and how much noise they have.

Let N be the noising matrix with a row for each round that released, and W the inverse Cholesky
factor of N Nᵀ; without rounds that failed it does what C does. With Y the released sums in standard
deviations of Z, rows of W Y are standard normal plus what updates add. With u_j the 0/1 rounds of
canary j and a = W u_j/z, of norm μ_j, L_j = ⟨a, W Y v_j⟩/μ_j is N(0, 1), plus μ_j with the coin.

- Guesses: coins of the largest |μ_j L_j − μ_j²/2| by its sign (`guesses`); for any updates.
- Energy: a row of Y is its fresh noise, which no earlier row of N Z tells, plus a shift that these
  fix, also those of rounds that are not recorded here, but were used. So the sum of the squares of
  W Y, each row in units of its fresh noise, is stochastically at least chi-squared, for any
  adaptive updates: too little refutes the noise.
- Signal: mean of L_j/μ_j with the coin less that without it: 1 where canaries enter as they are. A
  hint, as updates that follow the model move it.
- Variance of L_j without the coin: 1, plus what updates add. A hint at other noise.
"""

import dataclasses
import functools
import math
import os
from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc
import scipy

from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import keys, refusals
from fl_dpftrl.participation.accounting import gaussian, guarantees
from fl_dpftrl.prove.auditing import canary_records, guesses, result
from fl_dpftrl.prove.replaying import opened_runs, replays
from fl_dpftrl.support import callers
from fl_dpftrl.support.files import json_files, mark, paths
from fl_dpftrl.support.text import roundings

SHOWN, LEVEL = 0.05, 1e-3
"""Levels of what is printed, and of what fails."""

_BLOCK = 1 << 13  # directions
_STORED = 1e-6  # relative, of energy: products are stored in float32
_LOUD, _FEW = 1.2, 64  # variance; canaries of which it is estimated well enough


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class RunAudit(result.Checked):
  """Figures that canaries show of a run.

  Attributes:
    guarantee, void_reason: loss of any device of the rounds so far, by the log, and what voids it.
    num_canaries, num_rounds, num_released: canaries, rounds begun, and those that released.
    num_guesses, correct: coins that were guessed, and right guesses.
    lower_mu, sure_mu: lower bounds on μ by guesses, at 95 % and at 99.9 %.
    energy: p-value of so little noise, of all rounds and each of them.
    noise_limit: upper limit of the noise over the claimed, at 95 %.
    signal, signal_error, variance: see the module; None without both kinds of coins.
  """

  guarantee: guarantees.Guarantee
  void_reason: str | None
  num_canaries: int
  num_rounds: int
  num_released: int
  num_guesses: int
  correct: int
  lower_mu: float
  sure_mu: float
  energy: float
  noise_limit: float
  signal: float | None
  signal_error: float | None
  variance: float | None

  @property
  def lower_epsilon(self) -> float:
    """ε at the stated δ that `lower_mu` is of."""
    return gaussian.epsilon(1.0 / self.lower_mu, self.guarantee.delta) if self.lower_mu else 0.0

  @property
  def checks(self) -> tuple[result.Check, ...]:
    """Checks that refute the claim, each with a false alarm of probability 10⁻³ at most."""
    leak = 'coins are told better than the stated guarantee allows: its μ is above the stated'
    lack = 'there is less noise than claimed, with this p-value'
    mu = self.guarantee.mu
    return (
      result.Check(name='guesses', statistic=self.sure_mu, highest=mu, meaning=leak),
      result.Check(name='energy', statistic=self.energy, lowest=LEVEL, meaning=lack),
    )

  @property
  def hints(self) -> list[str]:
    """Sentences on what may be wrong, or be due to updates that follow the model."""
    sentences = []
    if lacking := self.num_rounds - self.num_released:
      sentences.append(
        f'{lacking} of {self.num_rounds} rounds have no release here: they failed, or their files'
        ' in canaries/ are gone, and what they showed is not audited'
      )
    if self.lower_mu > self.guarantee.mu and self.passed:
      sentences.append(
        'guesses pass the stated μ at 95 %, but not at 99.9 %, as may happen to one right run of'
        ' twenty; run it again, with more canaries'
      )
    signal, error, variance = self.signal or 0.0, self.signal_error or 0.0, self.variance or 0.0
    if self.num_canaries >= _FEW and signal > 1.0 + 4.0 * error:
      sentences.append(
        f'signal {signal:.2f} is above 1: updates are longer than the clip norm, or the model'
        ' diverges; audit a rehearsal whose canaries have norm=1000'
      )
    if self.num_canaries >= _FEW and abs(signal) < 4.0 * error < 0.5:
      sentences.append(
        f'signal {signal:.2f} is as if no canaries were added: then only the noise was audited'
      )
    if variance > _LOUD:
      sentences.append(
        f'variance {variance:.2f} is above 1: devices agree, or noise is reused or of another'
        ' strategy; run `fl-dpftrl audit --strategy` on the mechanism'
      )
    return sentences

  @property
  def summary(self) -> json_files.Object:
    """The verdict, and the figures in words."""
    guarantee = f'{self.guarantee}, of {self.num_rounds} rounds'
    up, down = roundings.up, roundings.down
    verdict = 'the run is void' if self.void_reason else 'nothing refutes the claim'
    lines = {
      'verdict': f'failed: {self.names}' if self.names else verdict,
      'stated_epsilon': f'none: {self.void_reason}' if self.void_reason else guarantee,
      'lower_epsilon': f'{down(self.lower_epsilon)} at 95 %, by {self.correct:,} right of'
      f' {self.num_guesses:,} guesses; μ at least {down(self.lower_mu)} of {up(self.guarantee.mu)}',
      'noise': f'at most {up(self.noise_limit)} of the claimed, at 95 %; p = {self.energy:.2g}',
      'released': f'{self.num_released} of {self.num_rounds} rounds',
    }
    if self.signal is not None:
      lines['signal'] = f'{self.signal:.2f} ± {self.signal_error:.2f}, 1 if the clip norm is kept'
      lines['variance'] = f'{self.variance:.2f}, 1 without the devices'
    return lines

  def to_json(self) -> json_files.Object:
    """Returns what `fl-dpftrl audit RUN --json` prints."""
    return {
      'passed': self.passed,
      'stated_epsilon': None if self.void_reason else self.guarantee.epsilon(),
      'stated_mu': self.guarantee.mu,
      'delta': self.guarantee.delta,
      'lower_epsilon': self.lower_epsilon,
      **{name: value for name, value in vars(self).items() if name != 'guarantee'},
      'checks': [check.to_json() for check in self.checks],
      'hints': self.hints,
    }


def audit_run(run: str | os.PathLike[str], *, delta: float) -> RunAudit:
  """Measures what the releases of a run show of its canaries, by their secret coins.

  Real devices lose nothing: it reads releases and coins only. For right guesses and energy, nothing
  is assumed of the updates; signal and variance are hints.

  Args:
    run: folder of a run with `Canaries`, which may still go on.
    delta: δ at which ε is stated.

  Raises:
    ValueError: for a run without canaries, and without a release.
    LostStateError: if the secret of its canaries is gone.
  """
  opened = opened_runs.open_run(folder := paths.local(run))
  claim, num_rounds = opened.claim, opened.log.num_rounds
  rounds = canary_records.released_rounds(folder)
  if claim.canaries is None:
    raise ValueError(f'{folder} is of a run without canaries; begin one with canaries=')
  if not rounds or rounds[-1] >= num_rounds:
    raise ValueError(f'{folder} has {num_rounds} rounds, and canaries of others, or of none yet')
  identity, number = opened.log.metadata[keys.RUN_KEY], claim.canaries.number
  records = canary_records.CanaryRecords(folder, claim, identity)
  noising = claim.strategy.noising_matrix(num_rounds)[: rounds[-1] + 1]
  factor = fresh = np.linalg.cholesky(noising @ noising.T)
  if len(rounds) < len(noising):
    factor = np.linalg.cholesky(noising[rounds] @ noising[rounds].T)
  whiten = functools.partial(scipy.linalg.solve_triangular, factor, lower=True)
  scale = min(1.0, claim.canaries.norm) / run_claim.update_noise_multiplier(claim)
  # Rounds of each canary, by the log.
  participations = np.zeros((num_rounds, number), np.int8)
  for table in opened.log.tables():
    places = pc.index_in(table.column('device_id'), value_set=opened.canary_ids)
    turns = table.column('round').filter(pc.is_valid(places))
    participations[turns.to_numpy(), places.drop_null().to_numpy()] = 1
  squares, products, norms = np.zeros(len(rounds)), *np.zeros((2, number))
  for first in range(0, records.size, _BLOCK):
    part = slice(first, first + _BLOCK)
    released = whiten(records.releases(rounds, part))
    squares += np.square(released).sum(axis=1)
    if first < number:
      weights = scale * whiten(participations[rounds, part])
      products[part] = (weights * released[:, : weights.shape[1]]).sum(axis=0)
      norms[part] = np.square(weights).sum(axis=0)
  squares *= (np.diag(factor) / np.diag(fresh)[rounds]) ** 2
  limit, energy = _noise(squares * (1.0 + _STORED), records.size)
  signal, signal_error, variance = _signal(products, norms, records.coins)
  ratios = products - 0.5 * norms
  num_guesses = guesses.number_of(number)
  chosen = np.argsort(-np.abs(ratios), kind='stable')[:num_guesses]
  correct = int(((ratios > 0.0) == records.coins)[chosen].sum())
  statement = replays.replay(opened, delta=delta)
  return RunAudit(
    guarantee=statement.worst_case,
    void_reason=statement.void_reason or statement.worst_case.void_reason,
    num_canaries=number,
    num_rounds=num_rounds,
    num_released=len(rounds),
    num_guesses=num_guesses,
    correct=correct,
    lower_mu=guesses.lower_bound(correct, num_guesses, number, SHOWN),
    sure_mu=guesses.lower_bound(correct, num_guesses, number, LEVEL),
    energy=energy,
    noise_limit=limit,
    signal=signal,
    signal_error=signal_error,
    variance=variance,
  )


def _noise(squares: np.ndarray, size: int) -> tuple[float, float]:
  """Returns the upper limit of the noise, and the p-value, from the energy of each round."""
  total, degrees = squares.sum(), size * len(squares)
  by_round = len(squares) * scipy.stats.chi2.cdf(squares, size).min()
  p_value = min(1.0, 2.0 * min(scipy.stats.chi2.cdf(total, degrees), by_round))
  return math.sqrt(total / scipy.stats.chi2.ppf(SHOWN, degrees)), float(p_value)


def _signal(products: np.ndarray, norms: np.ndarray, coins: np.ndarray) -> tuple[float | None, ...]:
  """Returns the signal, its standard error, and the variance, from all μ_j L_j and μ_j²."""
  kinds = (norms > 0.0) & coins, (norms > 0.0) & ~coins
  if not all(kind.any() for kind in kinds):
    return None, None, None
  sums, totals = np.array([[products[kind].sum(), norms[kind].sum()] for kind in kinds]).T
  variance = (products[kinds[1]] / np.sqrt(norms[kinds[1]])).var()
  error = math.sqrt(variance * (1.0 / totals).sum())
  return float(np.subtract(*sums / totals)), error, float(variance)


def shown(runs: Sequence[str | os.PathLike[str]], delta: float) -> RunAudit | None:
  """Returns the audit for a page of one run; None without releases, with a warning if damaged."""
  if len(runs) != 1 or not canary_records.released_rounds(paths.local(runs[0])):
    return None
  try:
    return audit_run(runs[0], delta=delta)
  except (mark.LostStateError, refusals.LogError) as error:
    callers.warn(f'there is no audit by canaries: {error}')
    return None
