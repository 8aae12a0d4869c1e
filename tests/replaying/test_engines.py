"""Whatever brings rows together, what comes out is the same."""

import dataclasses

import hypothesis
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from fl_dpftrl.families import blt
from fl_dpftrl.logs import claim as claim_lib
from fl_dpftrl.participation import counts
from fl_dpftrl.replaying import embedded, exposure, runs, tally
from tests.replaying import in_memory

BLT = blt.BLT([0.99, 0.7], [0.1, 0.3])
CLAIM = claim_lib.Claim(strategy=BLT, noise_multiplier=1.0)


def random_rows(num_rounds, devices, seed, as_text):
  rng = np.random.default_rng(seed)
  rounds, ids = np.nonzero(rng.random((num_rounds, devices)) < 0.2)
  order = rng.permutation(rounds.size)
  rounds, ids = rounds[order], ids[order] - devices // 2
  return rounds, np.char.add('dévice ', ids.astype(str)) if as_text else ids


def assert_same(one, other):
  """Compares all that two tallies hold."""
  assert (one.num_devices, one.exact, one.most_rounds) == (
    other.num_devices,
    other.exact,
    other.most_rounds,
  )
  assert one.most_exposed == other.most_exposed
  assert one.exposures.to_dict() == other.exposures.to_dict()
  for name in ('num_devices', 'square'):
    assert getattr(one.violations, name) == getattr(other.violations, name)
  assert one.violations.rounds.to_dict() == other.violations.rounds.to_dict()
  for own, given in zip(one.logs, other.logs, strict=True):
    for name, value in vars(own).items():
      counted = getattr(given, name)
      if isinstance(value, counts.Counts):
        value, counted = value.to_dict(), counted.to_dict()
      assert value == counted, name


@pytest.mark.slow
def test_what_does_not_fit_is_sorted_on_disk(monkeypatch):
  monkeypatch.setattr(embedded, '_threads', lambda: 2)  # Each needs some memory.
  rng = np.random.default_rng(0)
  ids = [rng.choice(150_000, 10_000, replace=False) for _ in range(100)]
  table = pa.table({'round': np.repeat(np.arange(100), 10_000), 'device_id': np.concatenate(ids)})
  run = runs.Run(log=in_memory.log_of_table(table, 100), claim=CLAIM)
  # As much as the rows take, of which sorting needs a copy.
  assert_same(embedded.count([run], memory=16 << 20), embedded.count([run]))


def test_first_fault_is_named_with_any_number_of_threads():
  table = pa.table({'device_id': [1, 2, 2, 3, 4, 4], 'round': [0, 5, 5, 1, 7, 7]})
  exposed = exposure.Exposure([CLAIM], [12])
  tables = [table.slice(i, 1) for i in range(table.num_rows)]
  for threads in (1, 3):
    with pytest.raises(tally.DeviceTwice, match='device 2 is twice in round 5'):
      tally.count(tables, exposed, threads=threads)


@pytest.mark.slow
@hypothesis.given(
  seed=st.integers(0, 999),
  cuts=st.lists(st.integers(0, 80), max_size=6),
  as_text=st.booleans(),
  threads=st.integers(1, 3),
)
def test_parts_add_up(seed, cuts, as_text, threads):
  """Tables may end anywhere, and devices may be counted apart."""
  rounds, ids = random_rows(12, 30, seed, as_text)
  order = np.lexsort((rounds, ids))
  table = pa.table({'round': rounds[order], 'device_id': ids[order]})
  exposed = exposure.Exposure([CLAIM], [12])
  whole = tally.count([table], exposed, 3)
  bounds = sorted({0, table.num_rows, *(min(c, table.num_rows) for c in cuts)})
  tables = [table.slice(a, b - a) for a, b in zip(bounds, bounds[1:])]
  cut = tally.count(tables, exposed, 3, threads)
  device = np.array(table.column('device_id').to_pylist())
  middle = device[table.num_rows // 2]
  apart = tally.count([table.filter(device < middle)], exposed, 3).plus(
    tally.count([table.filter(device >= middle)], exposed, 3), 3
  )
  assert whole.num_devices == len(set(device))
  for other in (cut, apart):
    assert_same(other, whole)


def tables(*parts):
  return [
    pa.table({'device_id': [d for d, _ in part], 'round': [t for _, t in part]}) for part in parts
  ]


def count(*parts):
  return tally.count(tables(*parts), exposure.Exposure([CLAIM], [100]))


def test_a_sum_with_an_upper_bound_is_one():
  exact = tally.empty(1)
  bound = dataclasses.replace(exact, exact=False)
  assert not exact.plus(bound, 1).exact and not bound.plus(exact, 1).exact


def test_a_device_over_several_tables():
  counted = count([(1, 0), (1, 7)], [(1, 9)], [(1, 20), (2, 3)], [(3, 1)])
  assert counted.num_devices == 3
  assert counted.logs[0].witness == (1, 7, 9)


@pytest.mark.parametrize(
  'parts',
  [
    ([(1, 0), (2, 7), (1, 9)],),
    ([(1, 0), (2, 7)], [(1, 9)]),
    ([(1, 0), (2, 7)], [(1, 9), (3, 9)]),
    ([(1, 5), (1, 2)],),
    ([(1, 5)], [(1, 2)]),
    ([('b', 5)], [('a', 2)]),
  ],
)
def test_rows_out_of_order_are_refused(parts):
  with pytest.raises(tally.OutOfOrder, match='out of the order'):
    count(*parts)


@pytest.mark.parametrize('as_text', [False, True])
def test_the_engine_keeps_the_order_however_many_threads(monkeypatch, as_text):
  monkeypatch.setattr(embedded, '_BATCH_ROWS', 1 << 9)
  monkeypatch.setattr(embedded.os, 'sched_getaffinity', lambda pid: range(4))
  rounds, ids = np.divmod(np.arange(50_000), 500)
  rng = np.random.default_rng(0)
  order = rng.permutation(rounds.size)
  table = pa.table(
    {'round': rounds[order], 'device_id': ids[order].astype(str) if as_text else ids[order]}
  )
  run = runs.Run(log=in_memory.log_of_table(table, 100), claim=CLAIM)
  counted = embedded.count([run])
  assert counted.num_devices == 500
  assert counted.logs[0].separations.to_dict() == {1: 99 * 500}


@pytest.mark.parametrize('as_text', [False, True])
def test_a_device_again_and_again_in_a_round_is_seen_at_once(as_text):
  """Before any work that grows with the square of the rounds of a device."""
  size = 200_000
  ids = ['a'] * size if as_text else np.zeros(size, np.int64)
  table = pa.table({'device_id': ids, 'round': np.full(size, 3)})
  parts = [table.slice(i, 1000) for i in range(0, size, 1000)]
  message = r"device ('a'|0) is twice in round 3"
  for given in ([table], parts):
    with pytest.raises(tally.DeviceTwice, match=message):
      tally.count(given, exposure.Exposure([CLAIM], [100]))


def test_a_device_twice_is_named_with_its_log_and_round():
  given = tables([(1, 0), (1, 100), (2, 107)], [(2, 107)])
  with pytest.raises(tally.DeviceTwice) as raised:
    tally.count(given, exposure.Exposure([CLAIM, CLAIM], [100, 100]))
  counted = raised.value
  assert (counted.device_id, counted.log_index, counted.round_index) == (2, 1, 7)
