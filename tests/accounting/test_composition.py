import math

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl.accounting import composition

SCHEMA = dpftrl.MinSep(num_rounds=12, min_sep=3, max_participations=2)
TREE = dpftrl.TreeOnline()


def test_a_single_stream_has_the_sensitivity_of_its_strategy_to_the_last_bit():
  found = composition.worst_case([composition.Stream(TREE, SCHEMA, 1.7)], unit=1.7)
  assert found == sensitivity_lib.sensitivity(TREE, SCHEMA)


def test_rho_of_independent_streams_adds_up():
  """ρ is (sensitivity / noise multiplier)² / 2 in whatever unit it is stated."""
  parts = [(TREE, 1.5), (dpftrl.BLT([0.9], [0.2]), 3.0), (dpftrl.Identity(), 0.7)]
  squares = [(sensitivity_lib.sensitivity(s, SCHEMA).value / m) ** 2 for s, m in parts]
  streams = [composition.Stream(s, SCHEMA, m) for s, m in parts]
  for unit in (1.5, 8.0):
    found = composition.worst_case(streams, unit=unit)
    assert found.value / unit == pytest.approx(math.sqrt(math.fsum(squares)), rel=1e-14)
    assert found.kind == sensitivity_lib.EXACT
  loose = [streams[0], streams[1]._replace(loose=True)]
  assert composition.worst_case(loose, unit=1.5).kind == sensitivity_lib.UPPER_BOUND


def test_without_noise_the_unit_is_left_out():
  streams = [composition.Stream(TREE, SCHEMA, 0.0), composition.Stream(TREE, SCHEMA, 2.0)]
  alone = sensitivity_lib.sensitivity(TREE, SCHEMA).value
  found = composition.worst_case(streams, unit=0.0)
  assert found.value == pytest.approx(math.sqrt(2.0) * alone, rel=1e-14)
