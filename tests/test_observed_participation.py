import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_dpftrl import participation


@st.composite
def logs(draw):
  num_rounds = draw(st.integers(1, 8))
  everything = list(itertools.product(range(num_rounds), 'abc'))
  kept = draw(st.lists(st.sampled_from(everything), unique=True))
  return num_rounds, kept


@given(logs())
def test_equals_a_count_by_hand(log):
  num_rounds, rows = log
  by_device = {}
  for round_index, device in rows:
    by_device.setdefault(device, []).append(round_index)
  separations = [
    j - i for rounds in by_device.values() for i, j in itertools.combinations(sorted(rounds), 2)
  ]
  schema = participation.observed(
    np.array([r for r, _ in rows], np.int64), np.array([d for _, d in rows], np.str_), num_rounds
  )
  assert schema.num_rounds == num_rounds
  assert schema.min_sep == min(separations, default=num_rounds)
  assert schema.max_participations == max((len(rounds) for rounds in by_device.values()), default=1)


def test_a_device_twice_in_a_round_is_not_a_separation_of_zero():
  with pytest.raises(ValueError, match='twice'):
    participation.observed(np.array([3, 3]), np.array([7, 7]), 5)


@pytest.mark.parametrize('rounds', [[-1], [5]])
def test_rounds_outside_the_run_are_refused(rounds):
  with pytest.raises(ValueError, match='rounds must lie in 0 to 4'):
    participation.observed(np.array(rounds), np.array([7]), 5)
