"""In process, rounds are what TFF's worker computes."""

import numpy as np
import pytest

from tests.golden import rounds as golden
from tests.tff_inprocess import small_processes as small

pytestmark = pytest.mark.tff

# FedProx is weighted averaging with another loss, which `secure` has too, with the clipping of `dp`
# and `robust`.
# Of families, the one with buffers in each round; tests/tff/aggregators has others in process.
LESS = {'dp', 'fed_prox', 'robust', 'weighted'}
ALWAYS = {f'{golden.FAMILY}blt'}
# By one thread and by eight too: how clients share them does not depend on what they compute.
BY_THREADS = {'unweighted', f'{golden.FAMILY}blt'}
PROCESSES = [
  pytest.param(
    name,
    marks=pytest.mark.thorough
    if name in LESS or (name.startswith(golden.FAMILY) and name not in ALWAYS)
    else (),
  )
  for name in sorted(golden.PROCESSES)
]


def assert_near(ours, theirs, tolerance=2e-6):
  for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
    for mine, other_leaf in zip(one, other, strict=True):
      assert mine.dtype == other_leaf.dtype
      mine = mine.ravel()
      if mine.dtype.kind not in 'if':
        np.testing.assert_array_equal(mine, other_leaf)
        continue
      scale = np.abs(other_leaf).max(initial=0.0)
      np.testing.assert_allclose(
        mine, other_leaf, rtol=1e-6, atol=tolerance * scale, err_msg=f'round {number}'
      )


@pytest.mark.slow
@pytest.mark.parametrize('name', PROCESSES)
def test_rounds_are_those_of_the_worker_by_any_number_of_threads(name, in_process):
  process = golden.PROCESSES[name]()
  with in_process():
    state = process.initialize()
    ours = list(golden.outputs(process, state, golden.NUM_ROUNDS))
  # The worker's threads add in any order, and the gradients of a bias cancel.
  tolerance = 2e-5 if name == 'batch_normalisation' else 2e-6
  assert_near(ours, golden.expected(name), tolerance)
  for threads in (1, 8) if name in BY_THREADS else ():
    with in_process(max_concurrent_clients=threads):
      small.assert_same(golden.outputs(process, state, 2), ours[:2])
