"""A mechanism of your own by its matrices C and N.

python examples/own_family.py
"""

import dataclasses

import numpy as np

import fl_dpftrl as dpftrl
from fl_dpftrl import workload_error


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


if __name__ == '__main__':
  schema = dpftrl.MinSep(num_rounds=200, min_sep=40)
  for decay in (0.0, 0.5, 0.9):
    strategy = Geometric(decay)
    guarantee = dpftrl.account(strategy, schema, noise_multiplier=5.0, delta=1e-6)
    loss = guarantee.sensitivity * workload_error.error(strategy, 200).rms
    print(f'decay {decay}: {guarantee}, RMS loss {loss:.1f}')
