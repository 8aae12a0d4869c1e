import collections

import numpy as np
import pytest

from fl_dpftrl.support.files import mark
from fl_dpftrl.tff.training import checkpoints

pytestmark = pytest.mark.tff


def state(value: float):
  return collections.OrderedDict(
    model=[np.full((2, 3), value, np.float32), np.float32(value)],
    noise=collections.OrderedDict(seed=np.array([2**62, -1]), row=np.int64(5)),
  )


def checkpoint(num_rounds: int, value: float = 0.1) -> checkpoints.Checkpoint:
  return checkpoints.Checkpoint(
    num_rounds=num_rounds, state=state(value), measurements={'loss': 0.1 + 0.2}, burnt=(1,)
  )


def folder(tmp_path) -> checkpoints.CheckpointFolder:
  return checkpoints.CheckpointFolder(tmp_path / 'checkpoints', state(0.0))


def test_reads_back_the_same_bits(tmp_path):
  folder(tmp_path).save(checkpoint(3, value=1 / 3))
  loaded, problems = folder(tmp_path).load_latest()
  assert not problems
  assert loaded.num_rounds == 3
  assert loaded.burnt == (1,)
  assert loaded.measurements == {'loss': 0.1 + 0.2}
  expected = state(1 / 3)
  np.testing.assert_array_equal(loaded.state['model'][0], expected['model'][0])
  assert loaded.state['model'][0].dtype == np.float32
  np.testing.assert_array_equal(loaded.state['noise']['seed'], expected['noise']['seed'])
  assert loaded.state['noise']['row'] == 5


def test_arrays_may_grow_in_length(tmp_path):
  grown = state(1.0)
  grown['model'][0] = np.ones((7, 3), np.float32)
  folder(tmp_path).save(checkpoints.Checkpoint(num_rounds=1, state=grown, measurements={}))
  assert folder(tmp_path).load(1).state['model'][0].shape == (7, 3)


def test_keeps_the_newest(tmp_path):
  store = folder(tmp_path)
  for num_rounds in range(8):
    store.save(checkpoint(num_rounds))
  assert sorted(p.name for p in (tmp_path / 'checkpoints').iterdir()) == [
    f'round-{r:09d}.npz' for r in (5, 6, 7)
  ]


def test_no_readable_checkpoint_is_an_error(tmp_path):
  store = folder(tmp_path)
  assert store.load_latest() == (None, [])
  store.save(checkpoint(1))
  (tmp_path / 'checkpoints' / 'round-000000001.npz').write_bytes(b'')
  with pytest.raises(mark.LostStateError, match='round-000000001'):
    store.load_latest()


def test_state_of_another_structure_is_refused(tmp_path):
  folder(tmp_path).save(checkpoint(1))
  other = checkpoints.CheckpointFolder(tmp_path / 'checkpoints', [np.zeros((2, 3)), np.float32(0)])
  with pytest.raises(ValueError, match='another model or mechanism'):
    other.load(1)
