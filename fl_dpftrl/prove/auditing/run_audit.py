"""The audit of a run by its canaries: what releases show of coins, and how much noise they have.

Let N be the noising matrix with a row for each round that released, and W the inverse Cholesky
factor of N Nᵀ; without rounds that failed it does what C does. With Y the released sums in standard
deviations of Z, rows of W Y are standard normal plus what updates add. With u_j the 0/1 rounds of
canary j and a = W u_j/z, of norm μ_j, L_j = ⟨a, W Y v_j⟩/μ_j is N(0, 1), plus μ_j with the coin.

- Guesses: coins of the largest |μ_j L_j − μ_j²/2| by its sign (`guesses`); for any updates.
- Energy: a row of W Y is normal plus a shift that earlier rows fix, so the sum of all squares is
  stochastically at least chi-squared, for any adaptive updates: too little refutes the noise.
- Signal: mean of L_j/μ_j with the coin less that without it: 1 where canaries enter as they are. A
  hint, as updates that follow the model move it.
- Variance of L_j without the coin: 1, plus what updates add. A hint at other noise.
"""

import dataclasses
import math
import os
import pathlib
import warnings

import numpy as np
import pyarrow.compute as pc
import scipy

from fl_dpftrl.claims import adaptive_clipping, extra_coordinates
from fl_dpftrl.claims.canaries import Canaries
from fl_dpftrl.logs import keys, refusals
from fl_dpftrl.participation.accounting import gaussian, guarantees
from fl_dpftrl.prove.auditing import canary_records, guesses, result
from fl_dpftrl.prove.replaying import opened_runs, replays
from fl_dpftrl.support import tables
from fl_dpftrl.support.files import json_files, mark, paths

SHOWN, LEVEL = 0.05, 1e-3
"""Levels of what is printed, and of what fails."""

_BLOCK = 1 << 13  # directions
_STORED = 1e-6  # relative, of energy: products are stored in float32
_LOUD, _FEW = 1.2, 64  # variance; canaries of which it is estimated well enough


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunAudit(result.Checked):
  """Figures that canaries show of a run.

  Attributes:
    guarantee: loss of any device of the rounds so far, by the log.
    num_canaries, num_rounds, num_released: canaries, rounds begun, and those that released.
    num_guesses, correct: coins that were guessed, and right guesses.
    lower_mu: lower bound on μ at 95 %, by guesses.
    sure_mu: the same at 99.9 %.
    energy: p-value of so little noise, of all rounds and each of them.
    noise_limit: upper limit of the noise over the claimed, at 95 %.
    signal, signal_error: see the module, with its standard error; NaN without both kinds of coins.
    variance: see the module.
  """

  guarantee: guarantees.Guarantee
  num_canaries: int
  num_rounds: int
  num_released: int
  num_guesses: int
  correct: int
  lower_mu: float
  sure_mu: float
  energy: float
  noise_limit: float
  signal: float
  signal_error: float
  variance: float

  @property
  def lower_epsilon(self) -> float:
    """ε at the stated δ that `lower_mu` is of."""
    return gaussian.epsilon(1.0 / self.lower_mu, self.guarantee.delta) if self.lower_mu else 0.0

  @property
  def checks(self) -> tuple[result.Check, ...]:
    """Checks that refute the claim, each with a false alarm of probability 10⁻³ at most."""
    return (
      result.Check(
        name='guesses',
        statistic=self.sure_mu,
        highest=self.guarantee.mu,
        meaning='coins are told better than the stated guarantee allows: its μ is above the stated',
      ),
      result.Check(
        name='energy',
        statistic=self.energy,
        lowest=LEVEL,
        meaning='there is less noise than claimed, with this p-value',
      ),
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
    if self.num_canaries >= _FEW and self.signal - 1.0 > 4.0 * self.signal_error:
      sentences.append(
        f'signal {self.signal:.2f} is above 1: updates are longer than the clip norm, or the model'
        ' diverges; audit a rehearsal whose canaries have norm=1000'
      )
    if self.variance > _LOUD:
      sentences.append(
        f'variance {self.variance:.2f} is above 1: devices agree, or noise is reused or of another'
        ' strategy; run `fl-dpftrl audit --strategy` on the mechanism'
      )
    return sentences

  @property
  def summary(self) -> json_files.Object:
    """The verdict, and the figures in words."""
    names = [check.name for check in self.failed]
    return {
      'verdict': f'failed: {", ".join(names)}' if names else 'nothing refutes the claim',
      'stated_epsilon': f'{self.guarantee}, of {self.num_rounds} rounds',
      'lower_epsilon': f'{self.lower_epsilon:.2f} at 95 %, by guesses; μ at least'
      f' {self.lower_mu:.3f} of {self.guarantee.mu:.3f}',
      'guesses': f'{self.correct:,} right of {self.num_guesses:,}, of {self.num_canaries:,} coins',
      'noise': f'at most {self.noise_limit:.4f} of the claimed, at 95 %; p = {self.energy:.2g}',
      'signal': f'{self.signal:.2f} ± {self.signal_error:.2f}, 1 where the clip norm is kept',
      'variance': f'{self.variance:.2f}, 1 without the devices',
      'released': f'{self.num_released} of {self.num_rounds} rounds',
    }

  def __repr__(self) -> str:
    return tables.at_a_prompt('RunAudit', tables.table(self.summary).splitlines())

  def to_json(self) -> json_files.Object:
    """Returns what `fl-dpftrl audit RUN --json` prints; figures without a value are null."""
    fields = {name: value for name, value in vars(self).items() if name != 'guarantee'}
    figures = {
      'passed': self.passed,
      'stated_epsilon': self.guarantee.epsilon(),
      'stated_mu': self.guarantee.mu,
      'delta': self.guarantee.delta,
      'lower_epsilon': self.lower_epsilon,
      **fields,
      'checks': [check.to_json() for check in self.checks],
      'hints': self.hints,
    }
    is_missing = lambda value: isinstance(value, float) and not math.isfinite(value)
    return {name: None if is_missing(value) else value for name, value in figures.items()}


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
  folder = paths.local(run)
  opened = opened_runs.open_run(folder)
  claim, num_rounds = opened.claim, opened.log.num_rounds
  if claim.canaries is None:
    raise ValueError(f'{folder} is of a run without canaries; begin one with canaries=')
  identity = opened.log.metadata[keys.RUN_KEY]
  records = canary_records.CanaryRecords(folder, claim.canaries, identity)
  rounds = canary_records.released_rounds(folder)
  if not rounds or rounds[-1] >= num_rounds:
    raise ValueError(f'{folder} has {num_rounds} rounds, and canaries of others, or of none yet')
  guarantee = replays.replay(opened, delta=delta).worst_case
  noising = claim.strategy.noising_matrix(num_rounds)[rounds]
  factor = np.linalg.cholesky(noising @ noising.T)
  patterns, members = np.unique(
    _patterns(opened, claim.canaries)[rounds], axis=1, return_inverse=True
  )
  weights = scipy.linalg.solve_triangular(factor, patterns, lower=True)
  groups = adaptive_clipping.groups(
    claim.clip_norm, claim.private_metrics, claim.noise_multiplier, claim.report_goal or 1
  )
  multiplier = extra_coordinates.update_noise_multiplier(claim.noise_multiplier, groups)
  weights *= min(1.0, claim.canaries.norm) / multiplier
  squares, products = np.zeros(len(rounds)), np.zeros(claim.canaries.number)
  for first in range(0, records.size, _BLOCK):
    part = records.releases(rounds, slice(first, first + _BLOCK))
    whitened = scipy.linalg.solve_triangular(factor, part, lower=True)
    squares += np.square(whitened).sum(axis=1)
    places = np.arange(first, min(first + _BLOCK, products.size))
    chosen = whitened[:, : places.size]
    products[places] = np.einsum('tj,tj->j', weights[:, members[places]], chosen)
  limit, energy = _noise(squares * (1.0 + _STORED), records.size)
  norms = np.square(weights).sum(axis=0)[members]
  signal, signal_error, variance = _signal(products, norms, records.coins)
  ratios = products - 0.5 * norms
  num_guesses = guesses.number_of(products.size)
  chosen = np.argsort(-np.abs(ratios), kind='stable')[:num_guesses]
  correct = int(((ratios > 0.0) == records.coins)[chosen].sum())
  lower, sure = (
    guesses.lower_bound(correct, num_guesses, products.size, level) for level in (SHOWN, LEVEL)
  )
  return RunAudit(
    guarantee=guarantee,
    num_canaries=products.size,
    num_rounds=num_rounds,
    num_released=len(rounds),
    num_guesses=num_guesses,
    correct=correct,
    lower_mu=lower,
    sure_mu=sure,
    energy=energy,
    noise_limit=limit,
    signal=signal,
    signal_error=signal_error,
    variance=variance,
  )


def _noise(squares: np.ndarray, size: int) -> tuple[float, float]:
  """Returns the upper limit of the noise, and the p-value, from the energy of each round."""
  total, degrees = float(squares.sum()), size * len(squares)
  by_round = len(squares) * float(scipy.stats.chi2.cdf(squares, size).min())
  p_value = min(1.0, 2.0 * min(float(scipy.stats.chi2.cdf(total, degrees)), by_round))
  return math.sqrt(total / float(scipy.stats.chi2.ppf(SHOWN, degrees))), p_value


def _signal(
  products: np.ndarray, norms: np.ndarray, coins: np.ndarray
) -> tuple[float, float, float]:
  """Returns the signal, its standard error, and the variance; NaN without both kinds of coins.

  Args:
    products: μ_j L_j.
    norms: μ_j².
    coins: bool.
  """
  took_part = norms > 0.0
  with_coin, without = took_part & coins, took_part & ~coins
  if not (with_coin.any() and without.any()):
    return math.nan, math.nan, math.nan
  sums = norms[with_coin].sum(), norms[without].sum()
  signal = products[with_coin].sum() / sums[0] - products[without].sum() / sums[1]
  variance = float((products[without] / np.sqrt(norms[without])).var())
  return float(signal), math.sqrt(variance * (1.0 / sums[0] + 1.0 / sums[1])), variance


def _patterns(run: opened_runs.RecordedRun, canaries: Canaries) -> np.ndarray:
  """Returns the rounds of each canary by the log, 0 or 1, shape [num_rounds, number]."""
  taken = np.zeros((run.log.num_rounds, canaries.number), np.int8)
  for table in run.log.tables():
    places = pc.index_in(table.column('device_id'), value_set=run.canary_ids)
    is_canary = pc.is_valid(places).to_numpy()
    taken[table.column('round').to_numpy()[is_canary], places.drop_null().to_numpy()] = 1
  return taken


def shown(folder: pathlib.Path, delta: float) -> RunAudit | None:
  """Returns the audit for a page; None without a release, and, with a warning, what it needs."""
  try:
    return audit_run(folder, delta=delta) if canary_records.released_rounds(folder) else None
  except (mark.LostStateError, refusals.LogError) as error:
    warnings.warn(f'there is no audit by canaries: {error}', stacklevel=2)
    return None
