import collections

import hypothesis
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from fl_dpftrl.families import identity
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import logged, schema
from fl_dpftrl.replaying import embedded, runs


@st.composite
def logs(draw):
  """Rows in any order, and num_rounds."""
  num_rounds = draw(st.integers(1, 12))
  rows = draw(st.sets(st.tuples(st.integers(0, num_rounds - 1), st.integers(-3, 3)), min_size=1))
  return draw(st.permutations(sorted(rows))), num_rounds


def table(rows, as_text=False):
  ids = [f'd{d}' if as_text else d for _, d in rows]
  return pa.table({'round': pa.array([r for r, _ in rows]), 'device_id': ids})


def observe(log):
  run = runs.Run.of(log, identity.Identity(), noise_multiplier=1.0)
  (counts,) = embedded.count([run]).logs
  return logged.LoggedParticipation.of(log, counts)


def of_table(rows, num_rounds, as_text=False):
  return observe(log_lib.of_table(table(rows, as_text), num_rounds=num_rounds))


@pytest.mark.slow
@hypothesis.given(log=logs(), as_text=st.booleans())
def test_equals_a_count_by_hand(log, as_text):
  rows, num_rounds = log
  devices = collections.defaultdict(list)
  for round_index, device in sorted(rows):
    devices[device].append(round_index)
  separations = collections.Counter(
    b - a for rounds in devices.values() for a, b in zip(rounds, rounds[1:])
  )
  happened = of_table(rows, num_rounds, as_text)
  assert happened.num_rounds == num_rounds
  assert happened.num_devices == len(devices)
  assert happened.newcomers.to_dict() == collections.Counter(
    rounds[0] for rounds in devices.values()
  )
  assert happened.num_participations == len(rows)
  assert happened.min_sep == min(separations, default=num_rounds)
  assert happened.max_participations == max(map(len, devices.values()))
  assert list(happened.separations.to_dict().items()) == sorted(separations.items())
  counts = collections.Counter(map(len, devices.values()))
  assert list(happened.participations.to_dict().items()) == sorted(counts.items())
  cohorts = collections.Counter(r for r, _ in rows)
  assert happened.cohorts.to_dict() == cohorts
  for goal in (1, 2, 4):
    assert happened.rounds_short_of(goal) == sum(cohorts[r] < goal for r in range(num_rounds))
  gaps = sorted(set(range(num_rounds)) - {r for r, _ in rows})
  assert happened.rounds_without_participants == len(gaps)
  listed = [g for first, last in happened.first_gaps() for g in range(first, last + 1)]
  assert listed == gaps
  if separations:
    device, first, second = happened.witness
    key = int(device[1:]) if as_text else device
    assert {first, second} <= set(devices[key])
    assert second - first == happened.min_sep
  else:
    assert happened.witness is None


def test_nobody_twice():
  happened = of_table([(0, 1), (2, 5)], 30)
  assert (happened.min_sep, happened.max_participations) == (30, 1)


def test_only_the_first_gaps_are_listed():
  rows = [(3 * i, i) for i in range(50)]
  happened = of_table(rows, 10**6)
  assert happened.rounds_without_participants == 10**6 - 50
  assert happened.first_gaps() == [(3 * i + 1, 3 * i + 2) for i in range(10)]


def test_gaps_are_warned_of(tmp_path):
  path = tmp_path / 'l.parquet'
  rows = dict(rounds=[0, 1, 7], device_ids=['a', 'b', 'a'])
  schema.write_log(path, **rows, num_rounds=9)
  (warning,) = observe(log_lib.read_log(path)).warnings()
  assert '6 of 9 rounds have no participants' in warning
  assert 'the first of them 2 to 6' in warning
  schema.write_log(path, rounds=[0, 1], device_ids=['a', 'b'], num_rounds=2)
  assert not observe(log_lib.read_log(path)).warnings()


@pytest.mark.slow
def test_a_million_rows(tmp_path):
  rng = np.random.default_rng(0)
  rounds = np.repeat(np.arange(1000), 1000)
  devices = np.concatenate([rng.choice(60_000, 1000, replace=False) for _ in range(1000)])
  path = tmp_path / 'l.parquet'
  ids = np.char.add('device-', devices.astype(np.str_))
  schema.write_log(path, rounds=rounds, device_ids=ids, num_rounds=1000)
  happened = observe(log_lib.read_log(path))
  order = np.lexsort((rounds, devices))
  same = np.diff(devices[order]) == 0
  apart = np.diff(rounds[order])[same]
  values, counts = np.unique(apart, return_counts=True)
  assert happened.separations.to_dict() == dict(zip(values.tolist(), counts.tolist()))
  assert happened.max_participations == np.bincount(devices).max()
  assert sum(k * v for k, v in happened.participations.to_dict().items()) == rounds.size
