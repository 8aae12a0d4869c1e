"""The parts of the replay benchmark that need no long run."""

import collections
import dataclasses
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.replay import cases, generate, peer, run
from fl_dpftrl.families import identity
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.replaying import replay, runs

SMALL = cases.Case(size='small', num_devices=4100, num_rounds=900, cohort=10)


def small(tmp_path, **changes):
  case = dataclasses.replace(SMALL, **changes)
  path = tmp_path / case.file_name
  generate.write(path, case)
  return path


@pytest.mark.parametrize('ids', ['integer', 'text'])
def test_generated_log(tmp_path, ids):
  path = small(tmp_path, ids=ids)
  assert [p.name for p in tmp_path.iterdir()] == [path.name]
  table = pq.read_table(path)
  assert table.num_rows == SMALL.num_participations == 9000
  rounds = table.column('round').to_numpy()
  assert (np.bincount(rounds) == SMALL.cohort).all()
  by_device = collections.defaultdict(list)
  for round_index, device in zip(rounds.tolist(), table.column('device_id').to_pylist()):
    by_device[device].append(round_index)
  apart = np.concatenate([np.diff(r) for r in by_device.values()])
  assert apart.min() >= generate.LEAST_GAP
  # Devices do come back, and later than they could.
  assert apart.size > 4000 and apart.max() > generate.MOST_GAP
  # The peer and ours find what was generated.
  log = log_lib.read_log(path)
  assert log.num_rounds == SMALL.num_rounds
  statement = replay.replay(
    runs.Run.of(log, identity.Identity(), noise_multiplier=8.0), deltas=1e-6
  )
  assert statement.counted.num_participations == 9000
  assert statement.min_sep == peer.min_sep(str(path), 1) == apart.min()
  assert run.of_ours(json.dumps(statement.to_json())) == {
    'min_sep': apart.min(),
    'num_participations': 9000,
  }
