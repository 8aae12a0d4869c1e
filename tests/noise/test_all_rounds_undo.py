"""Noise that stops to undo C late in a run is refused, and C that is another in a shorter run."""

import dataclasses
from typing import ClassVar

import numpy as np
import pytest

from fl_dpftrl.mechanisms import base, linear_noise, undoing
from fl_dpftrl.mechanisms.families import tree_full


@dataclasses.dataclass(frozen=True)
class Late(base.Strategy):
  """Independent noise, but for a share of the row before in one round."""

  wrong_round: int
  buffers: bool
  max_rounds: int | None = None
  family: ClassVar[str] = 'late'

  def strategy_matrix(self, num_rounds):
    return np.eye(num_rounds)

  def noising_matrix(self, num_rounds):
    return np.eye(num_rounds)

  def noise(self, num_rounds=None):
    def step(t):
      share = 1e-3 if t == self.wrong_round else 0.0
      if self.buffers:
        return linear_noise.Step(below=[share], update=linear_noise.Push(), norm=1.0)
      if not t:
        return linear_noise.Step(norm=1.0)
      return linear_noise.Step(draws=[share, 1.0], earlier=1, norm=1.0)

    return linear_noise.LinearNoise(int(self.buffers), step)


@pytest.mark.parametrize('buffers, wrong', [(True, 128), (True, 299), (False, 1024), (False, 2051)])
def test_one_wrong_round_is_found(buffers, wrong):
  good, bad = (Late(t, buffers, wrong + 1) for t in (-1, wrong))
  undoing.check_undoes(good, good.noise(), good.max_rounds)
  with pytest.raises(ValueError, match='noise of late does not undo its strategy_matrix'):
    undoing.check_undoes(bad, bad.noise(), bad.max_rounds)


@dataclasses.dataclass(frozen=True)
class Planned(base.Strategy):
  """C for a run of so many rounds as are asked for, each with another one."""

  max_rounds: int
  family: ClassVar[str] = 'planned'

  def strategy_matrix(self, num_rounds):
    return tree_full.TreeFull(num_rounds).strategy_matrix(num_rounds)

  def noising_matrix(self, num_rounds):
    return np.tril(np.linalg.inv(self.strategy_matrix(num_rounds)))


@pytest.mark.parametrize('num_rounds', [7, 256])
def test_a_strategy_that_is_another_for_a_shorter_run_is_refused(num_rounds):
  """A run that ends early would have the noise of one strategy, and the figures of another."""
  strategy = Planned(num_rounds)
  with pytest.raises(
    ValueError, match='strategy_matrix of planned depends on the number of rounds'
  ):
    undoing.check_undoes(strategy, strategy.noise(num_rounds), num_rounds)
