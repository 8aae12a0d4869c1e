"""Rows that DuckDB sorts, and counts of whole devices that add up however the rows are cut."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from fl_dpftrl.families import blt
from fl_dpftrl.logs import claim as claim_lib
from fl_dpftrl.logs import refusals
from fl_dpftrl.participation import counts
from fl_dpftrl.replaying import count as count_lib
from fl_dpftrl.replaying import runs
from tests.replaying import in_memory

CLAIM = claim_lib.Claim(strategy=blt.BLT([0.99, 0.7], [0.1, 0.3]), noise_multiplier=1.0)


def counted(*tables, num_rounds=100, **options):
  tables = [table.select(['round', 'device_id']) for table in tables]
  logs = [in_memory.log_of_table(table, num_rounds) for table in tables]
  return count_lib.count([runs.Run(log=log, claim=CLAIM) for log in logs], **options)


def random_rows(seed, as_text, num_rounds=100, devices=500):
  rng = np.random.default_rng(seed)
  rounds, ids = np.nonzero(rng.random((num_rounds, devices)) < 0.6)
  order = rng.permutation(rounds.size)
  ids = ids[order] - devices // 2
  texts = np.char.add('dévice ', ids.astype(str))
  return pa.table({'round': rounds[order], 'device_id': texts if as_text else ids})


def plain(value):
  """Returns all that a tally holds, as it can be compared."""
  if isinstance(value, counts.Counts):
    return value.to_dict()
  if dataclasses.is_dataclass(value):
    return {name: plain(own) for name, own in vars(value).items()}
  return tuple(map(plain, value)) if type(value) is tuple else value


@pytest.mark.slow
def test_what_does_not_fit_is_sorted_on_disk(monkeypatch):
  monkeypatch.setattr(count_lib, '_threads', lambda: 2)  # Each needs some memory.
  rng = np.random.default_rng(0)
  ids = [rng.choice(150_000, 10_000, replace=False) for _ in range(100)]
  table = pa.table({'round': np.repeat(np.arange(100), 10_000), 'device_id': np.concatenate(ids)})
  # As much as the rows take, of which sorting needs a copy.
  assert plain(counted(table, memory=16 << 20)) == plain(counted(table))


@pytest.mark.parametrize('as_text', [False, True])
def test_parts_add_up_with_any_number_of_threads(monkeypatch, as_text):
  tables = [random_rows(seed, as_text) for seed in range(2)]
  whole = counted(*tables, num_exposed=3)
  for place, table in enumerate(tables):
    rounds = {}
    for t, device in zip(*(column.to_pylist() for column in table.columns)):
      rounds.setdefault(device, []).append(t)
    apart = np.concatenate([np.diff(sorted(own)) for own in rounds.values()])
    assert whole.logs[place].separations.to_dict() == counts.Counts.of(apart).to_dict()
  assert whole.num_devices == len(rounds) == 500
  for threads in (1, 4):
    monkeypatch.setattr(count_lib, '_BATCH_ROWS', 1 << 11)
    monkeypatch.setattr(count_lib, '_threads', lambda threads=threads: threads)
    assert plain(counted(*tables, num_exposed=3)) == plain(whole)


def test_a_device_over_several_batches(monkeypatch):
  monkeypatch.setattr(count_lib, '_BATCH_ROWS', 1 << 11)
  rounds = [*range(0, 13_500, 3), 5]
  table = pa.table({'round': rounds, 'device_id': ['a'] * 4500 + ['b']})
  found = counted(table, num_rounds=13_500)
  assert (found.num_devices, found.most_rounds) == (2, 4500)
  assert found.logs[0].witness == ('a', 0, 3)


def test_a_sum_with_an_upper_bound_is_one():
  exact = count_lib.Tally((counts.DeviceCounts(),))
  bound = dataclasses.replace(exact, exact=False)
  assert not exact.plus(bound, 1).exact and not bound.plus(exact, 1).exact


@pytest.mark.parametrize('by', ['round, device_id', 'device_id DESC, round', 'device_id, -round'])
def test_an_engine_that_does_not_sort_is_refused(monkeypatch, by):
  monkeypatch.setattr(
    count_lib, '_SORTED', count_lib._SORTED.replace('BY device_id, round', f'BY {by}')
  )
  with pytest.raises(ValueError, match='out of the order'):
    counted(pa.table({'device_id': [1, 2, 1], 'round': [0, 7, 9]}))


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
