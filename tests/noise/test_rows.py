"""Rows that are made in place, chunk by chunk, against plain N·Z."""

import errno
import os
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest

from fl_dpftrl.families import banded, blt, identity, stamped
from fl_dpftrl.families import banded_toeplitz as toeplitz
from fl_dpftrl.families import tree_online as tree
from fl_dpftrl.noise import draws, reference, rows

SEED = bytes(range(16))
# A whole chunk, and a part of another.
SIZE = draws.CHUNK + 5
PUBLISHED = blt.BLT(
  (0.9999999999921251, 0.9944453083640997, 0.8985923474607591, 0.4912001418098778),
  (0.0070314825502323835, 0.10613806907600574, 0.1898159060327625, 0.1966594748073734),
)


def make(strategy, num_rounds, size=SIZE, **kwargs):
  kwargs = dict(stddev=0.5, seed=SEED, num_threads=1) | kwargs
  return rows.RowMaker(strategy, size=size, num_rounds=num_rounds, **kwargs)


def rows_of(maker, num_rows):
  rows = np.empty((num_rows, maker.size), np.float32)
  stddevs = [maker.make(row) for row in rows]
  return rows, np.array(stddevs)


def z_of(num_rows, size=SIZE, stddev=0.5):
  """Z itself, in float64 but for its own rounding to float32."""
  source = draws.Draws(SEED)
  z = np.empty((num_rows, size), np.float32)
  for row in range(num_rows):
    for start in range(0, size, draws.CHUNK):
      part = z[row, start : start + draws.CHUNK]
      source.fill(row, start // draws.CHUNK, part)
  return stddev * z.astype(np.float64)


@pytest.mark.parametrize('memory', rows.MEMORIES)
@pytest.mark.parametrize('num_rounds', [1, 2, pytest.param(7, marks=pytest.mark.slow), 33])
def test_equals_the_materialised_matrix(example, num_rounds, memory, tmp_path):
  strategy = example(num_rounds)
  maker = make(strategy, num_rounds, memory=memory, folder=tmp_path)
  rows, stddevs = rows_of(maker, num_rounds)
  noising = strategy.noising_matrix(num_rounds)
  expected = noising @ z_of(noising.shape[1])
  np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=5e-6)
  np.testing.assert_allclose(stddevs, 0.5 * np.linalg.norm(noising, axis=1), rtol=1e-9)
  assert not list(tmp_path.iterdir())  # A mapped file has no name.
  with pytest.raises(ValueError, match=f'row {num_rounds} is beyond'):
    maker.make(rows[0])


@pytest.mark.parametrize('block_rounds', [1, 3, 11])
def test_every_family_can_be_stamped(example, block_rounds):
  strategy = stamped.Stamped(example(max(block_rounds, 2)), block_rounds)
  rows, stddevs = rows_of(make(strategy, 25, 50), 25)
  noising = strategy.noising_matrix(25)
  np.testing.assert_allclose(rows, noising @ z_of(noising.shape[1], 50), rtol=1e-5, atol=5e-6)
  np.testing.assert_allclose(stddevs, 0.5 * np.linalg.norm(noising, axis=1), rtol=1e-9)


@pytest.mark.slow
def test_threads_and_places_of_buffers_change_no_bit(example, tmp_path):
  size = 20 * draws.CHUNK + 3
  expected, _ = rows_of(make(example(9), 9, size), 9)
  for other in (
    make(example(9), 9, size, num_threads=3),
    make(example(9), 9, size, memory='mapped', folder=tmp_path),
  ):
    np.testing.assert_array_equal(rows_of(other, 9)[0], expected)
    other.close()


@pytest.mark.slow
def test_threads_of_linear_algebra_change_no_bit():
  program = (
    'import hashlib, numpy as np\n'
    'from fl_dpftrl.noise import rows\n'
    'from fl_dpftrl.families import banded_toeplitz as toeplitz\n'
    'maker = rows.RowMaker(toeplitz.BandedToeplitz(0.99 ** np.arange(150),'
    ' None), size=20_000, num_rounds=99, stddev=1.0, seed=bytes(16))\n'
    'row = np.empty(20_000, np.float32)\n'
    'rows = hashlib.sha256()\n'
    'for _ in range(40): maker.make(row); rows.update(row)\n'
    'print(rows.hexdigest())'
  )
  found = {
    subprocess.run(
      [sys.executable, '-c', program],
      env={**os.environ, 'OPENBLAS_NUM_THREADS': str(threads)},
      check=True,
      capture_output=True,
      text=True,
    ).stdout
    for threads in (1, 2)
  }
  assert len(found) == 1


def test_rows_that_are_made_together_are_kept_together():
  """Whatever row the maker is brought to within them."""
  strategy = toeplitz.BandedToeplitz(0.9 ** np.arange(20), None)
  expected, _ = rows_of(make(strategy, 33, 50), 33)
  for reached in range(1, 33):
    first = make(strategy, 33, 50)
    rows_of(first, reached)
    second = make(strategy, 33, 50)
    second.buffers[:] = first.buffers
    second.restore(reached, first.versions)
    np.testing.assert_array_equal(rows_of(second, 33 - reached)[0], expected[reached:])


def test_keeps_no_more_vectors_than_the_strategy_says(example):
  for num_rounds in (1, 6, 33):
    strategy = example(num_rounds)
    kept = len(make(strategy, num_rounds).buffers)
    # A tree's last node of all is kept by its height as well, and rows that are
    # being made beside those that they need.
    assert kept <= strategy.memory_copies(num_rounds) + 3
  wide = toeplitz.BandedToeplitz(np.ones(64), None)
  kept = len(make(wide, 99).buffers)
  assert kept <= wide.memory_copies(99) + 9


def long_runs():
  coefficients = toeplitz.BandedToeplitz(np.cumprod(np.r_[1.0, 1 - 0.5 / np.arange(1, 32)]), None)
  generator = np.random.default_rng(3)
  values = generator.uniform(-0.01, 0.03, (2052, 24))
  values[:, 0] = generator.uniform(0.8, 1.2, 2052)
  values[np.arange(2052)[:, None] < np.arange(24)] = 0.0
  slow = blt.BLT((1.0 - 1.6e-5,), (0.02,))
  return {
    'published blt': (PUBLISHED, 4000),
    'blt of slow decay': (slow, 4000),
    'banded': (banded.Banded(values), 2052),
    'banded_toeplitz': (coefficients, 4000),
    'tree_online': (tree.TreeOnline(), 4095),
  }


@pytest.mark.slow
@pytest.mark.parametrize('name', sorted(long_runs()))
def test_float32_stays_close_to_float64_over_thousands_of_rounds(name):
  strategy, num_rounds = long_runs()[name]
  size, num_noise_rows = 40, strategy.num_noise_rows(num_rounds)
  rows, stddevs = rows_of(make(strategy, num_rounds, size), num_rounds)
  exact = reference.reference_stream(strategy, z_of(num_noise_rows, size))
  state = exact.init()
  worst, totals = 0.0, np.zeros((2, size))
  for row, stddev in zip(rows, stddevs):
    expected, state = exact.next(state)
    worst = max(worst, np.max(np.abs(row - expected)) / stddev)
    totals += [row, expected]
  assert worst < 1e-5
  # What is released over time, the prefix sums, does not drift apart either.
  scale = np.std(totals[1])
  assert np.max(np.abs(totals[0] - totals[1])) < 1e-4 * max(scale, 0.5)


def test_float64_buffers_leave_only_the_rounding_of_rows():
  maker = make(PUBLISHED, 500, 40, precision='float64')
  rows, _ = rows_of(maker, 500)
  # Draws are not rounded to float32 before they are summed.
  source, z = draws.Draws(SEED), np.empty((500, 40))
  for row in range(500):
    source.fill(row, 0, z[row])
  z *= 0.5
  exact = reference.reference_stream(PUBLISHED, z)
  state = exact.init()
  for row in rows:
    expected, state = exact.next(state)
    np.testing.assert_allclose(row, expected, rtol=2**-23, atol=1e-12)


def test_noise_has_the_standard_deviation_that_is_stated():
  size = 200_000
  rows, stddevs = rows_of(make(PUBLISHED, 3, size, stddev=2.0), 3)
  for wrong in (2 / 3, 1.5):
    for row, stddev in zip(rows, stddevs):
      accepted = 5 / np.sqrt(2 * size)
      assert abs(np.std(row) / stddev - 1) < accepted
      assert abs(np.std(row) / (wrong * stddev) - 1) > accepted


def test_draws_are_independent_normals_of_row_chunk_and_seed():
  z = np.empty((4, 2, draws.CHUNK))
  for row in range(4):
    for chunk in range(2):
      draws.Draws(SEED).fill(row, chunk, z[row, chunk])
  other = np.empty(draws.CHUNK)
  draws.Draws(bytes(16)).fill(0, 0, other)
  flat = np.vstack([z.reshape(8, -1), other])
  limit = 5 / np.sqrt(draws.CHUNK)
  correlations = np.corrcoef(flat)
  assert np.max(np.abs(correlations - np.eye(9))) < limit
  assert np.max(np.abs(flat.mean(1))) < limit
  fourth = np.mean(flat**4)
  assert abs(fourth - 3.0) < 5 * np.sqrt(96 / flat.size)
  # A part of a chunk is the beginning of the whole.
  part = np.empty(100)
  draws.Draws(SEED).fill(3, 1, part)
  np.testing.assert_array_equal(part, z[3, 1, :100])


def test_no_noise_is_exactly_zero(example):
  rows, stddevs = rows_of(make(example(5), 5, stddev=0.0), 5)
  assert not rows.any() and not stddevs.any()


def test_identities_tell_noise_apart():
  base = dict(size=8, seed=SEED, precision='float32')

  def found(strategy=PUBLISHED, **changes):
    return rows.identity(strategy, **{**base, **changes})

  others = [
    found(),
    found(identity.Identity()),
    found(blt.BLT((0.5,), (0.2,))),
    found(size=9),
    found(seed=bytes(16)),
    found(precision='float64'),
  ]
  assert len(set(others)) == len(others)
  assert all(0 <= value < 2**63 for value in others)


@pytest.mark.parametrize(
  'argument, message',
  [
    (dict(size=0), 'size must be at least 1, got 0'),
    (dict(stddev=-1.0), 'stddev must be .* got -1.0'),
    (dict(stddev=float('nan')), 'stddev must be .* got nan'),
    (dict(memory='disk'), "memory must be one of .* got 'disk'"),
    (dict(precision='float16'), "precision must be one of .* got 'float16'"),
    (dict(precision='bfloat16'), 'precision=bfloat16 is refused'),
  ],
)
def test_refuses(argument, message):
  with pytest.raises(ValueError, match=message):
    make(PUBLISHED, 3, **argument)


def test_a_row_that_failed_midway_ends_its_maker():
  maker = make(PUBLISHED, 3)
  with pytest.raises(TypeError):
    maker.make(None)
  with pytest.raises(ValueError, match='failed midway'):
    maker.make(np.empty(SIZE, np.float32))


def test_a_mapped_file_that_the_disk_cannot_hold_is_refused(tmp_path):
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
  try:
    with pytest.raises(OSError, match='bytes of noise memory') as raised:
      make(PUBLISHED, 9, 5_000, memory='mapped', folder=tmp_path)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, ignored)
  assert raised.value.filename == str(tmp_path) and raised.value.errno == errno.EFBIG
