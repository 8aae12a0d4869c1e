import numpy as np
import pytest

from fl_dpftrl.simulation import availability
from fl_dpftrl.simulation import population


def test_finds_devices_by_id():
  people = population.Population(['pear', 'apple', 'fig'])
  assert people.num_devices == 3
  found = people.indices(['fig', 'pear', 'pear'])
  assert found.tolist() == [2, 0, 0]
  assert found.dtype == np.int64
  numbered = population.Population([30, 10, 20])
  assert numbered.indices(np.array([20, 30])).tolist() == [2, 0]
  assert numbered.indices(np.array([], np.int64)).size == 0


@pytest.mark.parametrize('unknown', ['grape', 'aaa', 'zzz'])
def test_refuses_a_device_it_does_not_have(unknown):
  people = population.Population(['pear', 'apple', 'fig'])
  with pytest.raises(ValueError, match=f"'{unknown}' is no device"):
    people.indices(['fig', unknown])


@pytest.mark.parametrize('ids', [[], [1.5, 2.5], [[1, 2]], [b'a']])
def test_refuses_what_is_no_list_of_ids(ids):
  with pytest.raises(ValueError, match='device_ids'):
    population.Population(ids)


def test_refuses_two_devices_of_one_id():
  with pytest.raises(ValueError, match="'fig' twice"):
    population.Population(['fig', 'pear', 'fig'])


def test_refuses_a_seed():
  with pytest.raises(ValueError, match='seed'):
    population.Population([1, 2], seed=-1)


def test_habits_are_the_seeds():
  now = 1767225600 - 3600
  nightly = availability.Nightly()
  first, same, other = (
      population.Population(range(400), seed, nightly).available(now)
      for seed in (1, 1, 2)
  )
  assert (first == same).all()
  assert (first != other).any()
  assert population.Population(range(400)).available(now).all()
