"""A mechanism of your own that says how its noise rows are made.

python examples/own_noise.py
"""

import dataclasses
import os

import numpy as np

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import linear_noise
from fl_dpftrl.noise import integer_rows


@dpftrl.register
@dataclasses.dataclass(frozen=True)
class Chained(dpftrl.Strategy):
  """C = 1 + weight · S, with S the shift by one round; it runs for ever."""

  weight: float
  family = 'chained'

  def strategy_matrix(self, num_rounds):
    return np.eye(num_rounds) + self.weight * np.eye(num_rounds, k=-1)

  def noising_matrix(self, num_rounds):
    return np.linalg.inv(self.strategy_matrix(num_rounds))

  def noise(self, num_rounds=None):
    """C y = z: each row subtracts a share of the one before, its only buffer."""
    step = linear_noise.Step(below=[self.weight], update=linear_noise.Push())
    return linear_noise.LinearNoise(1, lambda t: step, period=1)


if __name__ == '__main__':
  maker = integer_rows.RowMaker(Chained(0.5), size=3, num_rounds=10, seed=os.urandom(32))
  stddevs = [maker.make(np.empty(3, np.int64)) for _ in range(10)]
  print(f'{Chained(0.5).memory_copies(10)} buffer, standard deviations {np.round(stddevs, 3)}')
