"""Rows by device, and counts of whole devices that add up however the rows are cut."""

import dataclasses
import os

import numpy as np
import pyarrow as pa
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import refusals
from fl_dpftrl.mechanisms.families import blt
from fl_dpftrl.participation.counts import participation_counts
from fl_dpftrl.prove.replaying import counting, device_tallies, opened_runs
from tests.prove.replaying import in_memory

CLAIM = run_claim.Claim(strategy=blt.BLT([0.99, 0.7], [0.1, 0.3]), noise_multiplier=1.0)


def counted(*tables, num_rounds=100, **options):
  tables = [table.select(['round', 'device_id']) for table in tables]
  logs = [in_memory.log_of_table(table, num_rounds) for table in tables]
  return counting.count([opened_runs.RecordedRun(log=log, claim=CLAIM) for log in logs], **options)


def random_rows(seed, as_text, num_rounds=100, devices=500):
  rng = np.random.default_rng(seed)
  rounds, ids = np.nonzero(rng.random((num_rounds, devices)) < 0.6)
  order = rng.permutation(rounds.size)
  ids = ids[order] - devices // 2
  texts = np.char.add('dévice ', ids.astype(str))
  return pa.table({'round': rounds[order], 'device_id': texts if as_text else ids})


def plain(value):
  """Returns all that a tally holds, as it can be compared."""
  if isinstance(value, participation_counts.Counts):
    return value.to_dict()
  if dataclasses.is_dataclass(value):
    return {name: plain(own) for name, own in vars(value).items()}
  return tuple(map(plain, value)) if type(value) is tuple else value


@pytest.mark.parametrize('as_text', [False, True])
def test_what_does_not_fit_waits_in_files_by_device(monkeypatch, as_text):
  tables = [random_rows(seed, as_text) for seed in range(2)]
  whole = counted(*tables, num_exposed=3)
  monkeypatch.setattr(counting, '_BYTES', 100_000)  # Nor do those of a file.
  monkeypatch.setattr(counting, '_FILE_BITS', 2)
  assert plain(counted(*tables, num_exposed=3)) == plain(whole)


def test_whole_numbers_that_leave_no_bits_for_rounds_are_numbered_in_their_order():
  table, ends = random_rows(0, False), [-(2**63), 2**63 - 1]
  ids = np.sort([*ends, *np.random.default_rng(0).integers(*ends, 498)])
  apart = table.set_column(1, 'device_id', [ids[table['device_id'].to_numpy() + 250]])
  found, near = (counted(each, num_exposed=500) for each in (apart, table))
  assert [e[1] for e in found.most_exposed] == [ids[e[1] + 250] for e in near.most_exposed]
  assert found.logs[0].id_range == tuple(ends)


@pytest.mark.parametrize('as_text', [False, True])
def test_parts_add_up_with_any_number_of_threads(monkeypatch, as_text):
  tables = [random_rows(seed, as_text) for seed in range(2)]
  whole = counted(*tables, num_exposed=3)
  for place, table in enumerate(tables):
    rounds = {}
    for t, device in zip(*(column.to_pylist() for column in table.columns)):
      rounds.setdefault(device, []).append(t)
    apart = np.concatenate([np.diff(sorted(own)) for own in rounds.values()])
    assert (
      whole.logs[place].separations.to_dict() == participation_counts.Counts.of(apart).to_dict()
    )
  assert whole.num_devices == len(rounds) == 500
  for threads in (1, 4):
    monkeypatch.setattr(counting, '_PART_ROWS', 1 << 11)
    monkeypatch.setattr(os, 'sched_getaffinity', lambda pid, threads=threads: range(threads))
    assert plain(counted(*tables, num_exposed=3)) == plain(whole)


def test_a_device_over_several_batches(monkeypatch):
  monkeypatch.setattr(counting, '_PART_ROWS', 1 << 11)
  rounds = [*range(0, 13_500, 3), 5]
  table = pa.table({'round': rounds, 'device_id': ['a'] * 4500 + ['b']})
  found = counted(table, num_rounds=13_500)
  assert (found.num_devices, found.most_rounds) == (2, 4500)
  assert found.logs[0].witness == ('a', 0, 3)


def test_a_sum_with_an_upper_bound_is_one():
  exact = device_tallies.Tally((participation_counts.DeviceCounts(),))
  bound = dataclasses.replace(exact, exact=False)
  assert not exact.plus(bound, 1).exact and not bound.plus(exact, 1).exact


@pytest.mark.parametrize('as_text', [False, True])
def test_a_device_again_and_again_in_a_round_is_seen_at_once(as_text):
  """Before any work that grows with the square of the rounds of a device."""
  ids = ['a'] * 200_000 if as_text else np.zeros(200_000, np.int64)
  table = pa.table({'device_id': ids, 'round': np.full(200_000, 3)})
  message = r"log, row 200000: device ('a'|0) is twice in round 3"
  with pytest.raises(refusals.LogError, match=message):
    counted(table)


def test_a_device_twice_is_named_with_its_log_and_round():
  first = pa.table({'device_id': [1, 2, 4], 'round': [0, 7, 7]})
  second = pa.table({'device_id': [4, 2, 2, 4], 'round': [9, 7, 7, 9]})
  with pytest.raises(refusals.LogError, match='log, row 3: device 2 is twice in round 7'):
    counted(first, second)


def test_a_group_may_be_larger_than_the_run(path):
  dpftrl.write_log(path, rounds=[0, 1], device_ids=['a', 'b'], num_rounds=2)
  run = dpftrl.open_run(path, 'identity', noise_multiplier=2.0)
  pair, larger = (dpftrl.replay(run, delta=1e-6, group_size=n).observed.epsilon() for n in (2, 3))
  assert 0.0 < pair <= larger
