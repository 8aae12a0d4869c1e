"""Schemas say what they mean, and refuse what means nothing."""

import itertools
import types

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms.files import files


@pytest.mark.parametrize('cls', [dpftrl.MinSep, dpftrl.FixedSeparation])
@pytest.mark.parametrize('name', ['num_rounds', 'min_sep', 'max_participations'])
@pytest.mark.parametrize('value', [0, -3, 1.5, '7', True])
def test_refuses_anything_but_positive_whole_numbers(cls, name, value):
  arguments = {'num_rounds': 5, 'min_sep': 2, name: value}
  with pytest.raises(ValueError, match=f'{name}.*{value}'):
    cls(**arguments)


def test_num_rounds_is_no_option():
  with pytest.raises(ValueError, match='num_rounds'):
    dpftrl.MinSep(num_rounds=None)


def test_takes_numpy_integers_and_keeps_plain_ones():
  schema = dpftrl.MinSep(num_rounds=np.int64(9), min_sep=np.int32(4))
  assert type(schema.num_rounds) is int and type(schema.min_sep) is int


@pytest.mark.parametrize('num_rounds', range(1, 8))
@pytest.mark.parametrize('min_sep', range(1, 9))
def test_participations_are_the_most_that_fit(num_rounds, min_sep):
  largest = max(
    size
    for size in range(num_rounds + 1)
    for pattern in itertools.combinations(range(num_rounds), size)
    if all(j - i >= min_sep for i, j in zip(pattern, pattern[1:]))
  )
  schema = dpftrl.MinSep(num_rounds=num_rounds, min_sep=min_sep)
  assert schema.participations == largest
  limited = dpftrl.MinSep(num_rounds=num_rounds, min_sep=min_sep, max_participations=2)
  assert limited.participations == min(largest, 2)


def test_a_fixed_separation_is_a_min_sep():
  schema = dpftrl.FixedSeparation(24, 6, 2)
  assert schema == dpftrl.FixedSeparation(num_rounds=24, min_sep=6, max_participations=2)
  assert isinstance(schema, dpftrl.MinSep)
  assert schema != dpftrl.MinSep(24, 6, 2) == schema.as_min_sep()


def test_the_schema_of_a_strategy_file_is_a_participation(tmp_path):
  schema = dpftrl.MinSep(num_rounds=12, min_sep=3)
  dpftrl.save_strategy(tmp_path / 'a.json', dpftrl.Identity(), schema=schema)
  stored, noise = files.load(tmp_path / 'a.json').schema, dict(noise_multiplier=1.0, delta=1e-6)
  assert stored == schema and hash(stored) == hash(schema)
  assert dpftrl.account('identity', stored, **noise) == dpftrl.account('identity', schema, **noise)
  claim = dpftrl.Claim(strategy=dpftrl.Identity(), noise_multiplier=1.0, participation=stored)
  assert type(claim.participation) is dpftrl.MinSep
  assert dpftrl.MinSep(12, 3) != dpftrl.FixedSeparation(12, 3) != stored


@pytest.mark.parametrize(
  'min_sep, most, is_kept', [(3, 2, True), (2, 2, False), (4, 3, False), (1, 1, True)]
)
def test_counts_alone_tell_that_a_schema_was_not_kept(min_sep, most, is_kept):
  """Of counts in place of rows no device is known that broke it."""
  counts = types.SimpleNamespace(min_sep=min_sep, max_participations=most)
  assert (not dpftrl.MinSep(9, 3, 2).contradictions(counts, None, 0)) == is_kept
