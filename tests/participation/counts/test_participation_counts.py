"""Participation, followed round by round or counted from sorted rows, against brute force."""

import collections
import itertools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fl_dpftrl.participation.counts import participation_counts, seen
from tests import oracle

NAMES = {
  'numbered': lambda devices: np.array(devices, np.int64),
  'whole numbers': lambda devices: np.array(devices, np.int64) * 2**48 - 3,
  'text': lambda devices: np.array([f'dévice {i}' for i in devices], np.str_),
}
COHORTS = st.lists(st.sets(st.integers(0, 9)), min_size=1, max_size=12)


def by_hand(cohorts):
  """The rounds of each device."""
  rounds = collections.defaultdict(list)
  for t, cohort in enumerate(cohorts):
    for device in cohort:
      rounds[device].append(t)
  return rounds


def of_rows(rounds, num_rounds):
  """The counts of devices, whose rounds a dictionary holds."""
  rows = [(device, t) for device in sorted(rounds) for t in rounds[device]]
  owners, times = np.array(rows, np.int64).reshape(-1, 2).T
  devices = participation_counts.DeviceCounts.of_rows(times, owners, lambda row: rows[row][0])
  return participation_counts.RunCounts(num_rounds=num_rounds, **vars(devices))


def check_totals(totals, rounds, num_rounds):
  """Compares what follows from counts with the rounds of each device."""
  pairs = [(t, device) for device, own in rounds.items() for t in own]
  separations = [b - a for own in rounds.values() for a, b in itertools.pairwise(own)]
  expected = oracle.schema_of([t for t, _ in pairs], [d for _, d in pairs], num_rounds)
  assert totals.schema == expected
  assert (totals.num_devices, totals.num_participations) == (len(rounds), len(pairs))
  assert totals.separations.to_dict() == collections.Counter(separations)
  assert totals.participations.to_dict() == collections.Counter(map(len, rounds.values()))


@pytest.mark.parametrize('kind', NAMES)
@hypothesis.given(cohorts=COHORTS)
def test_followed_round_by_round(kind, cohorts):
  followed, everybody = seen.Seen(numbered=kind == 'numbered'), NAMES[kind](range(11))
  for t, cohort in enumerate(cohorts, 1):
    followed.add(NAMES[kind](sorted(cohort)))
    rounds = by_hand(cohorts[:t])
    assert followed.num_rounds == t
    check_totals(followed, rounds, t)
    expected = [(rounds[d][-1] if d in rounds else -1, len(rounds.get(d, ()))) for d in range(11)]
    assert list(zip(*followed.of(everybody).tolist())) == expected


@hypothesis.given(cohorts=COHORTS, cut=st.integers(0, 10))
def test_rows_of_devices_are_counted_and_add_up(cohorts, cut):
  rounds, n = by_hand(cohorts), len(cohorts)
  hypothesis.assume(rounds)
  whole = of_rows(rounds, n)
  check_totals(whole, rounds, n)
  assert whole.cohorts.to_dict() == {t: len(c) for t, c in enumerate(cohorts) if c}
  assert whole.newcomers.to_dict() == collections.Counter(own[0] for own in rounds.values())
  if whole.witness is not None:
    device, first, second = whole.witness
    assert {first, second} <= set(rounds[device]) and second - first == whole.min_sep
  assert (whole.witness is None) == (max(map(len, rounds.values())) == 1)
  parts = ({d: own for d, own in rounds.items() if (d < cut) == low} for low in (False, True))
  first, second = (of_rows(part, n) for part in parts)
  total = first + second
  for name in ('cohorts', 'separations', 'participations', 'newcomers'):
    assert getattr(total, name).to_dict() == getattr(whole, name).to_dict()
  assert total.witness == whole.witness
  for goal in (1, 2, 4):
    assert whole.rounds_short_of(goal) == sum(len(c) < goal for c in cohorts)
  gaps = [t for t, cohort in enumerate(cohorts) if not cohort]
  assert whole.rounds_without_participants == len(gaps)
  if gaps:
    assert whole.first_gap() == (gaps[0], next(t for t in gaps if t + 1 not in gaps))


@pytest.mark.parametrize('kind', NAMES)
def test_many_devices_at_slots_and_numbers_that_grow(kind):
  """With keys at one slot, and cohorts that take a table from few slots to many."""
  draws, followed = np.random.default_rng(0), seen.Seen(numbered=kind == 'numbered')
  times, lasts = np.zeros(20_000, np.int64), np.full(20_000, -1)
  for t, size in enumerate((400, 1, 3000, 0, 9000, 9000)):
    cohort = draws.choice(20_000, size, replace=False)
    followed.add(NAMES[kind](cohort))
    times[cohort] += 1
    lasts[cohort] = t
    found = followed.of(NAMES[kind](np.arange(20_000)))
    assert (found == [lasts, times]).all()
  assert followed.max_participations == times.max()


def test_gaps_are_warned_of():
  (warning,) = of_rows({1: [0, 7], 2: [1]}, 9).warnings()
  assert '6 of 9 rounds have no participants' in warning
  assert 'the first of them 2 to 6' in warning
  (warning,) = of_rows({1: [1, 2]}, 3).warnings()
  assert 'if rounds begin at 1, give first_round=1' in warning
  assert not of_rows({1: [0], 2: [1]}, 2).warnings()
