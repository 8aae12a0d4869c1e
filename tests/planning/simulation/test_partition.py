"""Batches of every scheme: what is exact, and statistics both ways."""

import itertools
import math

import hypothesis
import numpy as np
import pytest
import scipy.stats
from hypothesis import strategies as st

from fl_dpftrl.participation import cyclic
from fl_dpftrl.participation.rules import sampling
from fl_dpftrl.planning.simulation import partition
from tests import drawn, made

EVERY = sorted(sampling.BATCHES)


def cohorts(scheme, seed=0, **kwargs):
  return list(partition.rounds(scheme, seed, **kwargs))


def included(scheme, seed=0):
  """Bool, shape [num_rounds, num_examples]."""
  result = np.zeros((scheme.num_rounds, scheme.num_examples), bool)
  for cohort in cohorts(scheme, seed):
    result[cohort.round, cohort.device_ids] = True
  return result


@pytest.mark.parametrize('name', EVERY)
def test_the_seed_names_every_round(name):
  scheme = sampling.BATCHES[name](num_rounds=30, num_examples=400, batch_size=20, num_parts=3)
  whole = cohorts(scheme, 7)
  for first in (0, 1, 17, 30):
    for a, b in itertools.zip_longest(cohorts(scheme, 7, first=first), whole[first:]):
      assert (a.round, a.started, a.closed) == (b.round, b.started, b.closed)
      np.testing.assert_array_equal(a.device_ids, b.device_ids)
  other = cohorts(scheme, 8)
  assert all(not np.array_equal(a.device_ids, b.device_ids) for a, b in zip(whole, other))


POISSON = sampling.CyclicPoisson(num_rounds=8000, num_examples=63, batch_size=5.25, num_parts=3)


@pytest.mark.slow
def test_poisson_sizes_are_binomial():
  sizes = [c.device_ids.size for c in cohorts(POISSON)]
  expected = scipy.stats.binom(21, 0.25).pmf(np.arange(22)) * 8000
  observed = np.bincount(sizes, minlength=22)
  common = expected > 5
  found = np.append(observed[common], observed[~common].sum())
  meant = np.append(expected[common], expected[~common].sum())
  assert scipy.stats.chisquare(found, meant).pvalue > 1e-4
  # The test would see sizes of another chance.
  other = np.random.default_rng(0).binomial(21, 0.27, 8000)
  odd = np.bincount(other, minlength=22)
  odd = np.append(odd[common], odd[~common].sum())
  assert scipy.stats.chisquare(odd, meant).pvalue < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize(
  'scheme',
  [POISSON, sampling.CyclicFixedSize(num_rounds=8000, num_examples=63, batch_size=5, num_parts=3)],
)
def test_every_example_is_drawn_with_one_probability(scheme):
  """And independently from turn to turn; with Poisson also of each other."""
  q, fixed = scheme.sampling_probability, scheme.batch_size == 5
  rows = included(scheme, 5)
  for part in range(3):
    drawn = rows[part::3, part::3].astype(float)
    turns = len(drawn)
    spread = math.sqrt(q * (1 - q) / turns)
    assert np.abs(drawn.mean(axis=0) - q).max() < 4.5 * spread
    z = (drawn - q) / math.sqrt(q * (1 - q))
    between = z.T @ z / turns
    meant = -1.0 / 20.0 if fixed else 0.0  # Those of a fixed size compete.
    off = between[~np.eye(21, dtype=bool)]
    assert np.abs(off - meant).max() < 5.0 / math.sqrt(turns)
    assert abs(off.mean() - meant) < 0.01
    later = z[1:].T @ z[:-1] / (turns - 1)
    assert np.abs(later).max() < 5.0 / math.sqrt(turns)


@pytest.mark.slow
def test_fixed_size_draws_every_set_alike():
  scheme = sampling.CyclicFixedSize(num_rounds=15_000, num_examples=6, batch_size=2)
  sets = [tuple(c.device_ids) for c in cohorts(scheme)]
  counts = np.unique(sets, axis=0, return_counts=True)[1]
  assert counts.size == math.comb(6, 2)
  assert scipy.stats.chisquare(counts).pvalue > 1e-4


def test_shuffles_are_uniform():
  scheme = sampling.Shuffled(num_rounds=24_000, num_examples=4, batch_size=1)
  places = np.concatenate([c.device_ids for c in cohorts(scheme)])
  orders = places.reshape(-1, 4)
  counts = np.unique(orders, axis=0, return_counts=True)[1]
  assert counts.size == 24
  assert scipy.stats.chisquare(counts).pvalue > 1e-4


SCHEME = sampling.Shuffled(num_rounds=3, num_examples=9, batch_size=2)


@made.cases(
  'change, message',
  (dict(scheme='poisson'), "scheme must be one of poisson.*got 'poisson'"),
  (dict(scheme=cyclic.Cyclic(num_rounds=3, num_examples=9, batch_size=2)), 'scheme must be one of'),
  (dict(seed=-1), 'seed .*-1'),
)
def test_refuses(change, message):
  with pytest.raises(ValueError, match=message):
    partition.rounds(**{'scheme': SCHEME, 'seed': 0, **change})


@hypothesis.given(scheme=drawn.schemes(), seed=st.integers(0, 2**40))
def test_every_round_draws_of_its_part(scheme, seed):
  seen = cohorts(scheme, seed)
  assert [c.round for c in seen] == list(range(scheme.num_rounds))
  for cohort in seen:
    ids = cohort.device_ids
    assert ids.dtype == np.int64
    assert (np.diff(ids) > 0).all()
    assert (ids % scheme.num_parts == cohort.round % scheme.num_parts).all()
    assert not ids.size or 0 <= ids[0] <= ids[-1] < scheme.num_examples
    # What is left over of equal parts is never drawn.
    assert (ids < scheme.num_parts * scheme.part_size).all()
    if not isinstance(scheme, sampling.CyclicPoisson):
      assert ids.size == scheme.batch_size
    assert cohort.started < cohort.closed


@hypothesis.given(scheme=drawn.schemes(), seed=st.integers(0, 2**40))
def test_passes_visit_every_example_once(scheme, seed):
  hypothesis.assume(isinstance(scheme, sampling.Shuffled))
  rows = included(scheme, seed)
  for part in range(scheme.num_parts):
    turns = rows[part :: scheme.num_parts, part :: scheme.num_parts]
    turns = turns[:, : scheme.part_size]
    passes = [turns[i : i + scheme.pass_turns] for i in range(0, len(turns), scheme.pass_turns)]
    for one in passes:
      assert (one.sum(axis=0) <= 1).all()
      if len(one) == scheme.pass_turns:
        left_out = scheme.part_size % scheme.batch_size
        assert (one.sum(axis=0) == 0).sum() == left_out
      if isinstance(scheme, sampling.ShuffledOnce):
        np.testing.assert_array_equal(one, passes[0][: len(one)])


def test_orders_differ_from_pass_to_pass_and_rounds_may_be_empty():
  scheme = sampling.Shuffled(num_rounds=40, num_examples=200, batch_size=10, num_parts=2)
  firsts = {tuple(c.device_ids // 2) for c in cohorts(scheme) if c.round % 20 < 2}
  assert len(firsts) == 4
  few = sampling.CyclicPoisson(num_rounds=200, num_examples=10, batch_size=0.5)
  sizes = [c.device_ids.size for c in cohorts(few)]
  assert len(sizes) == 200 and min(sizes) == 0 < max(sizes)
