"""A mechanism of your own by its matrices C and N, and a search for its parameter.

python examples/own_family.py
"""

import dataclasses

import numpy as np

import fl_dpftrl as dpftrl


@dpftrl.register
@dataclasses.dataclass(frozen=True)
class Geometric(dpftrl.Strategy):
  """C[t, j] = decay^(t − j), so that N subtracts a share of the round before."""

  decay: float
  max_rounds: int = 1000
  family = 'geometric'

  def strategy_matrix(self, num_rounds):
    lags = np.subtract.outer(np.arange(num_rounds), np.arange(num_rounds))
    return np.tril(self.decay ** np.maximum(lags, 0))

  def noising_matrix(self, num_rounds):
    return np.eye(num_rounds) - self.decay * np.eye(num_rounds, k=-1)

  @classmethod
  def optimize(cls, problem):
    decays, num_rounds = 1.0 - 0.5 ** np.arange(8), problem.schema.num_rounds
    return min((cls(decay, num_rounds) for decay in decays), key=problem.loss)


if __name__ == '__main__':
  schema = dpftrl.MinSep(num_rounds=200, min_sep=40)
  for strategy in Geometric(0.0), Geometric(0.5), dpftrl.optimize('geometric', schema):
    guarantee = dpftrl.account(strategy, schema, noise_multiplier=5.0, delta=1e-6)
    print(f'{strategy}: {guarantee}, MaxLoss {guarantee.sensitivity * strategy.error(200).max:.1f}')
