"""How batches are drawn: shuffled ones by simulation, relations and refusals."""

import functools
import itertools
import math

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms.families import banded, identity
from fl_dpftrl.participation import accountant
from fl_dpftrl.participation.accounting import adjacencies, sampled_gaussian
from fl_dpftrl.participation.rules import sampling
from tests import made, oracle


def run_of(draws, seed):
  """Rounds and examples of a run with shuffled batches."""
  rng = np.random.default_rng(seed)
  orders = [None] * draws.num_parts
  rounds, examples = [], []
  for t in range(draws.num_rounds):
    part, turn = t % draws.num_parts, t // draws.num_parts
    step = turn % draws.pass_turns
    again = not isinstance(draws, sampling.ShuffledOnce)
    if orders[part] is None or (step == 0 and again):
      orders[part] = rng.permutation(draws.part_size)
    batch = orders[part][step * draws.batch_size :][: draws.batch_size]
    assert len(batch) == draws.batch_size
    rounds += [t] * len(batch)
    examples += list(part * draws.part_size + batch)
  return np.array(rounds), np.array(examples)


SHUFFLES = [
  dict(num_rounds=40, num_examples=23, batch_size=3, num_parts=2),
  dict(num_rounds=37, num_examples=24, batch_size=4),
  dict(num_rounds=19, num_examples=15, batch_size=5, num_parts=3),
  dict(num_rounds=5, num_examples=30, batch_size=2, num_parts=2),
]


@pytest.mark.parametrize('scheme', [sampling.Shuffled, sampling.ShuffledOnce])
@pytest.mark.parametrize('arguments', SHUFFLES)
def test_shuffled_runs_keep_to_their_schema(scheme, arguments):
  draws = scheme(**arguments)
  seen = [oracle.schema_of(*run_of(draws, seed), draws.num_rounds) for seed in range(60)]
  assert min(s.min_sep for s in seen) >= min(draws.schema.min_sep, draws.num_rounds)
  most = max(s.max_participations for s in seen)
  assert most == draws.schema.participations
  if most > 1:  # Nor is the schema wider than what occurs.
    assert min(s.min_sep for s in seen) == draws.schema.min_sep


def test_shuffled_batches_of_the_papers():
  run = dict(num_rounds=2052, num_examples=342_000, batch_size=1000)
  assert sampling.ShuffledOnce(**run).schema == dpftrl.FixedSeparation(
    num_rounds=2052, min_sep=342, max_participations=6
  )
  assert sampling.Shuffled(**run, num_parts=9).schema == dpftrl.MinSep(
    num_rounds=2052, min_sep=9, max_participations=6
  )


def of_kind(kind, **kwargs):
  return kind(**{'num_rounds': 64, 'num_examples': 1000, 'batch_size': 50, **kwargs})


poisson = functools.partial(of_kind, sampling.CyclicPoisson)
fixed = functools.partial(of_kind, sampling.CyclicFixedSize)
shuffled = functools.partial(of_kind, sampling.Shuffled)


@made.cases(
  'make, arguments, message',
  (poisson, {'num_parts': 21}, 'batch_size=50 is more than the 47 .*at most 20 parts'),
  (poisson, {'num_parts': 2000}, 'the 0 examples.*at most 20 parts'),
  (poisson, {'batch_size': 1001}, 'more than the 1000'),
  (poisson, {'batch_size': 0}, 'batch_size'),
  (poisson, {'batch_size': math.nan}, 'batch_size'),
  (poisson, {'num_rounds': 0}, 'num_rounds'),
  (poisson, {'num_examples': 2.5}, 'num_examples'),
  (poisson, {'num_parts': True}, 'num_parts'),
  (fixed, {'batch_size': 2.5}, 'batch_size.*2.5'),
  (shuffled, {'num_examples': 9, 'batch_size': 5, 'num_parts': 2}, 'batch_size=5 is more than'),
)
def test_refuses_sampling_that_cannot_be(make, arguments, message):
  with pytest.raises(ValueError, match=message):
    make(**arguments)


def test_refuses_an_adjacency_without_a_bound():
  with pytest.raises(ValueError, match='one of zero_out, replace_one.*FixedSize.*add_or_remove'):
    fixed().change(identity.Identity(), 'add_or_remove')


@pytest.mark.parametrize('adjacency', ['zero_out', 'replace_one'])
def test_fixed_size_counts_two_clip_norms(adjacency):
  strategy = banded.Banded([[2.0]] * 64)
  found = accountant.account(
    strategy, fixed(num_parts=4), noise_multiplier=6.0, delta=1e-6, adjacency=adjacency
  )
  assert found.sensitivity == 4.0
  assert found.effective_noise_multiplier == 1.5
  assert found.epsilon() == sampled_gaussian.epsilon(
    1.5, 1e-6, probability=0.2, count=16, pair=adjacencies.REPLACED
  )
  assert found.epsilon(1e-6) == found.epsilon() < found.epsilon(1e-7)
  lines = ' '.join(found.assumptions)
  assert 'without replacement, 0.2 of them' in lines
  assert 'replace-one' in lines


def test_poisson_samples_where_an_example_is_replaced():
  account = functools.partial(
    accountant.account, identity.Identity(), noise_multiplier=2.0, delta=1e-6
  )
  epsilons = {name: account(poisson(), adjacency=name).epsilon() for name in poisson().relations}
  assert epsilons['zero_out'] == epsilons['add_or_remove']
  assert epsilons['zero_out'] < epsilons['replace_one'] < account(fixed()).epsilon()


def likelihoods(outputs, matrix, first, others, sigma):
  """Likelihoods of outputs C x + z, where rounds 0 and 2 draw one of two examples."""
  found = np.zeros(len(outputs))
  own = (first, others)
  for x in itertools.product(own, (1.0,), own):
    distance = ((outputs - matrix @ x) ** 2).sum(axis=1)
    found += np.exp(-0.5 * distance / sigma**2) / 4.0
  return found


@pytest.mark.parametrize('replacement, others', [(-1.0, -1.0), (0.0, -1.0)])
def test_correlated_noise_spends_no_more(replacement, others):
  """Two parts of two examples, three rounds of one: by Monte Carlo."""
  matrix = np.array([[0.8, 0.0, 0.0], [0.6, 0.8, 0.0], [0.0, 0.6, 1.0]])
  sigma, epsilon, count = 2.5, 0.8, 400_000
  rng = np.random.default_rng(0)
  drawn = np.stack(
    [rng.choice((1.0, others), count), np.ones(count), rng.choice((1.0, others), count)]
  )
  outputs = (matrix @ drawn).T + sigma * rng.normal(size=(count, 3))
  first = likelihoods(outputs, matrix, 1.0, others, sigma)
  second = likelihoods(outputs, matrix, replacement, others, sigma)
  spent = np.maximum(1.0 - math.exp(epsilon) * second / first, 0.0)
  delta = spent.mean() - 4.0 * spent.std() / math.sqrt(count)
  bound = accountant.account(
    banded.Banded([[0.8, 0.0], [0.8, 0.6], [1.0, 0.6]]),
    sampling.CyclicFixedSize(num_rounds=3, num_examples=4, batch_size=1, num_parts=2),
    noise_multiplier=sigma,
    delta=delta,
  )
  assert bound.epsilon() >= epsilon
  if replacement == -1.0:  # The worst neighbours there are: hardly above.
    assert bound.epsilon() <= 1.05 * epsilon
