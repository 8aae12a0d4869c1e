"""How much noise a run's releases have, against the most that its updates can add up to."""

import functools
from typing import NamedTuple

import numpy as np

from fl_dpftrl.claims import run_claim
from fl_dpftrl.mechanisms import base, linear_noise, schemas, workloads
from fl_dpftrl.support import checks

HOPELESS = 10.0
"""Ratio of all rounds that is called hopeless; docs/finetune.md has what was learnt at 0.4 to 5."""


class NoiseToSignal(NamedTuple):
  """L2 norm of the noise over that of the longest signal, which is of equal, clipped updates.

  Real updates differ, so their sum is shorter: three to four times with people's text. A model
  learns all the same while `total` is below about 3, as noise in many directions does little.

  Attributes:
    mean: ratio in the mean of one round, the last one, whose longest signal is the clip norm.
    total: ratio in the sum of all rounds' means.
  """

  mean: float
  total: float

  @property
  def is_hopeless(self) -> bool:
    """True where all rounds together have over ten times as much noise as signal."""
    return self.total > HOPELESS

  def warning(self, epsilon: float | None = None) -> str | None:
    """Returns a sentence on noise that leaves nothing to learn from; None if there is hope."""
    if not self.is_hopeless:
      return None
    budget = '' if epsilon is None else f'at ε = {epsilon:g} '
    return (
      f"{budget}each round's mean has {self.mean:.0f} times as much noise as signal, and all rounds"
      f' together {self.total:.0f} times: use more people, a larger ε or a smaller model'
    )


def noise_to_signal(
  strategy: base.Strategy,
  *,
  noise_multiplier: float,
  report_goal: int,
  num_coordinates: int,
  num_rounds: int,
) -> NoiseToSignal:
  """Returns the expected ratio of noise to signal, which does not depend on the clip norm.

  The noise in d coordinates of the sum of n means is z·‖1ᵀN‖·√d / goal clip norms long, and the
  signal at most n.

  Args:
    strategy: C with its N.
    noise_multiplier: z, std(Z) / clip_norm of the updates.
    report_goal: updates of a round, the divisor of its sum.
    num_coordinates: d, those of an update.
    num_rounds: n, from 1 to 16,384.

  Raises:
    ValueError: for an argument out of range, and more rounds than the strategy supports.
  """
  factor = checks.not_negative(noise_multiplier=noise_multiplier)
  factor *= checks.whole(num_coordinates=num_coordinates) ** 0.5
  factor /= checks.whole(report_goal=report_goal)
  num_rounds = checks.whole(1, workloads.MAX_DENSE_ROUNDS, num_rounds=num_rounds)
  schemas.check_num_rounds(strategy, num_rounds)
  last, total = _norms(strategy, num_rounds)
  return NoiseToSignal(factor * last, factor * total / num_rounds)


def expected(claim: run_claim.Claim, num_coordinates: int | None = None) -> NoiseToSignal | None:
  """Returns the ratio of all rounds of a claim; None where it says too little to know it.

  It says too little without a schema, report goal or clip norm, of a run without an end, and of one
  with more than 16,384 rounds.

  Args:
    claim: that of the run.
    num_coordinates: those of a release; None for those that the claim's arithmetic is proven for.
  """
  num_coordinates = num_coordinates or claim.arithmetic.num_coordinates
  num_rounds = None if claim.participation is None else claim.participation.num_rounds
  if num_coordinates is None or num_rounds is None or num_rounds > workloads.MAX_DENSE_ROUNDS:
    return None
  if claim.report_goal is None or claim.clip_norm is None:
    return None
  return noise_to_signal(
    claim.strategy,
    noise_multiplier=run_claim.update_noise_multiplier(claim),
    report_goal=claim.report_goal,
    num_coordinates=num_coordinates,
    num_rounds=num_rounds,
  )


@functools.lru_cache(maxsize=16)
def _norms(strategy: base.Strategy, num_rounds: int) -> tuple[float, float]:
  """Returns the norms of the last row of N, and of the sum of its rows."""
  noise, ones = strategy.noise(num_rounds), np.ones(num_rounds)
  last = np.where(np.arange(num_rounds) == num_rounds - 1, ones, 0.0)
  norm = lambda weights: float(np.linalg.norm(linear_noise.combined_row(noise, weights)))
  return norm(last), norm(ones)
