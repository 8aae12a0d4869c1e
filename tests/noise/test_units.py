"""Updates in whole units are no longer than the clip norm, whatever they were."""

import fractions
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import fl_dpftrl as dpftrl
from fl_dpftrl.claims import lattice_units
from fl_dpftrl.mechanisms import lattice
from tests import made


def group(stddev):
  return dpftrl.AdaptiveClipping(1.0, clipped_count_stddev=stddev).group(1e-300, 1)


MULTIPLIERS = st.floats(-26.0, 20.0).map(lambda power: 2.0**power)
# Clip norms of few units, just below a whole number of them.
FEW = st.integers(1, 400).map(lambda square: 2.0**lattice.BITS / math.sqrt(square - 1e-7))


@given(
  st.tuples(MULTIPLIERS | FEW, st.none())
  | st.tuples(MULTIPLIERS.filter(lambda z: z < 1e3), st.floats(1.001, 1e4))
)
def test_update_and_count_are_no_longer_than_the_clip_norm(drawn):
  multiplier, ratio = drawn
  groups = [group(ratio * multiplier)] if ratio else []
  unit = lattice_units.Unit.of(multiplier, groups)
  square = (
    fractions.Fraction(4) ** (lattice.BITS - unit.shift) / fractions.Fraction(multiplier) ** 2
  )
  used = unit.most_square + sum(norm**2 for norm in unit.norms)
  assert used <= square < used + 1
  assert unit.most_square < 1 << 2 * lattice_units.MOST_BITS
  assert unit.shift == 0 or square > 0.999 * 4.0 ** (lattice_units.MOST_BITS - 1)
  # z_u = (1/z² − 1/s²)^(−1/2), and a unit is that much of the clip norm on the lattice.
  of_update = multiplier if ratio is None else multiplier / math.sqrt(1.0 - ratio**-2)
  assert unit.size == pytest.approx(of_update * 2.0**-lattice.BITS, rel=1e-9)
  if ratio is not None:
    assert unit.norms[0] == math.floor(
      fractions.Fraction(2) ** (lattice.BITS - unit.shift) / fractions.Fraction(ratio * multiplier)
    )


@example(12148002303.60426, [1.0], 1.0)  # An update has one unit at most.
@given(
  MULTIPLIERS | FEW | st.none(),
  st.lists(st.floats(-1e38, 1e38), min_size=1, max_size=9),
  st.floats(1e-30, 1e30),
)
def test_whole_numbers_of_an_update(multiplier, values, clip_norm):
  unit = (
    lattice_units.Unit.without_noise(46)
    if multiplier is None
    else lattice_units.Unit.of(multiplier)
  )
  made = unit.integers(values, clip_norm)
  assert sum(int(k) ** 2 for k in made) <= unit.most_square
  size = fractions.Fraction(unit.step) * fractions.Fraction(clip_norm)
  norm = math.hypot(*values)
  for k, value in zip(made.tolist(), map(fractions.Fraction, values)):
    # Towards zero, but for the rounding of a product.
    assert k * value >= 0 and abs(k) * size <= abs(value) * (1 + fractions.Fraction(1, 1 << 50))
    scale = min(1.0, unit.bound * float(size) / norm) if norm else 1.0
    assert abs(k) >= float(abs(value) / size) * scale * (1.0 - 2.0**-24) - 1.0


def test_a_clip_norm_without_noise_is_a_power_of_two():
  unit = lattice_units.Unit.without_noise(24)
  assert unit.step == 2.0**-24 and unit.most_square == 2**48 - 1
  np.testing.assert_array_equal(unit.integers([3.0, -1.0], 4.0), [3 << 22, -1 << 22])


@pytest.mark.parametrize('multiplier', [0.01, 2.0, 300.0])
def test_a_sum_of_as_many_updates_as_there_is_room_for_fits_with_its_noise(multiplier):
  unit = lattice_units.Unit.of(multiplier)
  strategy = made.BLT
  farthest = unit.farthest(strategy)
  norm = np.linalg.norm(strategy.noising_matrix(200), axis=1).max()
  assert farthest * 2.0 ** (unit.shift - lattice.BITS) == pytest.approx(16.0 * norm, rel=1e-6)
  longest, most = math.isqrt(unit.most_square), 2**62 >> unit.shift
  room = unit.room(farthest)
  assert room * longest + farthest <= most < (room + 1) * longest + farthest


@pytest.mark.parametrize('multiplier', [1e-9, 1e-300, 5e-324, 0.0])
def test_noise_that_is_too_small_is_refused(multiplier):
  with pytest.raises(ValueError, match=f'^noise_multiplier={multiplier:g} is too small'):
    lattice_units.Unit.of(multiplier)


def test_counts_whose_noise_is_too_large_are_refused():
  with pytest.raises(ValueError, match='^clipped_count_stddev=1e[+]09 is too large'):
    lattice_units.Unit.of(1.0, [group(1e9)])
