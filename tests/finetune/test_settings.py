"""Settings of a run and their defaults by the number of people."""

import pytest

from experiments.finetune import settings
from tests import made


def test_every_number_of_people_has_settings_that_fit_them():
  for num_people in (*range(1, 450), 2_000, 5_000, 10**6):
    chosen = settings.chosen(num_people, {})
    schema, cohorts = chosen.participation, num_people // chosen.cohort
    assert chosen.cohort >= 1 and cohorts >= chosen.min_sep == schema.min_sep
    # A person comes again with the same cohort, and never more often than the schema allows.
    assert -(-chosen.rounds // chosen.min_sep) <= schema.max_participations
    assert schema.max_participations <= chosen.rounds_per_person


def test_few_people_come_more_often_and_train_fewer_numbers():
  few, many = settings.chosen(54, {}), settings.chosen(5_000, {})
  assert (few.rounds_per_person, few.min_sep, few.cohort, few.rank) == (14, 1, 54, 1)
  assert (many.rounds_per_person, many.min_sep, many.cohort, many.rank) == (1, 14, 357, 4)
  assert (many.clip_norm, few.clip_norm) == (0.1, 0.05)


def test_settings_that_are_given_stay():
  given = dict(rounds=20, rounds_per_person=3, cohort=9, rank=2, clip_norm=0.7, epsilon=4.0)
  chosen = settings.chosen(100, given)
  assert {name: getattr(chosen, name) for name in given} == given
  assert chosen.min_sep == 7 and chosen.blocks == 4
  cohorts = [settings.chosen(n, {}).cohort for n in (60, 420, 616)]
  assert cohorts == [60, 30, 44] and settings.chosen(671, {'cohort': 47}).cohort == 47
  assert settings.chosen(100, {'rounds': 3}).participation.max_participations == 3


@made.cases(
  'num_people, given, message',
  (100, dict(cohort=51, rounds_per_person=7), '--cohort=51 must be at most 50: of 100 people each'),
  (10, dict(rounds_per_person=1), '--cohort=1 must be at most 0: of 10 people each takes part'),
  (100, dict(rounds_per_person=15), '--rounds_per_person=15 must be at most --rounds=14'),
  (50, dict(rounds=4, rounds_per_person=5), '--rounds_per_person=5 must be at most --rounds=4'),
)
def test_settings_that_do_not_fit_are_named(num_people, given, message):
  with pytest.raises(ValueError, match=message):
    settings.chosen(num_people, given)
