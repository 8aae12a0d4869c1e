"""Rows of noise, and rounds of training.

Milliseconds: median (least–most).
"""

import itertools
import statistics
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks import runner
from benchmarks.runner import Side, call
from benchmarks.training import CLIENTS_AT_ONCE

PEER = '.venv-bench'
NUM_PARAMETERS, LARGE, NUM_ROUNDS = 4_050_748, 100_000_000, 2052
# Rows that are timed together: some strategies make several at once, so that the time of a single
# row means nothing.
ROWS = 8
_BOTH = ('identity', 'blt-4', 'tree_online', 'banded_toeplitz-64', 'banded-64', 'banded-342')
# Strategy, parameters and threads.
ROW_CASES = (
  *((name, NUM_PARAMETERS, threads) for name in _BOTH for threads in (1, 2)),
  *((f'banded_toeplitz-{bands}', NUM_PARAMETERS, 1) for bands in (8, 16, 32, 128)),
  ('banded_toeplitz-64', 1_000_000, 1),
  ('banded_toeplitz-64', 16_000_000, 1),
  ('blt-4', 1_000_000, 1),
  ('blt-4', 16_000_000, 1),
  ('blt-4', LARGE, 2),
)
# With one thread and NUM_PARAMETERS, as the peer makes them.
PEER_CASES = ('identity', 'blt-4', 'banded_toeplitz-64', 'banded-64')


class Rounds(NamedTuple):
  """Rounds of several mechanisms in turn, compared with the first; no limit of clients if 0."""

  mechanisms: tuple[str, ...]
  batches: int = 1
  size: int = NUM_PARAMETERS
  concurrent: int = 0
  repeats: int | None = None


_TFF = ('gaussian_fixed', 'plain', 'tree_aggregation')
_OURS = [f'{where}: {name}' for where in ('state', 'engine') for name in _BOTH[:3]]
ROUND_CASES = (
  Rounds((*_TFF, *_OURS)),
  # Beside TFF's own context and its worker.
  Rounds(('worker: gaussian_fixed', 'gaussian_fixed', 'state: blt-4', 'engine: blt-4')),
  # If rows are made together, one round pays for the whole batch.
  Rounds(('gaussian_fixed', 'engine: banded-342'), batches=400, repeats=2 * ROWS),
  # Each in a process of its own: in turns they throw each other out of the cache.
  *(Rounds((name,)) for name in ('gaussian_fixed', 'engine: blt-4', 'state: blt-4')),
  *(Rounds((name,), 1, LARGE, 2, 2) for name in ('plain', 'engine: blt-4')),
)
# Rounds on two actors, each of which has one of two processors; on one node and on two.
LSTM, ONE_BATCH = 'lstm-128', 'one-batch'
MACHINES = {
  LSTM: 'LSTM 128, 30 clients × 64 sentences',
  ONE_BATCH: f'{NUM_PARAMETERS:,} parameters, 4 clients of one batch',
}

NOISE = (
  'strategy={strategy}|parameters={size:,}|threads={threads}|a row={seconds}|'
  'computed={cpu_seconds}|state, MB={megabytes:,.0f}|over NumPy normals={over_normals:.2f}×|'
  'over reading the state={over_reading:.2f}'
)
BESIDE = (
  'strategy={strategy}|ours={ours}|jax-privacy={seconds}|over ours={over:.1f}×|'
  'its state, MB={megabytes:,.0f}'
)
TRAINING = (
  'noise={name}|parameters={size:,}|batches a client={batches}|a round={seconds}|'
  'over={over:.2f}× {first}|on average={over_mean:.2f}×|state, MB={megabytes:,.1f}|'
  'GiB={gibibytes:.1f}'
)
ACTORS = (
  'round={name}|nodes={nodes}|in process={here}|on actors={there}|over={over:.2f}×|'
  'model, MB={model:.1f}|to a machine={to_machine:.1f}|to the driver={to_driver:.1f}'
)
median = statistics.median

TEXT_NOISE = f"""## A row of noise alone

Times are means over {ROWS} successive rows, because banded strategies make so many at once.
"Computed" is the processor time of all threads. A row is compared with as many float64 normals of
NumPy, which are not secret and not rounded, and with the maxima of all buffers, on one thread."""
TEXT_ROUNDS = """## A round with four clients

Rounds of each mechanism alternate. "worker" is TFF's own context with its worker, others run in
process. GiB is the sum of the peak memory of the processes, for all mechanisms of one run
together."""
TEXT_ACTORS = """## A round on two actors of a Ray cluster

Both sides have two processors and take turns. The nodes of the cluster are on this machine. What is
sent is in MB a round: to each machine, and from all blocks to the driver."""


def noise_rows(repeats: int) -> Iterator[dict[str, Any]]:
  """Times the rows of each case."""
  for name, size, threads in ROW_CASES:
    times = repeats if size < LARGE else min(repeats, 3)
    side = Side(call('noise', 'measure', name, size, threads, times), threads, 900.0)
    row = runner.once(side)
    seconds, reading = median(row['seconds']), median(row['reading'])
    row |= dict(strategy=name, size=size, threads=threads, megabytes=row['state_bytes'] / 1e6)
    over_reading = seconds / reading if row['state_bytes'] else None
    yield dict(over_normals=seconds / median(row['normals']), over_reading=over_reading, **row)


def peer_rows(
  python: str, repeats: int, ours: dict[tuple, list[float]]
) -> Iterator[dict[str, Any]]:
  """Times the peer's rows of the same strategies."""
  with tempfile.TemporaryDirectory() as folder:
    for name in PEER_CASES:
      path = f'{folder}/{name}.npz'
      runner.once(Side(call('noise', 'store', name, path), read=lambda output: None))
      command = call('jax_privacy', 'rows', path, NUM_PARAMETERS, repeats, python=python)
      row = runner.once(Side(command, timeout=900.0))
      row |= dict(strategy=name, megabytes=row['state_bytes'] / 1e6)
      row['ours'] = ours[name, NUM_PARAMETERS, 1]
      yield dict(over=median(row['seconds']) / median(row['ours']), **row)


def training_rows(repeats: int) -> Iterator[dict[str, Any]]:
  """Times the rounds of each case; a row for each mechanism."""
  alone: dict[int, tuple[str, list[float]]] = {}
  for case in ROUND_CASES:
    times = min(repeats, 2) if repeats < 9 else case.repeats or repeats
    command = call('rounds', 'measure', times, *case[1:4], case.mechanisms)
    result = runner.once(Side(command, 2, 900.0))
    own = case.mechanisms[0], result['seconds'][case.mechanisms[0]]
    suffix = '' if case.mechanisms[1:] else ', alone'
    beside, first = own if case.mechanisms[1:] else alone.setdefault(case.size, own)
    for name, seconds in result['seconds'].items():
      over = median(seconds) / median(first), statistics.mean(seconds) / statistics.mean(first)
      row = dict(name=name + suffix, first=beside, over=over[0], over_mean=over[1])
      row |= dict(batches=case.batches, size=case.size, gibibytes=result['gibibytes'])
      yield dict(seconds=seconds, megabytes=result['state_bytes'][name] / 1e6, **row)


def actor_rows(repeats: int) -> Iterator[dict[str, Any]]:
  """Times rounds on actors of a cluster against rounds in process."""
  for name, nodes in itertools.product(MACHINES, (1, 2)):
    command = call('rounds', 'on_actors', repeats, name, nodes)
    result = runner.once(Side(command, 2, 900.0, environment=CLIENTS_AT_ONCE))
    here, there = result['seconds'].values()
    sent = {to: result['sent'][to] / 1e6 for to in ('to_machine', 'to_driver')}
    sent |= dict(model=result['model_bytes'] / 1e6, over=median(there) / median(here))
    yield dict(name=MACHINES[name], nodes=nodes, here=here, there=there, **sent)


def shown(table: str, rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
  """Returns rows, each of which is printed once it is measured."""
  measured = []
  for row in rows:
    print(runner.table(table, [row]).splitlines()[-1])
    measured.append(row)
  return measured


def main(options: runner.Options) -> None:
  """Times rows and rounds, nine of each but for --rounds, and writes the page."""
  about = (
    runner.versions('numpy', 'tensorflow-federated'),
    runner.versions('jax-privacy', 'jax', python=options.peer),
  )
  repeats = options.rounds or 9
  noise = shown(NOISE, noise_rows(repeats))
  ours = {(row['strategy'], row['size'], row['threads']): row['seconds'] for row in noise}
  peer = shown(BESIDE, peer_rows(options.peer, repeats, ours))
  training, actors = shown(TRAINING, training_rows(repeats)), shown(ACTORS, actor_rows(repeats))
  blocks = [
    *(TEXT_NOISE, runner.table(NOISE, noise)),
    f'## The same by jax-privacy, {NUM_PARAMETERS:,} parameters, one thread',
    runner.table(BESIDE, peer),
    *(TEXT_ROUNDS, runner.table(TRAINING, training)),
    *(TEXT_ACTORS, runner.table(ACTORS, actors)),
  ]
  rows = dict(noise=noise, peer=peer, training=training, machines=actors)
  runner.write(options, __doc__, 'rounds', blocks, rows, *about)
