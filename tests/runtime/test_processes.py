"""In process, rounds are what TFF's worker computes."""

import numpy as np
import pytest
import tensorflow as tf

from tests import every_family
from tests.runtime import small_processes as small

pytestmark = pytest.mark.tff

# No buffers, some, and as many as the round needs; tests/aggregators has every family.
ALWAYS = ('identity', 'blt', 'tree_online')
FAMILIES = [
  pytest.param(name, marks=() if name in ALWAYS else pytest.mark.thorough)
  for name in every_family.FAMILIES
]

# FedProx is weighted averaging with another loss; the sum of `dp` is clipped as in `robust`.
PROCESSES = [
  pytest.param(name, marks=pytest.mark.thorough if name in ('dp', 'fed_prox') else ())
  for name in sorted(small.PROCESSES)
]


@pytest.fixture(name='num_rounds')
def fixture_num_rounds(request):
  return 10 if request.config.getoption('--thorough') else 5


def leaves(value):
  return [np.asarray(leaf) for leaf in tf.nest.flatten(value)]


def rounds(process, state, num_rounds):
  outputs = []
  for number in range(num_rounds):
    output = process.next(state, small.clients(number))
    state = output.state
    outputs.append(leaves(tuple(output)))
  return outputs


def assert_near(ours, theirs):
  for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
    for mine, other_leaf in zip(one, other, strict=True):
      assert mine.dtype == other_leaf.dtype
      if mine.dtype.kind not in 'if':
        np.testing.assert_array_equal(mine, other_leaf)
        continue
      scale = np.abs(other_leaf).max(initial=0.0)
      np.testing.assert_allclose(
        mine, other_leaf, rtol=1e-6, atol=2e-6 * scale, err_msg=f'round {number}'
      )


def assert_same(some, others):
  """Asserts that all rounds agree bit for bit."""
  for one, other in zip(some, others, strict=True):
    for leaf, same in zip(one, other, strict=True):
      np.testing.assert_array_equal(leaf, same)


@pytest.mark.slow
@pytest.mark.parametrize('name', PROCESSES)
def test_a_process_of_tff_is_as_in_the_worker_by_any_number_of_threads(
  name, num_rounds, worker, in_process
):
  process = small.PROCESSES[name]()
  with in_process():
    state = process.initialize()
    ours = rounds(process, state, num_rounds)
  with worker():
    theirs = rounds(process, state, num_rounds)
  assert_near(ours, theirs)
  for threads in (1, 8):
    with in_process(max_concurrent_clients=threads):
      assert_same(rounds(process, state, 2), ours[:2])


@pytest.mark.slow
@pytest.mark.parametrize('family', FAMILIES)
def test_correlated_noise_is_as_in_the_worker_by_any_number_of_threads(
  family, num_rounds, worker, in_process
):
  process = small.correlated(every_family.example(family, num_rounds))
  with in_process():
    state = process.initialize()
    ours = rounds(process, state, num_rounds)
  with worker():
    theirs = rounds(process, state, num_rounds)
  assert_near(ours, theirs)
  for threads in (1, 8):
    with in_process(max_concurrent_clients=threads):
      assert_same(rounds(process, state, 2), ours[:2])
