"""Rows whose slices actors make are those that one process makes, whatever is lost."""

import collections
import os
import signal

import numpy as np
import pytest

from fl_dpftrl.noise import ahead, integer_rows, normals
from tests import every_family

ray = pytest.importorskip('ray')
from fl_dpftrl.noise import shards  # noqa: E402

pytestmark = pytest.mark.slow

SIZE, NUM_ROUNDS = 2 * normals.CHUNK + 100, 12
SEED = bytes(range(32))


@pytest.fixture(scope='module', autouse=True)
def connected(cluster):
  ray.init(address=cluster.address, log_to_driver=False, ignore_reinit_error=True)


def slices(strategy, number=2, size=SIZE, **options):
  return shards.RowSlices(
    number,
    strategy=strategy,
    size=size,
    seed=SEED,
    num_rounds=NUM_ROUNDS,
    snapshot_rows=4,
    **{'folder': None, **options},
  )


def here(strategy):
  rows = np.empty([NUM_ROUNDS, SIZE], np.int64)
  maker = integer_rows.RowMaker(strategy, size=SIZE, num_rounds=NUM_ROUNDS, seed=SEED)
  norms = [maker.make(row) for row in rows]
  maker.close()
  return rows, norms, maker.trail


def made(sliced, num_rounds, first=0):
  rows = np.empty([num_rounds, SIZE], np.int64)
  return rows, [sliced.make(first + t, row, first + t) for t, row in enumerate(rows)]


# No buffers, a fixed number, and as many as the row needs; no actor is started without a chunk.
@pytest.mark.parametrize(
  'family, number, folder', [('identity', 50, None), ('blt', 2, None), ('tree_online', 2, 'noise')]
)
def test_a_lost_actor_makes_its_slice_again(tmp_path, family, number, folder):
  """Rows and what is known of them are those of one process, from a snapshot or the seed."""
  strategy = every_family.example(family, NUM_ROUNDS)
  sliced = slices(strategy, number, folder=folder and tmp_path / folder)
  assert len(sliced.slices) == min(number, 3)
  first, known = made(sliced, 9)
  _, actor = sliced.slices[1]
  os.kill(ray.get(actor.__ray_call__.remote(lambda unused: os.getpid())), signal.SIGKILL)
  rest, others = made(sliced, 3, first=9)
  sliced.close()
  expected, norms, trail = here(strategy)
  np.testing.assert_array_equal(np.concatenate([first, rest]), expected)
  assert [each.norm for each in known + others] == norms
  assert others[-1].after == trail and known[1].before == known[0].after
  if folder:
    middle = normals.CHUNK  # Of three chunks, one and two.
    folders = [tmp_path / folder / f'slice-{at}' for at in (f'0-{middle}', f'{middle}-{SIZE}')]
    assert sorted((tmp_path / folder).iterdir()) == folders
    assert all(one.stat().st_mode & 0o777 == 0o700 for one in folders)
    assert any(folders[1].glob('before-*'))


def test_another_number_of_actors_reads_no_others_snapshots(monkeypatch, tmp_path):
  """Of six chunks, the second of four slices is as long as that of three, and begins elsewhere."""
  ranges = collections.defaultdict(set)

  class Recorded:
    options = lambda self, **unused: self

    def remote(self, *, folder, first_chunk, size, **unused):
      ranges[folder].add((first_chunk, size))

  monkeypatch.setattr(ray, 'remote', lambda of: Recorded())
  for number in range(1, 7):
    slices(every_family.example('blt', NUM_ROUNDS), number, 6 * normals.CHUNK, folder=tmp_path)
  assert len(ranges) == 13 and all(len(one) == 1 for one in ranges.values())


def test_a_row_that_is_late_or_abandoned_ends_and_one_of_a_lost_actor(monkeypatch):
  monkeypatch.setattr(shards, '_POLL_SECONDS', 0.001)
  monkeypatch.setattr(shards, '_WAIT_SECONDS', 0.0)
  sliced = slices(every_family.example('identity', NUM_ROUNDS), number=1)
  make = lambda: sliced.make(0, np.empty(SIZE, np.int64), 0)
  with pytest.raises(RuntimeError, match='no slice of a noise row was made in 0 seconds'):
    make()
  monkeypatch.setattr(shards, '_WAIT_SECONDS', 600.0)
  ray.kill(sliced.slices[0][1], no_restart=True)
  with pytest.raises(RuntimeError, match='a slice of a noise row failed'):
    make()
  sliced.abandon()
  with pytest.raises(ahead.Abandoned):
    make()
  sliced.close()
