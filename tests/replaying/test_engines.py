"""Whatever brings rows together, what comes out is the same."""

import json
import shutil
import signal
import subprocess
import sys

import hypothesis
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from fl_dpftrl.centralized import partition, sampling
from fl_dpftrl.families import blt, identity
from fl_dpftrl.families import tree_online as tree
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import refusals, schema
from fl_dpftrl.replaying import embedded, replay, runs, tally

BLT = blt.BLT([0.99, 0.7], [0.1, 0.3])


def random_rows(num_rounds, devices, seed, as_text):
  rng = np.random.default_rng(seed)
  rounds, ids = np.nonzero(rng.random((num_rounds, devices)) < 0.2)
  order = rng.permutation(rounds.size)
  rounds, ids = rounds[order], ids[order] - devices // 2
  return rounds, np.char.add('dévice ', ids.astype(str)) if as_text else ids


def write_shards(folder, num_rounds, seed, as_text):
  """A log in two formats: three shards, of rows in no order."""
  folder.mkdir()
  rounds, ids = random_rows(num_rounds, 40, seed, as_text)
  for i in range(3):
    part = slice(i, None, 3)
    schema.write_log(
      folder / f'{i}.parquet', rounds=rounds[part], device_ids=ids[part], num_rounds=num_rounds
    )
  return folder


@pytest.fixture(scope='module')
def spark():
  sql = pytest.importorskip('pyspark.sql')
  pytest.importorskip('pandas')
  if shutil.which('java') is None:
    pytest.skip('Spark needs Java')
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('PYSPARK_PYTHON', sys.executable)
    # Spark runs Python in the child before Java: a fork of this process, whose
    # other threads may hold locks, can crash in it.
    patch.setattr(
      'pyspark.java_gateway.Popen',
      lambda command, preexec_fn, **options: subprocess.Popen(command, **options),
    )
    on_interrupt = signal.getsignal(signal.SIGINT)
    session = (
      sql.SparkSession.builder.master('local[2]')
      .config('spark.ui.enabled', 'false')
      .config('spark.sql.shuffle.partitions', '3')
      .config('spark.log.level', 'OFF')
      # Compiled once and lightly: a short test does not earn the rest back.
      .config('spark.driver.extraJavaOptions', '-XX:TieredStopAtLevel=1')
      .getOrCreate()
    )
    # Spark's own would outlive it, and fail in tests of interrupts.
    signal.signal(signal.SIGINT, on_interrupt)
    yield replay.engine_by_name('spark')
    session.stop()


@pytest.mark.slow
@pytest.mark.parametrize('as_text', [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_spark_gives_the_same_statement(tmp_path, spark, as_text):
  first = runs.Run.of(
    log_lib.read_log(write_shards(tmp_path / '1', 50, 0, as_text)),
    BLT,
    noise_multiplier=4.0,
    changes=((20, 3.0),),
    restarts=(10, 30),
  )
  second = runs.Run.of(
    log_lib.read_log(write_shards(tmp_path / '2', 30, 1, as_text)),
    tree.TreeOnline(),
    noise_multiplier=7.0,
  )
  given = [first, second] if as_text else [first]
  own, other = (
    replay.replay(given, deltas=[1e-6, 1e-9], group_size=3, report_goal=8, engine=engine)
    for engine in (embedded.count, spark)
  )
  assert json.dumps(own.to_json()) == json.dumps(other.to_json())


@pytest.mark.slow
def test_spark_gives_the_same_of_batches_that_were_drawn(tmp_path, spark):
  scheme = sampling.CyclicPoisson(num_rounds=60, num_examples=400, batch_size=12.0, num_parts=2)
  cohorts = list(partition.Partition(scheme=scheme, seed=1).rounds())
  schema.write_log(
    tmp_path / 'l.parquet',
    rounds=np.repeat(np.arange(60), [c.device_ids.size for c in cohorts]),
    device_ids=np.concatenate([c.device_ids for c in cohorts]),
    num_rounds=60,
  )
  run = runs.Run.of(
    log_lib.read_log(tmp_path / 'l.parquet'),
    identity.Identity(),
    noise_multiplier=4.0,
    sampling=scheme,
  )
  own, other = (
    replay.replay(run, deltas=1e-6, engine=engine) for engine in (embedded.count, spark)
  )
  assert own.drawn.holds
  assert json.dumps(own.to_json()) == json.dumps(other.to_json())


@pytest.mark.slow
def test_spark_names_what_is_wrong(tmp_path, spark):
  path = tmp_path / 'l.csv'
  for content, message in (
    ('round,device_id\n0,a\n-1,b\n', 'l.csv, row 2: round must be at least'),
    ('round,device_id\n0,a\n1,b\n0,a\n', "row 3: device 'a' is twice in rou"),
  ):
    path.write_text(content)
    log = log_lib.read_log(path, num_rounds=5)
    with pytest.raises(refusals.LogError, match=message):
      replay.replay(runs.Run.of(log, BLT, noise_multiplier=1.0), deltas=1e-6, engine=spark)


@pytest.mark.slow
def test_what_does_not_fit_is_sorted_on_disk(tmp_path):
  rng = np.random.default_rng(0)
  rounds = np.repeat(np.arange(100), 20_000)
  ids = np.concatenate([rng.choice(300_000, 20_000, replace=False) for _ in range(100)])
  path = tmp_path / 'l.parquet'
  schema.write_log(path, rounds=rounds, device_ids=ids, num_rounds=100)
  run = runs.Run.of(log_lib.read_log(path), BLT, noise_multiplier=1.0)
  # A quarter of the rows at 16 bytes each.
  small = embedded.count([run], memory=32 << 20)
  large = embedded.count([run])
  assert small.most_exposed == large.most_exposed
  assert small.logs[0].witness == large.logs[0].witness
  assert small.exposures.to_dict() == large.exposures.to_dict()


def test_first_fault_is_named_with_any_number_of_threads():
  table = pa.table({'device_id': [1, 2, 2, 3, 4, 4], 'round': [0, 5, 5, 1, 7, 7]})
  log = log_lib.of_table(table, num_rounds=12)
  exposure = tally.Exposure([runs.Run.of(log, BLT, noise_multiplier=1.0).noise])
  tables = [table.slice(i, 1) for i in range(table.num_rows)]
  for threads in (1, 3):
    with pytest.raises(tally.DeviceTwice, match='device 2 is twice in round 5'):
      tally.count(tables, exposure, threads=threads)


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
  log = log_lib.of_table(table, num_rounds=12)
  exposure = tally.Exposure([runs.Run.of(log, BLT, noise_multiplier=1.0).noise])
  whole = tally.count([table], exposure, 3)
  bounds = sorted({0, table.num_rows, *(min(c, table.num_rows) for c in cuts)})
  tables = [table.slice(a, b - a) for a, b in zip(bounds, bounds[1:])]
  cut = tally.count(tables, exposure, 3, threads)
  device = np.array(table.column('device_id').to_pylist())
  middle = device[table.num_rows // 2]
  apart = tally.count([table.filter(device < middle)], exposure, 3).plus(
    tally.count([table.filter(device >= middle)], exposure, 3), 3
  )
  for other in (cut, apart):
    assert other.num_devices == whole.num_devices == len(set(device))
    assert other.most_exposed == whole.most_exposed
    assert other.exposures.to_dict() == whole.exposures.to_dict()
    for a, b in zip(other.logs, whole.logs):
      assert a.witness == b.witness
      assert a.cohorts.to_dict() == b.cohorts.to_dict()
      assert a.separations.to_dict() == b.separations.to_dict()
      assert a.participations.to_dict() == b.participations.to_dict()
      assert a.newcomers.to_dict() == b.newcomers.to_dict()
