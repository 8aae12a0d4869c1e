"""Files that a user can hand in, damaged: a result, or one line with status 2."""

import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import log_tables
from fl_dpftrl.mechanisms.families import banded, banded_toeplitz, blt, stamped, tree_online
from fl_dpftrl.mechanisms.files import files
from tests.fuzz import commands, mutations

CASES = int(os.environ.get('FUZZ_CASES', '0'))
SCHEMA = dpftrl.MinSep(num_rounds=12, min_sep=3, max_participations=2)


def banded_example():
  coefficients = np.tril(np.ones((12, 3)))
  coefficients[:, 1:] *= 0.25
  return banded.Banded(coefficients)


STRATEGIES = (
  blt.BLT([0.9, 0.5], [0.3, 0.2]),
  tree_online.TreeOnline(),
  banded_example(),
  banded_toeplitz.BandedToeplitz(np.array([1.0, 0.5, 0.25])),
  stamped.Stamped(banded_example(), 5),
)


def strategy_case(folder, seed):
  """A damaged strategy file, or one with a damaged .npz."""
  path = folder / 'a.json'
  strategy = STRATEGIES[seed % len(STRATEGIES)]
  files.save_strategy(path, strategy, schema=SCHEMA, objective='max')
  hit = path
  arrays = list(folder.glob('*.npz'))
  if arrays and seed % 2:
    hit = arrays[0]
  hit.write_bytes(mutations.mutated(hit.read_bytes(), seed))
  return ['describe', str(path)]


SIMULATE = ['simulate', '--population=200', '--report_goal=3', '--num_rounds=2']


def trace_case(folder, seed):
  """A damaged table of times."""
  path, hours = folder / 'trace.parquet', np.arange(0, 96, 2)
  start = np.datetime64('2026-01-05', 's') + hours.astype('timedelta64[h]')
  table = pa.table({'device': hours % 5, 'start': start, 'end': start + np.timedelta64(1, 'h')})
  pq.write_table(table, path)
  path.write_bytes(mutations.mutated(path.read_bytes(), seed))
  return [*SIMULATE, f'--availability={path}']


def runs_case(folder, seed):
  (folder / 'participation.csv').write_text('round,device_id\n0,a\n1,b\n5,a\n')
  planned = dpftrl.MinSep(num_rounds=30, min_sep=2)
  claim = run_claim.Claim(strategy='blt-b100', noise_multiplier=8.0, participation=planned)
  files.save_strategy(folder / 'strategy.json', claim.strategy, schema=planned)
  content = json.dumps(claim.to_json()).encode()
  (folder / 'claim.json').write_bytes(mutations.mutated(content, seed))
  return ['replay', str(folder), '--delta=1e-6']


RNG = np.random.default_rng(0)
ROWS = [
  (t, f'dévice {d}' if d % 5 == 0 else f'device-{d}')
  for t in range(12)
  for d in RNG.choice(40, 8, replace=False)
]


def log_case(folder, seed):
  """A damaged log in Parquet or CSV."""
  suffix = ('.parquet', '.csv')[seed % 2]
  path, (rounds, ids) = folder / f'log{suffix}', zip(*ROWS)
  if suffix == '.parquet':
    times = [1767225600 + 60 * t for t in rounds]
    log_tables.write_log(path, rounds=rounds, device_ids=ids, num_rounds=12, timestamps=times)
  else:
    path.write_text('round,device_id\n' + ''.join(f'{t},{d}\n' for t, d in ROWS))
  path.write_bytes(mutations.mutated(path.read_bytes(), seed))
  return ['replay', f'--log={path}', '--strategy=tree_online', *NOISE]


NOISE = ['--noise_multiplier=4', '--delta=1e-6', '--json']
# Most cases, and those that are quick enough for every change.
CASES_OF = {
  strategy_case: (500, 12),
  trace_case: (200, 12),
  runs_case: (200, 12),
  log_case: (10_000, 36),
}


@pytest.mark.slow
@pytest.mark.parametrize('case', CASES_OF)
def test_damaged_files(tmp_path, case):
  most, few = CASES_OF[case]
  for seed in range(min(CASES, most) or few):
    folder = tmp_path / str(seed)
    folder.mkdir()
    done = commands.apart(case(folder, seed))
    assert not done.fault, seed
    assert case is not log_case or not done.status or 'log.' in done.errors, (seed, done)
