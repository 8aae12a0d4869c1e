"""A participation of your own: at most `most` rounds of a device in any `window` rounds.

    python examples/own_participation.py

Registered, it works wherever `MinSep` does: accounting, any loop, studies and replays.
"""

import dataclasses
import itertools
import tempfile
from typing import ClassVar

import numpy as np

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import sensitivities


@dpftrl.register
@dataclasses.dataclass(frozen=True, kw_only=True)
class AtMostInWindow(dpftrl.MinSep):
  """At most `most` rounds in any `window` consecutive ones, and `max_participations` in all."""

  kind: ClassVar[str] = 'at_most_in_window'
  window: int = 1
  most: int = 1

  @property
  def assumption(self) -> str:
    """The pattern in words, for statements."""
    return (
      f'every device takes part in at most {self.most} of any {self.window} consecutive rounds, and'
      f' in at most {self.participations} of {self.num_rounds}'
    )

  def allows(self, rounds: np.ndarray) -> bool:
    """Returns whether a device may take part in these rounds: those `most` apart span a window."""
    rounds = np.asarray(rounds)
    is_apart = (rounds[self.most :] - rounds[: -self.most] >= self.window).all()
    return super().allows(rounds) and bool(is_apart)

  def sensitivity(self, strategy: dpftrl.Strategy) -> sensitivities.Sensitivity:
    """Returns an upper bound: each of `most` parts of the rounds is a window apart."""
    part = dpftrl.MinSep(self.num_rounds, self.window, -(-self.participations // self.most))
    whole, of_part = (strategy.sensitivity(s) for s in (self.as_min_sep(), part))
    is_proven = sensitivities.LOWER_BOUND not in (whole.kind, of_part.kind)
    kind = sensitivities.UPPER_BOUND if is_proven else sensitivities.LOWER_BOUND
    return sensitivities.Sensitivity(min(self.most * of_part.value, whole.value), kind)


def by_brute_force(participation: AtMostInWindow, strategy: dpftrl.Strategy) -> float:
  """Returns the largest norm of C u over all patterns, for nonnegative C."""
  rounds, most = participation.num_rounds, participation.participations
  matrix, sizes = strategy.strategy_matrix(rounds), range(1, most + 1)
  patterns = (np.array(p) for k in sizes for p in itertools.combinations(range(rounds), k))
  return max(
    float(np.linalg.norm(matrix[:, pattern].sum(axis=1)))
    for pattern in patterns
    if participation.allows(pattern)
  )


def main() -> None:
  """Compares the bound with brute force, and runs a loop that turns devices away."""
  participation = AtMostInWindow(num_rounds=12, window=5, most=2, max_participations=4)
  strategy = dpftrl.BandedToeplitz((1.0, 0.5, 0.25), normalized_rounds=12)
  bound = participation.sensitivity(strategy).value
  print(f'sensitivity {by_brute_force(participation, strategy):.3f}, and at most {bound:.3f}')
  claim = dpftrl.Claim(strategy=strategy, noise_multiplier=3.0, participation=participation)
  with dpftrl.Run(tempfile.mkdtemp(), claim, delta=1e-6) as run:
    for t in range(run.max_rounds):
      with run.round(['a', 'b'][: 1 + t % 2]) as round_:
        print(round_.device_ids.tolist(), end=' ')
        round_.released()
    print()
  print(run.statement())


if __name__ == '__main__':
  main()
