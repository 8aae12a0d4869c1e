"""Participation that is followed round by round equals a count of all rounds."""

import numpy as np
import pytest

from fl_dpftrl.guarding import devices
from fl_dpftrl.participation import schemas


@pytest.mark.parametrize('as_text', [False, True])
@pytest.mark.parametrize('population', [7, 40, 5_000])
def test_equals_the_schema_of_all_rounds(population, as_text):
  draws = np.random.default_rng(population)
  followed, rounds, ids = devices.Devices(), [], []
  for t in range(60):
    size = draws.integers(0, min(population, 90), endpoint=True)
    cohort = draws.choice(population, size, replace=False) - 3
    if as_text:
      cohort = np.array([f'device {i}' for i in cohort], np.str_)
    followed.add(cohort)
    rounds += [t] * size
    ids += cohort.tolist()
    if ids:
      expected = schemas.schema_of(np.array(rounds), np.array(ids), t + 1)
      assert followed.schema() == expected
  assert followed.num_devices == len(set(ids))
  names = np.array(sorted(set(ids)))
  last, count = followed.of(names)
  assert count.tolist() == [ids.count(name) for name in names.tolist()]
  where = dict(zip(ids, rounds))
  assert last.tolist() == [where[name] for name in names.tolist()]
  strangers = ['x', 'y'] if as_text else [10**6, -(10**6)]
  assert followed.of(strangers).tolist() == [[-1, -1], [0, 0]]


def test_keys_at_one_slot_are_told_apart():
  followed = devices.Devices()
  followed.add(np.arange(400) * 2**54)
  followed.add(np.arange(100) * 2**54)
  assert followed.num_devices == 400
  assert followed.of(np.arange(401) * 2**54)[1].tolist() == [2] * 100 + [1] * 300 + [0]
