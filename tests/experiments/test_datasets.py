import numpy as np
import pytest

from experiments.stackoverflow import datasets

pytestmark = pytest.mark.tff


@pytest.fixture(name='data', scope='module')
def _data():
  return datasets.load('synthetic', seed=1)


def _batches(data, client=0, **kwargs):
  kwargs = {'batch_size': 4, 'seed': (0, 0), **kwargs}
  return list(
    datasets.client_dataset(data, data.train_clients[client], **kwargs).as_numpy_iterator()
  )


def test_batches_hold_each_sentence_once_an_epoch(data):
  batches = _batches(data, batch_size=5, epochs=3)
  assert [len(x) for x, _ in batches] == [5] * 9 + [3]
  rows = np.concatenate([np.concatenate([x, y[:, -1:]], axis=1) for x, y in batches])
  expected = sorted(map(tuple, data.sentences(data.train_clients[0])))
  for epoch in np.split(rows, 3):
    assert sorted(map(tuple, epoch)) == expected
  for x, y in batches:
    np.testing.assert_array_equal(x[:, 1:], y[:, :-1])


def test_batches_depend_on_seed_round_and_device_alone(data):
  same = _batches(data, seed=(0, 3)), _batches(data, seed=(0, 3))
  for (x0, y0), (x1, y1) in zip(*same, strict=True):
    np.testing.assert_array_equal(x0, x1)
    np.testing.assert_array_equal(y0, y1)
  first = [
    _batches(data, seed=seed, max_sentences=8)[0][0].tobytes() for seed in ((0, 3), (0, 4), (1, 3))
  ]
  assert len(set(first)) == 3
