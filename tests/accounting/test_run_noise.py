import math

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl.accounting import run_noise
from fl_dpftrl.participation import schemas
from tests import oracle

SCHEMA = dpftrl.MinSep(num_rounds=12, min_sep=3, max_participations=2)
TREE = dpftrl.TreeOnline()


def constant(strategy, multiplier):
  return run_noise.RunNoise.of(12, strategy, multiplier)


def test_a_single_stream_has_the_sensitivity_of_its_strategy_to_the_last_bit():
  found = run_noise.worst_case([constant(TREE, 1.7)], [SCHEMA])
  assert found == sensitivity_lib.sensitivity(TREE, SCHEMA)


def test_rho_of_independent_runs_adds_up():
  """ρ is (sensitivity / noise multiplier)² / 2, in units of the first multiplier."""
  runs = [(TREE, 1.5), (dpftrl.BLT([0.9], [0.2]), 3.0), (dpftrl.Identity(), 0.7)]
  squares = [(sensitivity_lib.sensitivity(s, SCHEMA).value / m) ** 2 for s, m in runs]
  for order in (runs, runs[::-1]):
    found = run_noise.worst_case([constant(*run) for run in order], [SCHEMA] * 3)
    assert found.value / order[0][1] == pytest.approx(math.sqrt(math.fsum(squares)), rel=1e-14)
    assert found.kind == sensitivity_lib.EXACT


def test_without_noise_the_unit_is_left_out():
  alone = sensitivity_lib.sensitivity(TREE, SCHEMA).value
  found = run_noise.worst_case([constant(TREE, 0.0), constant(TREE, 2.0)], [SCHEMA] * 2)
  assert found.value == pytest.approx(math.sqrt(2.0) * alone, rel=1e-14)


def test_history_of_a_run():
  blt, identity = dpftrl.BLT([0.9], [0.2]), dpftrl.Identity()
  noise = run_noise.RunNoise.of(
    12, blt, 2.0, changes=[(2, 3.0), (5, 1.0), (40, 9.0)], restarts=[(5, None), (9, identity)]
  )
  assert noise.streams() == ((0, 5, blt, (2.0, 3.0)), (5, 4, blt, (1.0,)), (9, 3, identity, (1.0,)))
  assert noise.until(5).streams() == ((0, 5, blt, (2.0, 3.0)),)
  assert noise.until(2).streams() == ((0, 2, blt, (2.0,)),)
  assert run_noise.worst_case([noise], [SCHEMA]).kind == sensitivity_lib.UPPER_BOUND


@pytest.mark.parametrize('seed', range(8))
def test_no_history_is_below_what_a_device_can_reach(seed):
  rng = np.random.default_rng(seed)
  schema = schemas.MinSep(num_rounds=7, min_sep=int(rng.integers(1, 4)))
  at = lambda: sorted(rng.choice(np.arange(1, 7), rng.integers(0, 4), replace=False).tolist())
  changes = [(t, float(rng.uniform(0.5, 2.0))) for t in at()]
  others = (None, dpftrl.Identity(), dpftrl.BLT([0.8], [0.3]))
  restarts = [(t, others[rng.integers(3)]) for t in at()]
  noise = run_noise.RunNoise.of(
    7, dpftrl.BLT([0.9], [0.2]), 1.3, changes=changes, restarts=restarts
  )
  # C of all rounds: a block for each stream, columns over their round's noise multiplier.
  whole = np.zeros((7, 7))
  for first, rounds, strategy, _ in noise.streams():
    whole[first : first + rounds, first : first + rounds] = strategy.strategy_matrix(rounds)
  multipliers = [
    [p.noise_multiplier for p in noise.parts if p.first_round <= t][-1] for t in range(7)
  ]
  reached = oracle.worst(whole / multipliers, schema)
  assert run_noise.worst_case([noise], [schema]).value / 1.3 >= reached * (1.0 - 1e-12)


def test_parts_that_are_no_history():
  part = run_noise.Part(0, TREE, 1.0)
  other = run_noise.Part(3, dpftrl.Identity(), 1.0)
  for parts in ((), (other,), (part, part), (part, part._replace(first_round=12))):
    with pytest.raises(ValueError, match='parts must begin'):
      run_noise.RunNoise(12, parts)
  with pytest.raises(ValueError, match='no restart'):
    run_noise.RunNoise(12, (part, other))
