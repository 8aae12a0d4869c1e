"""Logs that a scheme of sampling can have written, and logs that it cannot."""

import dataclasses

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fl_dpftrl.participation.counts import participation_counts
from fl_dpftrl.participation.rules import sampling
from tests import drawn, made

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


# What each kind may also be taken for: nothing but probabilities tells Poisson samples from others,
# and shuffled batches from samples of one size. Shuffling once is a way to shuffle.
MISTAKEN = {
  *((name, 'poisson') for name in EVERY),
  *(('shuffled' + once, 'fixed_size') for once in ('', '_once')),
  ('shuffled_once', 'shuffled'),
}


@pytest.mark.parametrize('said', EVERY)
@pytest.mark.parametrize('true', EVERY)
def test_kinds_are_told_apart(true, said):
  rounds = drawn.batches(sampling.BATCHES[true](**SIZES))
  found = contradictions(rounds, sampling.BATCHES[said](**SIZES))
  assert bool(found) is (true != said and (true, said) not in MISTAKEN)


@pytest.mark.parametrize('name', ['shuffled', 'shuffled_once'])
@made.cases(
  'change',
  dict(num_examples=20_030),
  dict(num_examples=1203),
  dict(num_parts=2),
  dict(num_parts=1),
  dict(num_parts=8),
  dict(num_parts=3),
  dict(batch_size=40),
  dict(batch_size=60),
)
def test_shuffles_of_other_figures_that_are_believed_keep_to_their_schema(name, change):
  rounds = drawn.batches(sampling.BATCHES[name](**SIZES))
  other = sampling.BATCHES[name](**{**SIZES, **change})
  if not contradictions(rounds, other):
    seen = happened(rounds)
    assert seen.min_sep >= other.schema.min_sep
    assert seen.max_participations <= other.schema.participations


@made.cases(
  'change, words',
  (dict(num_examples=1203), 'its ids are 0 to'),
  (dict(num_parts=8), 'no multiple of num_parts=8'),
  (dict(num_parts=3), 'no multiple of num_parts=3'),
  (dict(batch_size=40), 'do not have batch_size=40'),
  (dict(batch_size=60), 'do not have batch_size=60'),
)
@pytest.mark.parametrize('name', ['poisson', 'fixed_size'])
def test_samples_of_other_figures_are_not_believed(name, change, words):
  rounds = drawn.batches(sampling.BATCHES[name](**SIZES))
  other = sampling.BATCHES[name](**{**SIZES, **change})
  any_size = name == 'poisson' and 'batch_size' in change
  assert (words in contradictions(rounds, other)) is not any_size


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


@made.cases(
  'name, words',
  ('poisson', ''),
  ('fixed_size', '240 rounds have no examples'),
  ('shuffled', '240 rounds have no examples'),
)
def test_a_run_of_nobody(name, words):
  found = contradictions([[]] * 240, sampling.BATCHES[name](**SIZES))
  assert words in found and bool(found) == bool(words)


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
