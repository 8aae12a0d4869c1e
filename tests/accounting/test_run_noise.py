import math

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl.accounting import run_noise

SCHEMA = dpftrl.MinSep(num_rounds=12, min_sep=3, max_participations=2)
TREE = dpftrl.TreeOnline()


def constant(strategy, multiplier):
  return run_noise.RunNoise(12, strategy, multiplier)


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


@pytest.mark.parametrize(
  'arguments, message',
  [
    (dict(num_rounds=0), 'num_rounds must be at least 1'),
    (dict(strategy=dpftrl.TreeFull()), 'tree_full depends on the number of rounds'),
    (dict(strategy=dpftrl.Banded(np.ones((4, 1)))), 'num_rounds=6 is beyond the 4'),
    (dict(noise_multiplier=math.inf), 'noise_multiplier must be finite'),
    (dict(noise_multiplier=math.nan), 'noise_multiplier must be finite'),
    (dict(noise_multiplier='3'), 'noise_multiplier must be finite'),
    (dict(noise_multiplier=-1.0), 'noise_multiplier must be finite'),
    (dict(clip_norm=0.0), 'clip_norm must be positive'),
    (dict(clip_norm=math.inf), 'clip_norm must be positive'),
  ],
)
def test_refuses_what_is_no_noise(arguments, message):
  with pytest.raises(ValueError, match=message):
    run_noise.RunNoise(**(dict(num_rounds=6, strategy=TREE, noise_multiplier=1.0) | arguments))
