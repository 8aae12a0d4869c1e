"""The attack on the lowest bits of releases, with few rounds."""

import itertools

import numpy as np
import pytest

from benchmarks.sides import attack
from fl_dpftrl.noise import normals
from tests import every_family


def test_an_advantage_is_judged_by_rounds_that_did_not_teach():
  told = attack.advantage(np.zeros(200, int), np.full(200, 5))
  assert told['advantage'] == 1.0 and 0.8 < told['low'] < told['high'] == 1.0
  generator = np.random.default_rng(0)
  nothing = attack.advantage(*generator.poisson(5.0, (2, 400)))
  assert nothing['low'] < 0.0 < nothing['high'] and abs(nothing['advantage']) < 0.2


@pytest.mark.slow
def test_float32_sums_tell_all_and_whole_numbers_nothing():
  strategy = every_family.example('blt', attack.RUN)
  seeds = map(normals.fixed_seed, itertools.count())
  floats = attack.measure(attack.in_floats, strategy, 50, lambda: next(seeds))
  assert floats['with'] == 0.0 and floats['low'] > 0.2
  whole = attack.measure(attack.by_engine, strategy, 50, lambda: next(seeds))
  assert whole['low'] < 0.0 < whole['high'] and whole['with'] > 2.0
