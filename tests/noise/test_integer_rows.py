"""Rows that are made in place, chunk by chunk, are those of the reference."""

import errno
import itertools
import resource
import signal

import numpy as np
import pytest

from fl_dpftrl.mechanisms.families import banded, blt, identity, stamped
from fl_dpftrl.mechanisms.families import banded_toeplitz as toeplitz
from fl_dpftrl.mechanisms.families import tree_online as tree
from fl_dpftrl.noise import integer_rows, normals, recurrence
from tests import every_family, made, oracle
from tests.noise import plain

SEED = bytes(range(32))
# A whole chunk, and a part of another.
SIZE = normals.CHUNK + 5
PUBLISHED = blt.BLT(
  (0.9999999999921251, 0.9944453083640997, 0.8985923474607591, 0.4912001418098778),
  (0.0070314825502323835, 0.10613806907600574, 0.1898159060327625, 0.1966594748073734),
)


def make(strategy, num_rounds, size=SIZE, **kwargs):
  kwargs = dict(seed=SEED, num_threads=1) | kwargs
  return integer_rows.RowMaker(strategy, size=size, num_rounds=num_rounds, **kwargs)


def rows_of(maker, num_rows):
  rows = np.empty((num_rows, maker.size), np.int64)
  norms = [maker.make(row) for row in rows]
  return rows, np.array(norms)


def expected_rows(strategy, num_rounds, size=SIZE):
  source = normals.Normals(SEED)

  def fresh(t, scale):
    drawn = np.empty(size, np.int64)
    source.fill(t, 0, scale, drawn)
    return drawn

  return oracle.rows(plain.stream(strategy, num_rounds, size, fresh), num_rounds)


def assert_are(rows, expected):
  """The order of a sum in float64 may decide about half a unit."""
  assert np.abs(rows - expected).max() <= 1


@pytest.mark.parametrize('num_rounds', [1, 2, pytest.param(7, marks=pytest.mark.slow), 33])
def test_equals_the_reference(example, num_rounds):
  strategy = example(num_rounds)
  maker = make(strategy, num_rounds)
  rows, norms = rows_of(maker, num_rounds)
  assert_are(rows, expected_rows(strategy, num_rounds))
  noising = strategy.noising_matrix(num_rounds)
  np.testing.assert_allclose(norms, np.linalg.norm(noising, axis=1), rtol=1e-9)
  size = recurrence.buffer_bytes(strategy, num_rounds, SIZE)
  assert maker.buffers.nbytes in (size, size + 8 * SIZE)
  with pytest.raises(ValueError, match=f'row {num_rounds} is beyond'):
    maker.make(rows[0])


@pytest.mark.parametrize('block_rounds', [1, 3, 11])
def test_every_family_can_be_stamped(example, block_rounds):
  strategy = stamped.Stamped(example(max(block_rounds, 2)), block_rounds)
  rows, norms = rows_of(make(strategy, 25, 50), 25)
  assert_are(rows, expected_rows(strategy, 25, 50))
  norms_of_n = np.linalg.norm(strategy.noising_matrix(25), axis=1)
  np.testing.assert_allclose(norms, norms_of_n, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize('family', ['blt', 'tree_online', 'dense'])
def test_threads_and_places_of_buffers_change_no_bit(family, tmp_path):
  strategy, size = every_family.example(family, 9), 9 * normals.CHUNK + 3
  expected, _ = rows_of(make(strategy, 9, size), 9)
  for other in (
    make(strategy, 9, size, num_threads=3),
    make(strategy, 9, size, mapped_in=tmp_path),
  ):
    np.testing.assert_array_equal(rows_of(other, 9)[0], expected)
    assert not list(tmp_path.iterdir())  # A mapped file has no name.
    other.close()


def test_threads_get_equal_shares_of_a_row():
  """Nobody waits long for the last one, and a task's memory is bounded."""
  for size, threads in itertools.product((1, 70_000, 4_050_748, 10**8), (1, 2, 3, 7, 12, 16)):
    chunks, at_once = -(-size // normals.CHUNK), integer_rows._chunks_at_a_time(size, threads)
    assert integer_rows._FEWEST_CHUNKS <= at_once <= integer_rows._MOST_CHUNKS
    rounds = -(-chunks // (at_once * threads))
    assert rounds * at_once <= max(integer_rows._FEWEST_CHUNKS, chunks / threads + rounds)


def test_steps_that_rows_have_in_common_change_no_bit(example, monkeypatch):
  """Those near the last round, or a restart, are others."""
  for strategy in (example(80), stamped.Stamped(example(11), 11)):
    shared, _ = rows_of(make(strategy, 80, 20), 80)
    with monkeypatch.context() as patch:
      patch.setattr(recurrence, '_MOST_STEPS', 0)
      each, _ = rows_of(make(strategy, 80, 20), 80)
    np.testing.assert_array_equal(shared, each)


def test_rows_that_are_made_together_are_kept_together():
  """Whatever row the maker is brought to within them."""
  strategy = toeplitz.BandedToeplitz(0.9 ** np.arange(20), None)
  expected, _ = rows_of(make(strategy, 33, 50), 33)
  for reached in range(1, 33, 3):
    first = make(strategy, 33, 50)
    rows_of(first, reached)
    second = make(strategy, 33, 50)
    second.buffers[:] = first.buffers
    second.restore(reached, first.versions)
    np.testing.assert_array_equal(rows_of(second, 33 - reached)[0], expected[reached:])


def test_the_trail_tells_one_unit_in_any_row():
  maker, other = (make(PUBLISHED, 9) for _ in range(2))
  rows_of(maker, 4)
  rows_of(other, 4)
  assert maker.trail == other.trail != 0
  other.buffers[1, 7] += 2.0**12  # As another order of a sum could do, in a later row.
  rows, changed = rows_of(maker, 1)[0], rows_of(other, 1)[0]
  assert np.abs(rows - changed).max() > 0 and maker.trail != other.trail
  assert make(identity.Identity(), 9).trail == 0


def long_runs():
  coefficients = toeplitz.BandedToeplitz(np.cumprod(np.r_[1.0, 1 - 0.5 / np.arange(1, 32)]), None)
  generator = np.random.default_rng(3)
  values = generator.uniform(-0.01, 0.03, (600, 24))
  values[:, 0] = generator.uniform(0.8, 1.2, 600)
  values[np.arange(600)[:, None] < np.arange(24)] = 0.0
  slow = blt.BLT((1.0 - 1.6e-5,), (0.02,))
  return {
    'published blt': (PUBLISHED, 1200),
    'blt of slow decay': (slow, 1200),
    'banded': (banded.Banded(values), 600),
    'banded_toeplitz': (coefficients, 1200),
    'tree_online': (tree.TreeOnline(), 1023),
  }


@pytest.mark.slow
@pytest.mark.parametrize('name', sorted(long_runs()))
def test_stays_with_the_reference_over_many_rounds(name):
  """What a unit in a carried part moves stays a few units."""
  strategy, num_rounds = long_runs()[name]
  rows, _ = rows_of(make(strategy, num_rounds, 40), num_rounds)
  assert np.abs(rows - expected_rows(strategy, num_rounds, 40)).max() <= 3


def test_noise_has_the_standard_deviation_that_is_stated():
  size = 200_000
  rows, norms = rows_of(make(PUBLISHED, 3, size), 3)
  for wrong in (2 / 3, 1.5):
    for row, norm in zip(rows, norms):
      stddev, accepted = norm * 2.0**34, 5 / np.sqrt(2 * size)
      assert abs(np.std(row) / stddev - 1) < accepted
      assert abs(np.std(row) / (wrong * stddev) - 1) > accepted


def test_identities_tell_noise_apart():
  def identity_of(strategy=PUBLISHED, **changes):
    return make(strategy, 9, **{'size': 8, **changes}).identity

  others = [
    identity_of(),
    identity_of(identity.Identity()),
    identity_of(blt.BLT((0.5,), (0.2,))),
    identity_of(size=9),
    identity_of(seed=bytes(32)),
  ]
  assert len(set(others)) == len(others)
  assert all(0 <= value < 2**63 for value in others)


def test_rows_whose_integers_are_too_large_are_refused():
  maker = make(toeplitz.BandedToeplitz([1e-5]), 3)
  with pytest.raises(ValueError, match='row 0 has a norm of 100000, too large'):
    rows_of(maker, 1)


@made.cases(
  'argument, message',
  (dict(size=0), 'size must be at least 1, got 0'),
  (dict(seed=b'short'), 'seed must be 32 bytes'),
)
def test_refuses(argument, message):
  with pytest.raises(ValueError, match=message):
    make(PUBLISHED, 3, **argument)


def test_a_row_that_failed_midway_ends_its_maker():
  maker = make(PUBLISHED, 3)
  with pytest.raises(TypeError):
    maker.make(None)
  with pytest.raises(ValueError, match='failed midway'):
    maker.make(np.empty(SIZE, np.int64))


def test_a_mapped_file_that_the_disk_cannot_hold_is_refused(tmp_path):
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
  try:
    with pytest.raises(OSError, match='bytes of noise memory') as raised:
      make(PUBLISHED, 9, 5_000, mapped_in=tmp_path)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, ignored)
  assert raised.value.filename == str(tmp_path) and raised.value.errno == errno.EFBIG
