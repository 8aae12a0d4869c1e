"""Logs that a scheme of sampling can have written, and logs that it cannot."""

import dataclasses
import math

import hypothesis
import numpy as np
import pytest
import scipy.stats
from hypothesis import strategies as st

from fl_dpftrl.participation import log_checks
from fl_dpftrl.participation.counts import participation_counts
from fl_dpftrl.participation.rules import sampling
from tests import drawn

SIZES = dict(num_rounds=240, num_examples=2003, batch_size=50, num_parts=4)
EVERY = sorted(sampling.BATCHES)


def happened(rounds):
  columns = drawn.columns(rounds)
  times, ids = columns['rounds'], columns['device_ids']
  order = np.lexsort((times, ids))
  devices = participation_counts.DeviceCounts.of_rows(
    times[order], ids[order], lambda row: int(ids[order[row]])
  )
  return participation_counts.RunCounts(num_rounds=len(rounds), **vars(devices))


def contradictions(rounds, scheme):
  return ' / '.join(scheme.refutations(happened(rounds)))


@pytest.mark.slow
@hypothesis.given(scheme=drawn.schemes(), seed=st.integers(0, 2**40))
def test_batches_drawn_as_said_are_believed(scheme, seed):
  rounds = drawn.batches(scheme, seed)
  assert not contradictions(rounds, scheme)


@pytest.mark.parametrize(
  'ids, told', [([0, 2002], ''), ([3, 2003], 'to 2003'), ([-4, 8], 'its ids are -4 to')]
)
def test_ids_that_are_no_numbers_of_examples_contradict_the_scheme(ids, told):
  scheme = sampling.CyclicPoisson(num_rounds=2, num_examples=2003, batch_size=2)
  found = contradictions([ids, []], scheme)
  assert told in found and bool(found) == bool(told)


@pytest.mark.slow
@pytest.mark.parametrize('scheme', [
  sampling.CyclicPoisson(num_rounds=400, num_examples=90, batch_size=0.7),
  sampling.CyclicPoisson(num_rounds=3000, num_examples=40_000, batch_size=250.5, num_parts=16),
  sampling.CyclicPoisson(num_rounds=500, num_examples=1000, batch_size=190, num_parts=5),
  sampling.CyclicFixedSize(num_rounds=3000, num_examples=40_000, batch_size=250, num_parts=16),
])  # fmt: skip
@pytest.mark.parametrize('seed', [0, 1])
def test_long_runs_are_believed(scheme, seed):
  assert not contradictions(drawn.batches(scheme, seed), scheme)


# What each kind may also be taken for. Shuffling once is a way to shuffle.
MISTAKEN = {('shuffled_once', 'shuffled')}


@pytest.mark.parametrize('said', EVERY)
@pytest.mark.parametrize('true', EVERY)
def test_kinds_are_told_apart(true, said):
  rounds = drawn.batches(sampling.BATCHES[true](**SIZES))
  found = contradictions(rounds, sampling.BATCHES[said](**SIZES))
  assert bool(found) is (true != said and (true, said) not in MISTAKEN)


@pytest.mark.parametrize('name', EVERY)
@pytest.mark.parametrize('change', [
  dict(num_examples=20_030),
  dict(num_examples=1203),
  dict(num_parts=2),
  dict(num_parts=1),
  dict(num_parts=8),
  dict(num_parts=3),
  dict(batch_size=40),
  dict(batch_size=60),
])  # fmt: skip
def test_other_figures_are_not_believed(name, change):
  """Above all those with which an example is drawn with less probability."""
  scheme = sampling.BATCHES[name](**SIZES)
  other = sampling.BATCHES[name](**{**SIZES, **change})
  rounds = drawn.batches(scheme)
  if isinstance(scheme, sampling.Sampled):
    assert contradictions(rounds, other)
  elif not contradictions(rounds, other):
    # Where shuffles look alike, what is guaranteed is true of both.
    seen = happened(rounds)
    assert seen.min_sep >= other.schema.min_sep
    assert seen.max_participations <= other.schema.participations


def fixed_size():
  scheme = sampling.CyclicFixedSize(**SIZES)
  return scheme, drawn.batches(scheme, 3)


def test_an_example_that_changes_its_part():
  scheme, rounds = fixed_size()
  stranger = next(i for i in rounds[4] if i not in rounds[1])
  rounds[1] = np.append(rounds[1][:-1], stranger)
  assert 'came back in another part' in contradictions(rounds, scheme)
  assert 'num_parts=4' in contradictions(rounds, scheme)


def test_more_examples_than_there_are():
  scheme, rounds = fixed_size()
  few = dataclasses.replace(scheme, num_examples=1600)
  assert 'more than the 400 that it has' in contradictions(rounds, few)
  # A single one too many is seen where all are drawn.
  whole = sampling.CyclicPoisson(num_rounds=3, num_examples=8, batch_size=8)
  rounds = [np.arange(9), np.arange(9), np.arange(9)]
  assert '9 examples were in' in contradictions(rounds, whole)


def test_a_round_of_another_size():
  scheme, rounds = fixed_size()
  short = [*rounds[:7], rounds[7][1:], *rounds[8:]]
  assert contradictions(short, scheme) == (
    '1 rounds do not have batch_size=50 examples, the first of them round 7 with 49'
  )
  missing = [*rounds[:7], [], *rounds[8:]]
  assert contradictions(missing, scheme) == ('1 rounds have no examples, the first of them round 7')
  # Poisson batches differ in size, but not by so much.
  poisson = sampling.CyclicPoisson(**SIZES)
  rounds = drawn.batches(poisson)
  for few in (2, 0):
    rounds[7] = rounds[7][:few]
    assert f'a round has {few} examples' in contradictions(rounds, poisson)


@pytest.mark.parametrize('scheme', [sampling.Shuffled, sampling.ShuffledOnce])
def test_an_example_twice_in_a_pass(scheme):
  scheme = scheme(**SIZES)
  rounds = drawn.batches(scheme)
  again = rounds[0][0]
  assert again not in rounds[4]
  rounds[4] = np.append(again, rounds[4][1:])
  assert 'draws were of an example again' in contradictions(rounds, scheme)


def test_an_example_that_misses_a_pass():
  scheme = sampling.Shuffled(**{**SIZES, 'num_examples': 2000})
  rounds = drawn.batches(scheme)
  first, second = rounds[40][0], rounds[44][0]
  assert not contradictions(rounds, scheme)
  rounds[40] = np.append(second, rounds[40][1:])
  assert first not in rounds[44]
  assert 'goes through all of them' in contradictions(rounds, scheme)


def test_an_example_that_is_always_there():
  """A single one hides in figures of all."""
  scheme = sampling.CyclicFixedSize(**SIZES)
  rounds = drawn.batches(scheme)
  for t in range(0, 240, 4):
    if 0 not in rounds[t]:
      rounds[t] = np.append(0, rounds[t][1:])
  found = contradictions(rounds, scheme)
  assert found == ('an example was drawn 60 times, where chance makes about 6 of each')


def test_half_of_the_examples_are_never_drawn():
  """The others return as often from one turn to the next as among all."""
  scheme = sampling.CyclicFixedSize(**SIZES)
  rounds, rng = drawn.batches(scheme), np.random.default_rng(0)
  for part in range(4):
    half = np.unique(np.concatenate(rounds[part::4]))[::2]
    before = half[:50]
    for t in range(part, 240, 4):
      again = rng.hypergeometric(50, 450, 50)
      others = np.setdiff1d(half, before)
      before = np.append(
        rng.choice(before, again, replace=False), rng.choice(others, 50 - again, replace=False)
      )
      rounds[t] = before
  found = contradictions(rounds, scheme)
  assert found.startswith('1,000 examples were drawn at least once, where chance makes about 1,99')
  assert '/' not in found


def test_devices_that_wait_are_not_a_sample():
  """Rounds of random devices, none of those of the nine rounds before."""
  scheme = sampling.CyclicFixedSize(num_rounds=200, num_examples=1000, batch_size=20)
  rng = np.random.default_rng(0)
  rounds = []
  for t in range(200):
    away = np.concatenate([[], *rounds[max(0, t - 9) : t]])
    rounds.append(rng.choice(np.setdiff1d(np.arange(1000), away), 20, replace=False))
  assert '0 times an example was in two successive' in contradictions(rounds, scheme)


def test_sizes_too_much_alike_for_poisson():
  scheme = sampling.CyclicPoisson(**{**SIZES, 'batch_size': 49.5})
  fixed = sampling.CyclicFixedSize(**SIZES)
  rounds = drawn.batches(fixed)
  rounds = [r[t % 2 :] for t, r in enumerate(rounds)]  # 50 and 49 in turn.
  found = contradictions(rounds, scheme)
  assert 'have 47 to 52 examples, where chance makes about' in found


@hypothesis.given(
  trials=st.integers(1, 3000), probability=st.floats(0.0, 1.0), share=st.floats(0.0, 1.0)
)
def test_chances_are_never_understated(trials, probability, share):
  seen = round(share * trials)
  exact = scipy.stats.binom(trials, probability)
  mean = trials * probability
  tail = exact.cdf(seen) if seen <= mean else exact.sf(seen - 1)
  bound = log_checks._log_chance(seen, trials, mean)
  assert tail <= math.exp(min(bound, 0.0)) * (1.0 + 1e-9)


@pytest.mark.parametrize('seen, trials, mean, least', [
  (0, 10, 0.0, -1e-9),
  (10, 10, 10.0, -1e-9),
  (1, 10**12, 0.0, -math.inf),
  (9, 10, 10.0, -math.inf),
  # A million standard deviations' worth of trials, none of it lost.
  (10**15, 10**18, 1e15, -1e-3),
])  # fmt: skip
def test_chances_at_the_ends(seen, trials, mean, least):
  found = log_checks._log_chance(seen, trials, mean)
  assert found >= least
  assert (found < -100.0) == (least == -math.inf)


@pytest.mark.slow
def test_overlaps_and_coverage_have_the_tails_that_are_claimed():
  """By simulation: of many runs few are beyond a bound that is not tiny."""
  scheme = sampling.CyclicFixedSize(num_rounds=12, num_examples=40, batch_size=5, num_parts=2)
  repeats, unseen = [], []
  for seed in range(400):
    rounds = drawn.batches(scheme, seed)
    overlaps = sum(np.intersect1d(a, b).size for a, b in zip(rounds, rounds[2:]))
    if seed < 20:
      assert happened(rounds).separations.to_dict().get(2, 0) == overlaps
    repeats.append(overlaps)
    unseen.append(40 - np.unique(np.concatenate(rounds)).size)
  for values, trials, mean in ((repeats, 50, 50 * 5 / 20), (unseen, 40, 40 * 0.75**6)):
    assert np.mean(values) == pytest.approx(mean, rel=0.03)
    for alarm in (0.3, 0.1, 0.01):
      odd = [v for v in values if log_checks._log_chance(v, trials, mean) < math.log(alarm)]
      assert len(odd) <= alarm * len(values)


def test_bins_that_are_uniform_are_believed_with_the_stated_chance(monkeypatch):
  monkeypatch.setattr(log_checks, '_FALSE_ALARM', 0.02)
  scheme = sampling.SecretBins(24, 24)
  runs = (drawn.batches(scheme, seed, num_devices=1000) for seed in range(300))
  refuted = sum(bool(contradictions(rounds, scheme)) for rounds in runs)
  assert 0 < refuted <= 16  # Of 6 expected; above with a chance of 2e-4.


def test_shuffles_that_look_alike():
  """Turns of two parts, as turns of one that is as large as both."""
  rounds = drawn.batches(sampling.Shuffled(**SIZES))
  for num_parts in (1, 2, 4):
    said = sampling.Shuffled(**{**SIZES, 'num_parts': num_parts})
    assert not contradictions(rounds, said)
  more = sampling.Shuffled(**{**SIZES, 'num_examples': 20_030})
  assert 'again' in contradictions(rounds, more)
  assert 'no part has more than' in contradictions(rounds, more)


@pytest.mark.parametrize('name', ['shuffled', 'shuffled_once'])
def test_runs_shorter_than_a_pass(name):
  scheme = sampling.BATCHES[name](**{**SIZES, 'num_rounds': 7})
  rounds = drawn.batches(scheme)
  assert not contradictions(rounds, scheme)
  rounds[4] = rounds[0]
  assert '50 draws were of an example again' in contradictions(rounds, scheme)
