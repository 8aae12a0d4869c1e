"""A flipped bit in what a run keeps is refused or harmless, never silent."""

import collections
import random

import numpy as np
import pytest

from fl_dpftrl.noise import ahead
from fl_dpftrl.support.files import durable
from fl_dpftrl.tff.training import checkpoints
from tests import made

pytestmark = pytest.mark.tff

STATE = collections.OrderedDict(
  model=[np.arange(3, dtype=np.float32), np.float32(2)], row=np.int64(5)
)


def flips(content: bytes, sample: int | None):
  """The content with each of its bits flipped, or with some of them."""
  bits = range(8 * len(content))
  if sample is not None:
    bits = random.Random(3).sample(bits, min(sample, len(bits)))
  for bit in bits:
    flipped = bytearray(content)
    flipped[bit // 8] ^= 1 << bit % 8
    yield bytes(flipped)


def test_a_checkpoint(tmp_path):
  store = checkpoints.CheckpointFolder(tmp_path, STATE)
  for num_rounds in (1, 2):
    store.save(
      checkpoints.Checkpoint(
        num_rounds=num_rounds, state=STATE, measurements={'loss': 0.5}, burnt=(0,)
      )
    )
  path = tmp_path / 'round-000000002.npz'
  content = path.read_bytes()
  for flipped in flips(content, 1000):
    path.write_bytes(flipped)
    with pytest.raises(ValueError, match='it is damaged'):
      store.load(2)
  latest, problems = store.load_latest()
  assert latest.num_rounds == 1 and len(problems) == 1


def row_of(row, folder):
  """A row of noise that is made with snapshots in a folder."""
  recipe = dict(strategy=made.BLT, size=8, num_rounds=20, seed=bytes(32))
  source, out = ahead.LocalSource(folder, 4, **recipe), np.empty(8, np.int64)
  source.make(row, out, row)
  source.close()
  return out.tobytes()


def test_the_buffers_and_lists_of_snapshots(tmp_path):
  expected = row_of(9, tmp_path)
  buffers, lists = (sorted(tmp_path.glob(f'{name}-*')) for name in ('buffer', 'before'))
  assert buffers and lists
  for path in buffers:
    content = path.read_bytes()
    for flipped in flips(content, 5):
      path.write_bytes(flipped)
      assert row_of(9, tmp_path) == expected
    path.write_bytes(content)
  for path in lists:
    content = path.read_bytes()
    for flipped in flips(content, 300):
      path.write_bytes(flipped)
      with pytest.raises(ValueError, match=path.name):
        durable.read(path)
    path.write_bytes(next(flips(content, 1)))
  assert row_of(9, tmp_path) == expected
