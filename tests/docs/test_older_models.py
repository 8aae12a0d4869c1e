"""The page on production: what going back to an older model does to the noise, and how to do it."""

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.run import guards
from tests import pages

NUM_ROUNDS, BACK_AT = 2052, 1000
FOLLOWING = slice(BACK_AT, BACK_AT + 100)


def noise_of_models(noising_matrix: np.ndarray, rounds_back: int = 0, share: float = 0.0):
  """Returns the standard deviation of the noise in the model after each round.

  Args:
    noising_matrix: N; row t is the noise of the mean of round t.
    rounds_back: means before round BACK_AT that the model loses.
    share: share of them that it keeps.
  """
  weights = np.ones((NUM_ROUNDS, 1))
  weights[BACK_AT - rounds_back : BACK_AT] = share
  return np.linalg.norm(np.cumsum(weights * noising_matrix, axis=0), axis=1)


def factors(noising_matrix: np.ndarray) -> list[float]:
  """Returns the factors of a row of the page."""
  straight = noise_of_models(noising_matrix)
  cases = [(1, 0.0), (10, 0.0), (100, 0.0), (10, 0.5)]
  noise = [noise_of_models(noising_matrix, *case)[FOLLOWING] for case in cases]
  noise.append(np.hypot(straight[BACK_AT - 10 - 1], straight[: FOLLOWING.stop - BACK_AT]))
  return [float(np.linalg.norm(n) / np.linalg.norm(straight[FOLLOWING])) for n in noise]


@pytest.mark.parametrize(
  'name',
  [
    'identity',
    *(
      pytest.param(n, marks=pytest.mark.slow)
      for n in ('tree_online', 'toeplitz-b342-rms', 'blt-b342-rms')
    ),
  ],
)
def test_noise_after_going_back_is_that_of_the_page(name):
  rows = {row[0].split('`')[1]: row[1:] for row in pages.rows('production.md', 'strategy')}
  assert len(rows) == 4
  noising_matrix = dpftrl.load_strategy(name).noising_matrix(NUM_ROUNDS)
  assert rows[name] == [f'{value:.2f}' for value in factors(noising_matrix)]


@pytest.mark.tff
@pytest.mark.slow
def test_a_loop_goes_back_with_the_noise_of_now(tmp_path):
  import tff_inprocess
  from tests.tff_inprocess import small_processes

  tff_inprocess.use()
  aggregator = dpftrl.CorrelatedNoiseFactory(
    dpftrl.load_strategy('blt-b100'), noise_multiplier=2.0, clip_norm=0.5, report_goal=3
  )
  process, data = small_processes.unweighted(aggregator), small_processes.clients()[:3]
  claim = aggregator.claim(process, participation=dpftrl.MinSep(num_rounds=6, min_sep=1))
  with dpftrl.Run(tmp_path / 'run', claim, delta=1e-6) as run:
    states = [process.initialize()]
    for t in range(3):
      with run.round(['a', 'b', 'c'], row=int(states[-1].aggregator.noise.row)) as round_:
        states.append(process.next(states[-1], data).state)
        round_.released()
    older = states[1]
    with pytest.raises(guards.RepeatedRowError, match='row 1 was given out'):
      with run.round(['a', 'b', 'c'], row=int(older.aggregator.noise.row)):
        pass
    state = older._replace(aggregator=states[-1].aggregator)
    with run.round(['a', 'b', 'c'], row=int(state.aggregator.noise.row)) as round_:
      after = process.next(state, data).state
      round_.released()
    assert int(after.aggregator.noise.row) == run.next_round == 4
  kept, begun = (process.get_model_weights(s).trainable for s in (state, older))
  assert all((a == b).all() for a, b in zip(kept, begun))
