"""Replays mutated logs of every format.

python -m tests.fuzz.logs --count=1000
"""

import argparse
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterator

import numpy as np

from fl_dpftrl.logs import schema
from tests.fuzz import commands, mutations

_ROUNDS = 12


def _rows() -> list[tuple[int, str]]:
  rng = np.random.default_rng(0)
  return [
    (t, f'dévice {d}' if d % 5 == 0 else f'device-{d}')
    for t in range(_ROUNDS)
    for d in rng.choice(40, 8, replace=False)
  ]


def originals(folder: pathlib.Path) -> dict[str, bytes]:
  """Returns logs of the same rows, by the ending of their names."""
  rows = _rows()
  path = folder / 'original.parquet'
  schema.write_log(
    path,
    rounds=[t for t, _ in rows],
    device_ids=[d for _, d in rows],
    num_rounds=_ROUNDS,
    timestamps=[1767225600 + 60 * t for t, _ in rows],
  )
  csv = ''.join(f'{t},{d}\n' for t, d in rows)
  lines = [json.dumps({'round': t, 'device_id': d}) for t, d in rows]
  content = path.read_bytes()
  path.unlink()
  return {
    '.csv': f'round,device_id\n{csv}'.encode(),
    '.jsonl': '\n'.join([*lines, '']).encode(),
    '.parquet': content,
  }


def endings(folder: pathlib.Path, seeds: range) -> Iterator[tuple[str, int, commands.Ending]]:
  """Yields the format, seed and ending of replays of mutated logs."""
  kinds = list(originals(folder).items())
  for seed in seeds:
    suffix, content = kinds[seed % len(kinds)]
    path = folder / f'log{suffix}'
    path.write_bytes(mutations.mutated(content, seed))
    ending = commands.run(
      [
        'replay',
        f'--log={path}',
        '--strategy=tree_online',
        '--noise_multiplier=4',
        '--delta=1e-6',
        '--json',
      ]
    )
    yield suffix, seed, ending


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--count', type=int, default=100)
  parser.add_argument('--first', type=int, default=0)
  args = parser.parse_args()
  found = []
  with tempfile.TemporaryDirectory() as folder:
    seeds = range(args.first, args.first + args.count)
    for suffix, seed, ending in endings(pathlib.Path(folder), seeds):
      found.append(ending)
      if not ending.good:
        print(f'{suffix} {seed} {ending.kind}: {ending.detail}', flush=True)
  print(commands.summary(found))
  print(f'at most {commands.peak_memory() >> 20} MiB in a process')
  sys.exit(0 if all(ending.good for ending in found) else 1)


if __name__ == '__main__':
  main()
