"""Rows whose slices actors make are those that one process makes, whatever is lost."""

import os
import signal

import numpy as np
import pytest

from fl_dpftrl.noise import ahead, normals
from fl_dpftrl.noise import rows as rows_lib
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


def here(strategy, size=SIZE):
  rows = np.empty([NUM_ROUNDS, size], np.int64)
  maker = rows_lib.RowMaker(strategy, size=size, num_rounds=NUM_ROUNDS, seed=SEED)
  norms = [maker.make(row) for row in rows]
  maker.close()
  return rows, norms, maker.trail


def made(sliced, num_rounds=NUM_ROUNDS, first=0, size=SIZE):
  rows = np.empty([num_rounds, size], np.int64)
  return rows, [sliced.make(first + t, row, first + t) for t, row in enumerate(rows)]


# No buffers, a fixed number, and as many as the row needs; slices are made by the same maker.
@pytest.mark.parametrize('family', ['identity', 'blt', 'tree_online'])
def test_rows_are_those_of_one_process(family):
  strategy = every_family.example(family, NUM_ROUNDS)
  sliced = slices(strategy)
  rows, known = made(sliced)
  sliced.close()
  expected, norms, trail = here(strategy)
  np.testing.assert_array_equal(rows, expected)
  assert [each.norm for each in known] == norms
  assert known[-1].after == trail and known[1].before == known[0].after


@pytest.mark.parametrize('with_snapshots', [False, True])
def test_a_lost_actor_makes_its_slice_again(tmp_path, with_snapshots):
  strategy = every_family.example('blt', NUM_ROUNDS)
  sliced = slices(strategy, folder=tmp_path / 'noise' if with_snapshots else None)
  first, _ = made(sliced, 9)
  os.kill(ray.get(sliced.actors[1].pid.remote()), signal.SIGKILL)
  rest, _ = made(sliced, 3, first=9)
  sliced.close()
  np.testing.assert_array_equal(np.concatenate([first, rest]), here(strategy)[0])
  if with_snapshots:
    folders = sorted((tmp_path / 'noise').iterdir())
    middle = normals.CHUNK  # Of three chunks, one and two.
    assert [f.name for f in folders] == [f'slice-0-{middle}', f'slice-{middle}-{SIZE}']
    assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in folders)
    assert any(folders[1].glob('before-*'))


def test_another_number_of_actors_reads_no_others_snapshots(tmp_path):
  """The second of four slices has as many chunks as the second of three, and begins elsewhere."""
  strategy, size = every_family.example('blt', NUM_ROUNDS), 10 * normals.CHUNK
  first = slices(strategy, number=4, size=size, folder=tmp_path)
  made(first, 9, size=size)
  first.close()
  other = slices(strategy, number=3, size=size, folder=tmp_path)
  rest, _ = made(other, 3, first=9, size=size)
  other.close()
  np.testing.assert_array_equal(rest, here(strategy, size)[0][9:])


def test_more_actors_than_chunks_are_not_started():
  sliced = slices(every_family.example('identity', NUM_ROUNDS), number=50)
  assert len(sliced.actors) == 3
  sliced.close()


def test_an_abandoned_row_ends():
  sliced = slices(every_family.example('identity', NUM_ROUNDS))
  sliced.abandon()
  with pytest.raises(ahead.Abandoned):
    sliced.make(0, np.empty(SIZE, np.int64), 0)
  sliced.close()


def test_actors_that_do_not_come_back_end_the_row():
  sliced = slices(every_family.example('identity', NUM_ROUNDS), wait_seconds=0.0)
  for actor in sliced.actors:
    ray.kill(actor, no_restart=True)
  with pytest.raises(RuntimeError, match='a slice of a noise row failed|no slice of a noise row'):
    sliced.make(0, np.empty(SIZE, np.int64), 0)
