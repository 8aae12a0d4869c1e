"""Sums in NumPy: bounds in exact numbers, for any update, and the same whole numbers as TFF's."""

import fractions
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fl_dpftrl.claims import lattice_units
from fl_dpftrl.run import structures, sums

CLIP_NORM = 0.7


def total_of(*updates, unit, clip_norm=CLIP_NORM, zeroing_norm=None):
  size = sum(part.size for part in updates[0])
  total = sums.Sum(size, unit=unit, zeroing_norm=zeroing_norm)
  total.begin(clip_norm)
  return [total.add([part[None] for part in update])[0] for update in updates], total.total


noise_multipliers = st.sampled_from([1e-8, 0.01, 0.5, 1.0, 7.379, 999.0, 2.0**31, 3e9])
narrow = arrays.arrays(np.float32, st.integers(1, 20), elements=st.floats(width=32))
wide = arrays.arrays(np.float64, st.integers(1, 20), elements=st.floats())


@hypothesis.given(
  st.lists(narrow | wide, min_size=1, max_size=3),
  noise_multipliers,
  st.sampled_from([1e-30, 1e-9, 0.7, 1.0, 3e4, 1e30]),
  st.sampled_from([None, 1e-3, 1e20]),
)
@hypothesis.example([np.full(3, 3e38, np.float32)], 1.0, 1e-30, None)
@hypothesis.example([np.full(3, 1e300)], 1.0, 1.0, None)
@hypothesis.example([np.full(3, 1e-300)], 1.0, 1e-30, None)
def test_no_update_is_longer_than_the_clip_norm(update, noise_multiplier, clip_norm, zeroing_norm):
  unit = lattice_units.Unit.of(noise_multiplier)
  (outcome,), total = total_of(update, unit=unit, clip_norm=clip_norm, zeroing_norm=zeroing_norm)
  assert sum(int(k) ** 2 for k in total) <= unit.most_square
  values = np.concatenate([np.asarray(part, np.float64) for part in update])
  if not np.isfinite(values).all():
    assert outcome == sums.REJECTED and not total.any()
    return
  if zeroing_norm is not None and np.abs(values).max() > zeroing_norm:
    assert outcome == sums.ZEROED and not total.any()
    return
  exact = sum(fractions.Fraction(v) ** 2 for v in values.tolist())
  ratio = exact / fractions.Fraction(clip_norm) ** 2
  if ratio > 1 + fractions.Fraction(1, 10**4):
    assert outcome == sums.CLIPPED
  elif ratio < 1 - fractions.Fraction(1, 10**4):
    assert outcome == sums.KEPT
  # Towards zero, and by less than a unit but for the margin.
  most = float(np.abs(values).max()) or 1.0  # The norm itself may be beyond float64.
  with np.errstate(over='ignore'):
    scaled = (
      values / most / max(clip_norm / np.float64(most), math.hypot(*values / most)) / unit.step
    )
  off = np.abs(scaled) - np.abs(total)
  assert (off <= 1.0 + 2.0**-14 * np.abs(scaled)).all() and (
    off >= -1e-6 * np.abs(scaled) - 1e-9
  ).all()
  assert (total * values >= 0).all()


def test_sums_do_not_depend_on_the_order_and_do_not_overflow():
  unit = lattice_units.Unit.of(2.0**-20)  # Finest units: one coordinate may have 2²⁴.
  one = [np.float32([CLIP_NORM, 0.0])]
  size = 600
  outcomes, total = total_of(*[one] * size, unit=unit)
  assert outcomes == ['kept'] * size
  assert total[0] > size * (1 - 2.0**-14) / unit.step and total[0] > 2**31 and total[1] == 0
  rng = np.random.default_rng(3)
  updates = [[rng.normal(size=40).astype(np.float32)] for _ in range(150)]
  np.testing.assert_array_equal(
    total_of(*updates, unit=unit)[1], total_of(*updates[::-1], unit=unit)[1]
  )


@hypothesis.given(
  st.integers(0, 2**32 - 1),
  st.lists(st.sampled_from([0, 1, 7, 128, 300, 1290]), min_size=1, max_size=3).filter(any),
  st.sampled_from([1, 2, 63, 64, 65, 200]),
  st.sampled_from([np.float32, np.float64]),
  st.sampled_from([1e-30, 0.7, 1e30]),
  st.sampled_from([None, 0.2]),
)
@hypothesis.settings(deadline=None, max_examples=60)
def test_a_batch_has_the_bits_of_its_updates_one_by_one(
  seed, sizes, count, kind, clip_norm, zeroing_norm
):
  rng = np.random.default_rng(seed)
  scales = clip_norm * np.exp(rng.normal(-1.0, 2.0, size=(count, 1))) / sum(sizes) ** 0.5
  with np.errstate(over='ignore', under='ignore'):
    batch = [(rng.normal(size=(count, size)) * scales).astype(kind) for size in sizes]
  for value in (0.0, np.nan, np.inf, 1e-45, 3e38):
    for part in batch:
      if part.size and rng.random() < 0.3:
        part[rng.integers(count), :] = value
  unit = lattice_units.Unit.of(1.0)
  single, whole = (sums.Sum(sum(sizes), unit=unit, zeroing_norm=zeroing_norm) for _ in range(2))
  single.begin(clip_norm)
  whole.begin(clip_norm)
  expected = [single.add([part[i : i + 1] for part in batch])[0] for i in range(count)]
  first = count // 3
  outcomes = [whole.add([part[s] for part in batch]) for s in (slice(first), slice(first, None))]
  assert [*outcomes[0], *outcomes[1]] == expected
  np.testing.assert_array_equal(whole.total, single.total)


@pytest.mark.parametrize('cores', [1, 2])
def test_a_batch_of_large_updates_has_the_bits_of_its_updates(cores, monkeypatch):
  monkeypatch.setattr(sums.machine, 'cores', lambda: cores)
  batch = [np.random.default_rng(4).normal(size=(3, 1_300_007)).astype(np.float32) / 900]
  unit = lattice_units.Unit.of(0.5)
  single, whole = (sums.Sum(1_300_007, unit=unit) for _ in range(2))
  single.begin(1.2660)
  whole.begin(1.2660)
  expected = [single.add([part[None]])[0] for part in batch[0]]
  assert whole.add(batch) == expected and set(expected) == {'kept', 'clipped'}
  np.testing.assert_array_equal(whole.total, single.total)


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_rejected_in_any_chunk(value):
  values = np.zeros(100_000, np.float32)
  values[-1] = value
  outcomes, total = total_of([values], unit=lattice_units.Unit.of(1.0))
  assert outcomes == ['rejected'] and not total.any()


@pytest.mark.parametrize('library', ['numpy', 'jax.numpy', 'torch'])
@pytest.mark.parametrize('least', [3000, pytest.param(85_000, marks=pytest.mark.thorough)])
def test_no_clipped_update_of_any_library_is_above_the_bound(library, least):
  """Its square of the norm is compared in whole numbers."""
  array = pytest.importorskip(library).asarray
  rng, clipped = np.random.default_rng(0), 0
  while clipped < least:
    size, clip_norm = int(rng.choice([1, 2, 7, 64, 65, 130])), float(np.exp(rng.uniform(-60, 60)))
    unit = lattice_units.Unit.of(float(np.exp(rng.uniform(-18, 22))))
    values = rng.choice([rng.normal(size=(500, size)), rng.integers(-1, 2, (500, size))])
    values = np.clip(values * clip_norm * np.exp(rng.uniform(0, 40)), -3.3e38, 3.3e38)
    template = structures.Template.of([np.zeros(size, np.float32)])
    (updates,) = template.flat([array(values.astype(np.float32))], is_batch=True)
    total = sums.Sum(size, unit=unit)
    for update in updates:
      total.begin(clip_norm)
      clipped += total.add([update[None]])[0] == sums.CLIPPED
      assert int((total.total.astype(object) ** 2).sum()) <= unit.most_square
