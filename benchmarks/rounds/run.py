"""Times rows of noise and rounds of training, and writes the table.

python -m benchmarks.rounds.run --repeats=9
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import pages, process, sides
from benchmarks.rounds import cases

_TIMEOUT = 900.0
_PEER = 'jax-privacy'


def measured(module: str, *arguments: object, threads: int = 2) -> dict[str, Any]:
  """Runs a module of this folder and returns the JSON that it prints.

  Raises:
    ValueError: if it fails.
  """
  command = [sys.executable, '-m', f'benchmarks.rounds.{module}']
  return _run([*command, *map(str, arguments)], threads)


def _run(command: list[str], threads: int) -> dict[str, Any]:
  done = process.run(command, timeout=_TIMEOUT, threads=threads)
  if done.failure:
    raise ValueError(f'{" ".join(command[1:])}: {done.failure}')
  return json.loads(done.output)


def spread(seconds: Sequence[float]) -> str:
  """Formats median (least–most), in milliseconds."""
  found = (statistics.median(seconds), min(seconds), max(seconds))
  middle, least, most = (f'{1e3 * value:,.0f}' for value in found)
  return f'{middle} ({least}–{most})'


def noise_rows(repeats: int) -> list[dict[str, Any]]:
  """Times the rows of each case."""
  found = []
  for case in cases.ROW_CASES:
    times = repeats if case.size < cases.LARGE else min(repeats, 3)
    one = measured('noise', *case, times, threads=case.threads)
    found.append({**case._asdict(), **one})
    print(*noise_cells(found[-1]), file=sys.stderr)
  return found


def noise_cells(one: dict[str, Any]) -> list[str]:
  """Returns a line of the table."""
  median = statistics.median(one['seconds'])
  over = lambda other: f'{median / statistics.median(other):.2f}×'
  return [
    one['strategy'],
    f'{one["size"]:,}',
    str(one['threads']),
    spread(one['seconds']),
    spread(one['cpu_seconds']),
    f'{one["state_bytes"] / 1e6:,.0f}',
    over(one['normals']),
    over(one['reading']) if one['state_bytes'] else '–',
  ]


def peer_rows(python: str, repeats: int, ours: list[dict[str, Any]]) -> list[dict[str, Any]]:
  """Times the peer's rows of the same strategies."""
  script = pathlib.Path(__file__).with_name('peer.py')
  found = []
  with tempfile.TemporaryDirectory() as folder:
    for name in cases.PEER_CASES:
      path = pathlib.Path(folder) / f'{name}.npz'
      np.savez(path, **peer_parameters(name))
      one = _run(
        [python, str(script), str(path), str(cases.NUM_PARAMETERS), str(repeats)], threads=1
      )
      own = next(
        o
        for o in ours
        if (o['strategy'], o['size'], o['threads']) == (name, cases.NUM_PARAMETERS, 1)
      )
      found.append({'strategy': name, 'ours': own['seconds'], **one})
      print(_PEER, *peer_cells(found[-1]), file=sys.stderr)
  return found


def peer_parameters(name: str) -> dict[str, np.ndarray]:
  """Returns the parameters in the form of the peer's constructors."""
  if name == 'identity':
    return {}
  if name == 'blt-4':
    own = cases.strategy(name)
    return {'buf_decay': np.array(own.buffer_decay), 'output_scale': np.array(own.output_scale)}
  family, num_bands = name.split('-')
  values = cases.coefficients(int(num_bands))
  if family == 'banded_toeplitz':
    return {'coefs': values}
  return {'params': np.tile(values, (cases.NUM_ROUNDS, 1))}


def peer_cells(one: dict[str, Any]) -> list[str]:
  ratio = statistics.median(one['seconds']) / statistics.median(one['ours'])
  return [
    one['strategy'],
    spread(one['ours']),
    spread(one['seconds']),
    f'{ratio:.1f}×',
    f'{one["state_bytes"] / 1e6:,.0f}',
  ]


def training_rows(repeats: int) -> list[dict[str, Any]]:
  """Times the rounds of each case."""
  found = []
  for case in cases.ROUND_CASES:
    times = case.repeats or repeats
    one = measured('training', times, case.batches, case.size, case.concurrent, *case.mechanisms)
    found.append({'batches': case.batches, 'size': case.size, **one})
    for cells in training_cells(found[-1]):
      print(*cells, file=sys.stderr)
  return found


def training_cells(one: dict[str, Any]) -> list[list[str]]:
  """Returns one line per mechanism."""
  first, *_ = one['seconds']
  base = statistics.median(one['seconds'][first])
  mean = statistics.mean(one['seconds'][first])
  return [
    [
      name,
      f'{one["size"]:,}',
      str(one['batches']),
      spread(seconds),
      f'{statistics.median(seconds) / base:.2f}× {first}',
      f'{statistics.mean(seconds) / mean:.2f}×',
      f'{one["state_bytes"][name] / 1e6:,.1f}',
      f'{one["gibibytes"]:.1f}',
    ]
    for name, seconds in one['seconds'].items()
  ]


def machine_rows(repeats: int) -> list[dict[str, Any]]:
  """Times rounds on actors of a cluster of one node and of two, against rounds in process."""
  found = []
  for name in cases.MACHINES:
    for nodes in cases.NODES:
      found.append({'case': name, 'nodes': nodes, **measured('machines', repeats, name, nodes)})
      print(*machine_cells(found[-1]), file=sys.stderr)
  return found


def machine_cells(one: dict[str, Any]) -> list[str]:
  """Returns a line of the table."""
  here, there = one['seconds']['in process'], one['seconds']['machines']
  sent = one['sent']
  return [
    cases.MACHINES[one['case']],
    str(one['nodes']),
    spread(here),
    spread(there),
    f'{statistics.median(there) / statistics.median(here):.2f}×',
    f'{one["model_bytes"] / 1e6:,.1f}',
    f'{sent["to_machine"] / 1e6:,.1f}',
    f'{sent["to_driver"] / 1e6:,.1f}',
  ]


def document(
  about: dict[str, Any],
  noise: list[dict[str, Any]],
  peer: list[dict[str, Any]],
  training: list[dict[str, Any]],
  machines: list[dict[str, Any]],
) -> str:
  """Returns the Markdown page of a measurement."""
  return '\n'.join(
    [
      '# Rows of noise, and rounds of training',
      '',
      'Milliseconds: median (least–most).'
      f' {about["date"]}, {about["processor"]}, {about["cores"]} cores.'
      f' {pages.said(about["versions"])}.',
      '',
      '## A row of noise alone',
      '',
      f'Times are means over {cases.ROWS} successive rows, because banded'
      ' strategies make so many at once. "Computed" is the processor time of all'
      ' threads. A row is compared with as many float64 normals of NumPy, which are not secret and'
      ' not rounded, and with the maxima of all buffers, in one thread each.',
      '',
      sides.table(
        (
          'strategy',
          'parameters',
          'threads',
          'a row',
          'computed',
          'state, MB',
          'over NumPy normals',
          'over reading the state',
        ),
        [noise_cells(one) for one in noise],
      ),
      '',
      f'## The same by {_PEER}, {cases.NUM_PARAMETERS:,} parameters, one thread',
      '',
      sides.table(
        ('strategy', 'ours', _PEER, 'over ours', 'its state, MB'), [peer_cells(one) for one in peer]
      ),
      '',
      '## A round with four clients',
      '',
      'Rounds of each mechanism alternate. "worker" is TFF\'s own context with its worker'
      ' process, the others run in process. GiB is the sum of the peak memory of the'
      ' processes, for all mechanisms of one run together.',
      '',
      sides.table(
        (
          'noise',
          'parameters',
          'batches a client',
          'a round',
          'over',
          'on average',
          'state, MB',
          'GiB',
        ),
        [cells for one in training for cells in training_cells(one)],
      ),
      '',
      '## A round on two actors of a Ray cluster',
      '',
      'Both sides have two processors and take turns. The nodes of the cluster are on this machine.'
      ' What is sent is in MB a round: to each machine, and from all blocks to the driver.',
      '',
      sides.table(
        (
          'round',
          'nodes',
          'in process',
          'on actors',
          'over',
          'model, MB',
          'to a machine',
          'to the driver',
        ),
        [machine_cells(one) for one in machines],
      ),
      '',
    ]
  )


def main(arguments: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(prog='python -m benchmarks.rounds.run')
  parser.add_argument('--repeats', type=int, default=9, help='number of rows and rounds')
  parser.add_argument('--peer_python', required=True, help=f'a Python that has {_PEER}')
  parser.add_argument('--output', default='benchmarks/results')
  args = parser.parse_args(arguments)
  if args.repeats < 1:
    parser.error(f'--repeats must be at least 1, got {args.repeats}')
  try:
    about = {
      **pages.machine(None),
      'versions': {
        **pages.versions(sys.executable, 'numpy', 'tensorflow_federated'),
        **pages.versions(args.peer_python, 'jax-privacy', 'jax'),
      },
    }
    noise = noise_rows(args.repeats)
    peer = peer_rows(args.peer_python, args.repeats, noise)
    training = training_rows(args.repeats)
    machines = machine_rows(args.repeats)
    folder = pathlib.Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    pages.write(
      folder,
      'rounds',
      document(about, noise, peer, training, machines),
      {**about, 'noise': noise, 'peer': peer, 'training': training, 'machines': machines},
    )
  except (OSError, ValueError) as e:
    print(f'bench: {e}', file=sys.stderr)
    return 2
  return 0


if __name__ == '__main__':
  sys.exit(main())
