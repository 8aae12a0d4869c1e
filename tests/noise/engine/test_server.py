"""Rows given out by file, each for one round, and found again after a crash."""

import json
import os
import pathlib
import stat

import numpy as np
import pytest

from fl_dpftrl.families import banded_toeplitz as toeplitz
from fl_dpftrl.families import blt, tree_full
from fl_dpftrl.noise import engine
from fl_dpftrl.noise.engine import draws
from fl_dpftrl.noise.engine import maker as makers
from fl_dpftrl.noise.engine import server as servers

BLT = blt.BLT((0.9, 0.5), (0.3, 0.2))
SIZE, NUM_ROUNDS = 50, 40


def serve(folder, strategy=BLT, **kwargs):
  kwargs = (
    dict(size=SIZE, num_rounds=NUM_ROUNDS, stddev=1.0, num_threads=1, snapshot_rows=4) | kwargs
  )
  return engine.RowServer(strategy, folder, **kwargs)


def read(rows, row):
  content = (rows.folder / servers.row_name(row)).read_bytes()
  header = np.frombuffer(content[: servers.HEADER_BYTES], '<i8')
  assert header[:4].tolist() == [servers.MAGIC, rows.identity, row, rows.size]
  return np.frombuffer(content[servers.HEADER_BYTES :], '<f4')


def served_rows(rows, which):
  found = []
  for row in which:
    rows.serve(row)
    found.append(read(rows, row))
  return np.stack(found)


def crash(rows):
  """Leaves the folder as a killed process does: locks are gone, files stay."""
  rows._ahead.wait()
  rows._stack.close()


def test_rows_are_those_of_the_maker_and_one_is_there_at_a_time(tmp_path):
  rows = serve(tmp_path / 'rows', noise_seed=5)
  found = served_rows(rows, range(NUM_ROUNDS))
  maker = engine.RowMaker(
    BLT, size=SIZE, num_rounds=NUM_ROUNDS, stddev=1.0, seed=draws.fixed_seed(5)
  )
  expected = np.empty_like(found)
  for row in expected:
    maker.make(row)
  np.testing.assert_array_equal(found, expected)
  names = {path.name for path in rows.folder.glob('row-*')}
  assert names == {servers.row_name(NUM_ROUNDS - 1)}
  rows.close()
  left = {path.name for path in rows.folder.iterdir()}
  assert not any(name.startswith(('row-', 'ready')) for name in left)


def assert_resumes(folder, strategy, num_rounds, crashed_at, **kwargs):
  kwargs = dict(num_rounds=num_rounds, noise_seed=5) | kwargs
  maker = engine.RowMaker(
    strategy,
    size=SIZE,
    num_rounds=num_rounds,
    stddev=1.0,
    seed=draws.fixed_seed(5),
    memory=kwargs.get('memory', 'memory'),
  )
  expected = np.empty((num_rounds, SIZE), np.float32)
  for row in expected:
    maker.make(row)
  rows = serve(folder, strategy, **kwargs)
  served_rows(rows, range(max(0, crashed_at - 6), crashed_at + 1))
  crash(rows)
  rows = serve(folder, strategy, **kwargs)
  # The round under way is repeated, and its row with it.
  found = served_rows(rows, range(crashed_at, num_rounds))
  np.testing.assert_array_equal(found, expected[crashed_at:])
  rows.close()


@pytest.mark.parametrize('memory', makers.MEMORIES)
def test_resumed_rows_are_the_very_same(example, tmp_path, memory):
  assert_resumes(tmp_path, example(21), 21, 17, memory=memory)


@pytest.mark.parametrize('crashed_at', [0, 3, 4, 20])
def test_resumes_at_any_row(tmp_path, crashed_at):
  assert_resumes(tmp_path, BLT, 21, crashed_at, precision='float32')


def test_few_rows_are_made_again(tmp_path, monkeypatch):
  made = []
  original = engine.RowMaker.make
  monkeypatch.setattr(
    engine.RowMaker, 'make', lambda self, out: made.append(self.row) or original(self, out)
  )
  rows = serve(tmp_path)
  served_rows(rows, range(30))
  rows.close()
  del made[:]
  rows = serve(tmp_path)
  rows.serve(29)
  rows.close()
  assert made[0] == 28 and len(made) <= 3


@pytest.mark.parametrize('snapshot_rows', [0, 4])
def test_without_readable_snapshots_rows_come_from_the_seed(tmp_path, snapshot_rows):
  rows = serve(tmp_path, snapshot_rows=snapshot_rows)
  expected = served_rows(rows, range(20))
  crash(rows)
  files = list(tmp_path.glob('buffer-*'))
  assert bool(files) == bool(snapshot_rows)
  for path in files:
    path.write_bytes(path.read_bytes()[:-4] + b'oops')
  rows = serve(tmp_path, snapshot_rows=snapshot_rows)
  np.testing.assert_array_equal(served_rows(rows, [19])[0], expected[19])
  rows.close()


def test_burnt_rows_are_passed_over(tmp_path):
  whole = serve(tmp_path / 'whole', noise_seed=5)
  expected = served_rows(whole, range(12))
  whole.close()
  rows = serve(tmp_path / 'burnt', noise_seed=5)
  found = served_rows(rows, [0, 1, 5, 11])
  np.testing.assert_array_equal(found, expected[[0, 1, 5, 11]])
  rows.close()


def test_a_row_is_never_given_out_for_two_rounds(tmp_path):
  rows = serve(tmp_path)
  served_rows(rows, range(6))
  rows.serve(5)  # The same round again.
  for row in (4, 0):
    with pytest.raises(ValueError, match=f'row {row} .* row 5 was given out'):
      rows.serve(row)
  crash(rows)
  rows = serve(tmp_path)
  with pytest.raises(ValueError, match='row 4 .* row 5 was given out'):
    rows.serve(4)
  rows.close()


def test_a_row_is_marked_before_it_can_be_read(tmp_path, monkeypatch):
  rows = serve(tmp_path)
  original = os.replace

  def replace(source, target):
    if pathlib.Path(target).name.startswith('row-'):
      assert rows.served() == int(pathlib.Path(target).name[4:])
    original(source, target)

  monkeypatch.setattr(os, 'replace', replace)
  served_rows(rows, range(3))
  rows.close()


def test_a_server_needs_a_number_of_rounds(tmp_path):
  for strategy, most in ((tree_full.TreeFull(8), 'at most 8'), (BLT, 'any number')):
    with pytest.raises(ValueError, match=f'num_rounds=None .* {strategy.family} .* {most}'):
      serve(tmp_path, strategy, num_rounds=None)


def test_a_row_in_the_sum_of_a_completed_round_is_not_given_out_again(tmp_path):
  rows = serve(tmp_path)
  served_rows(rows, range(3))
  rows.serve(2)  # The round failed.
  rows.complete(2)
  with pytest.raises(ValueError, match='row 2 .* is in the sum of a completed'):
    rows.serve(2)
  served_rows(rows, [3])
  rows.close()


@pytest.mark.slow
@pytest.mark.parametrize('snapshot_rows', [3, 4, 16])
def test_more_rounds_than_before_change_no_row(tmp_path, snapshot_rows):
  strategy = toeplitz.BandedToeplitz(0.9 ** np.arange(20), None)
  kwargs = dict(noise_seed=5, snapshot_rows=snapshot_rows)
  whole = serve(tmp_path / 'whole', strategy, num_rounds=40, **kwargs)
  expected = served_rows(whole, range(40))
  whole.close()
  rows = serve(tmp_path / 'rows', strategy, num_rounds=21, **kwargs)
  served_rows(rows, range(21))
  rows.close()
  rows = serve(tmp_path / 'rows', strategy, num_rounds=40, **kwargs)
  np.testing.assert_array_equal(served_rows(rows, range(20, 40)), expected[20:])
  rows.close()


def test_a_snapshot_that_could_not_be_loaded_leaves_nothing(tmp_path, monkeypatch):
  rows = serve(tmp_path)
  expected = served_rows(rows, range(20))
  crash(rows)
  rows = serve(tmp_path)

  def fails(*args, **kwargs):
    raise MemoryError('not enough')

  with monkeypatch.context() as patched:
    patched.setattr(np, 'fromfile', fails)
    with pytest.raises(MemoryError):
      rows.serve(19)
  np.testing.assert_array_equal(served_rows(rows, [19])[0], expected[19])
  rows.close()


def test_two_processes_cannot_serve_the_same_rows(tmp_path):
  rows, other = serve(tmp_path), serve(tmp_path)
  rows.serve(0)
  with pytest.raises(ValueError, match='held by another process'):
    other.serve(0)
  assert (tmp_path / servers.row_name(0)).exists()
  rows.close()


def test_nothing_is_written_before_it_opens(tmp_path):
  rows, other = serve(tmp_path / 'rows'), serve(tmp_path / 'rows')
  assert not (tmp_path / 'rows').exists()
  rows.open()
  rows.close()
  assert serve(tmp_path / 'rows').identity == rows.identity
  with pytest.raises(ValueError, match='taken by another run'):
    other.open()


def test_other_noise_in_the_folder_is_refused(tmp_path):
  rows = serve(tmp_path)
  rows.serve(0)
  rows.close()
  for change in (
    dict(strategy=blt.BLT((0.9, 0.5), (0.3, 0.1))),
    dict(size=SIZE + 1),
    dict(precision='float64'),
    dict(memory='recomputed'),
    dict(noise_seed=5),
  ):
    with pytest.raises(ValueError, match='holds other noise'):
      serve(tmp_path, **change).serve(1)


def test_a_lost_seed_or_mark_ends_the_run(tmp_path):
  rows = serve(tmp_path)
  rows.serve(0)
  rows.close()
  seed = (tmp_path / 'seed').read_bytes()
  (tmp_path / 'seed').unlink()
  with pytest.raises(ValueError, match='seed is lost'):
    serve(tmp_path)
  (tmp_path / 'seed').write_bytes(seed[:8])
  with pytest.raises(ValueError, match='is not a seed'):
    serve(tmp_path)
  (tmp_path / 'seed').write_bytes(seed)
  (tmp_path / 'served.json').write_text('{')
  with pytest.raises(ValueError, match='served.json is not readable'):
    serve(tmp_path).serve(1)


def test_all_that_is_secret_is_its_owners_alone(tmp_path):
  folder = tmp_path / 'rows'
  rows = serve(folder)
  served_rows(rows, range(9))
  assert stat.S_IMODE(folder.stat().st_mode) == 0o700
  for path in folder.iterdir():
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
  rows.close()
  seeds = {serve(tmp_path / str(i)).identity for i in range(3)}
  assert len(seeds) == 3


def test_snapshots_do_not_pile_up(tmp_path):
  rows = serve(tmp_path)
  served_rows(rows, range(NUM_ROUNDS))
  rows.close()
  assert len(list(tmp_path.glob('before-*'))) <= 3
  listed = {
    (buffer, version)
    for path in tmp_path.glob('before-*')
    for buffer, version, _ in json.loads(path.read_text())['buffers']
  }
  assert len(list(tmp_path.glob('buffer-*'))) == len(listed)


@pytest.mark.parametrize('row', [-1, NUM_ROUNDS])
def test_rows_that_there_are_not(tmp_path, row):
  rows = serve(tmp_path)
  with pytest.raises(ValueError, match=f'row {row} is not among the 40'):
    rows.serve(row)
  rows.close()


def test_refuses_arguments(tmp_path):
  with pytest.raises(ValueError, match='snapshot_rows must be .* got -1'):
    serve(tmp_path, snapshot_rows=-1)
  with pytest.raises(ValueError, match='num_rounds must be .* got 0'):
    serve(tmp_path, num_rounds=0)
  with pytest.raises(ValueError, match='bfloat16 is refused'):
    serve(tmp_path, precision='bfloat16')
