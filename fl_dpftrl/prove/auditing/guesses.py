"""The lower bound on μ that follows from guesses of secret fair coins, in one run.

A canary's update is in the releases if its coin is 1. Of m coins, R are guessed. With f̄(x) =
Φ(Φ⁻¹(x) + μ), and releases that are μ-GDP for each canary, the number W of right guesses has

    E[W; W ≥ i]/m  ≤  f̄( E[R − W; W ≥ i − 1]/m )   for every i,

whatever the joint law of the guesses: release and other coins together are μ-GDP for coin j, so
that f̄ bounds the chance that guess j is right and at least i − 1 others are by the chance that it
is wrong and they are. The mean over j follows, as f̄ is concave. If P(W ≥ c) were a level, these
inequalities force mass on smaller W too; where it passes 1, μ is refuted at that level.

Source: Mahloujifar, Melis and Chaudhuri 2024 (Auditing f-differential privacy in one run).
"""

import bisect

import scipy

_MARGIN = 1e-9  # relative, of floating-point numbers
_STEP, _STEPS = 2.0**-42, 1 << 48  # values of μ that are tried


def number_of(num_canaries: int) -> int:
  """Returns R, how many canaries are guessed: a tenth of them, or 3 % from 10,000 on."""
  return max(1, num_canaries // 10 if num_canaries < 10_000 else num_canaries * 3 // 100)


def is_refuted(mu: float, correct: int, num_guesses: int, num_canaries: int, level: float) -> bool:
  """Returns whether so many right guesses have a chance below the level under μ-GDP.

  Args:
    mu: μ, at least 0.
    correct: right guesses, of num_guesses.
    num_guesses, num_canaries: R and m, which were fixed before the run.
    level: P(W ≥ correct) that is to be refuted, above 0 and below 1.
  """
  right = correct * level / num_canaries
  wrong = (num_guesses - correct) * level / num_canaries
  most = num_guesses / num_canaries * (1.0 + _MARGIN)
  for i in range(correct - 1, -1, -1):
    least = float(scipy.special.ndtr(scipy.special.ndtri(right) - mu))
    if least > wrong:
      right += i / (num_guesses - i) * (least - wrong)
      wrong = least
    if right + wrong > most:
      return True
  return False


def lower_bound(correct: int, num_guesses: int, num_canaries: int, level: float) -> float:
  """Returns the largest μ that is refuted, less at most 2⁻⁴²; 0 if none is."""
  facts = correct, num_guesses, num_canaries, level
  first = bisect.bisect_left(range(_STEPS), True, key=lambda i: not is_refuted(i * _STEP, *facts))
  return max(0, first - 1) * _STEP
