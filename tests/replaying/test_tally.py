import numpy as np
import pyarrow as pa
import pytest

from fl_dpftrl.accounting import run_noise
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.replaying import embedded, runs, tally
from fl_dpftrl.replaying import exposure as exposure_lib
from fl_dpftrl.strategies import files

BLT = files.load_strategy('blt-b100')
NOISE = run_noise.RunNoise.of(100, BLT, 1.0)


def tables(*parts):
  return [
    pa.table({'device_id': [d for d, _ in part], 'round': [t for _, t in part]}) for part in parts
  ]


def count(*parts):
  return tally.count(tables(*parts), exposure_lib.Exposure([NOISE]))


def test_a_device_over_several_tables():
  found = count([(1, 0), (1, 7)], [(1, 9)], [(1, 20), (2, 3)], [(3, 1)])
  assert found.num_devices == 3
  assert found.logs[0].witness == (1, 7, 9)


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
  run = runs.Run(log=log_lib.of_table(table, num_rounds=100), noise=NOISE)
  found = embedded.count([run])
  assert found.num_devices == 500
  assert found.logs[0].separations.to_dict() == {1: 99 * 500}


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
      tally.count(given, exposure_lib.Exposure([NOISE]))


def test_a_device_twice_is_named_with_its_log_and_round():
  noises = [NOISE, NOISE]
  given = tables([(1, 0), (1, 100), (2, 107)], [(2, 107)])
  with pytest.raises(tally.DeviceTwice) as raised:
    tally.count(given, exposure_lib.Exposure(noises))
  found = raised.value
  assert (found.device_id, found.log_index, found.round_index) == (2, 1, 7)
