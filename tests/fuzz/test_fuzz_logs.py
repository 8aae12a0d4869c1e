"""Mutated logs of every format end a replay with success or with one line."""

import json
import os
import pathlib

import numpy as np
import pytest

from fl_dpftrl.logs import schema
from tests.commands import lines
from tests.fuzz import commands, mutations

CASES = int(os.environ.get('FUZZ_CASES', '60'))
FLAGS = ['--strategy=tree_online', '--noise_multiplier=4', '--delta=1e-6', '--json']
ROUNDS = 12


def originals(folder: pathlib.Path) -> dict[str, bytes]:
  """Returns logs of the same rows, by the ending of their names."""
  rng = np.random.default_rng(0)
  rows = [
    (t, f'dévice {d}' if d % 5 == 0 else f'device-{d}')
    for t in range(ROUNDS)
    for d in rng.choice(40, 8, replace=False)
  ]
  path = folder / 'original.parquet'
  schema.write_log(
    path,
    rounds=[t for t, _ in rows],
    device_ids=[d for _, d in rows],
    num_rounds=ROUNDS,
    timestamps=[1767225600 + 60 * t for t, _ in rows],
  )
  csv = ''.join(f'{t},{d}\n' for t, d in rows)
  objects = [json.dumps({'round': t, 'device_id': d}) for t, d in rows]
  return {
    '.csv': f'round,device_id\n{csv}'.encode(),
    '.jsonl': '\n'.join([*objects, '']).encode(),
    '.parquet': path.read_bytes(),
  }


@pytest.mark.slow
def test_mutated_logs(tmp_path):
  kinds = list(originals(tmp_path).items())
  for seed in range(-len(kinds), CASES):
    suffix, content = kinds[seed % len(kinds)]
    path = tmp_path / f'log{suffix}'
    path.write_bytes(content if seed < 0 else mutations.mutated(content, seed))
    done = lines.run(['replay', f'--log={path}', *FLAGS])
    ending = commands.Ending(done.returncode, done.stderr)
    assert not ending.fault, (suffix, seed, ending.fault)
    if ending.status:
      assert seed >= 0 and path.name in ending.errors, (suffix, seed, ending)
