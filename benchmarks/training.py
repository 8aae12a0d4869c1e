"""Training: federated rounds and central loops.

Each pass trains on the sentences of all clients of a round, of 20 words each, in float32: 30
clients of 64 sentences, and 100 of 8 (one-batch). "Central" is a compiled step of SGD on each batch
with the loss function of TensorFlow. "Keras" is the same with Keras's own layers. "Federated" is a
round of TensorFlow Federated in process, with bounded updates and noise, several clients at a time.
"pfl-research" is such a round on PyTorch, by one thread, by two, and by two processes. Other
columns compare with the faster of the loops and with the best of the peer at the same batch, by the
clock and by processor time; below 1 over the peer is less time than its.
"""

import dataclasses
import statistics
from typing import Any

from benchmarks import runner
from benchmarks.runner import Runs, Side, call, ratio

CORES, PEER = 2, '.venv-pfl'
LENGTH = 20  # Tokens per sentence.
CENTRAL, KERAS, FEDERATED = 'central', 'keras', 'federated'
# The peer is started in each way that two cores allow: threads and processes.
PFL = {
  'pfl-research, 1 thread': (1, 1),
  'pfl-research, 2 threads': (2, 1),
  'pfl-research, 2 processes': (1, 2),
}
# As in the training script: several clients at a time.
CLIENTS_AT_ONCE = {'TF_ENABLE_ONEDNN_OPTS': '0', 'TF_NUM_INTRAOP_THREADS': '1'}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """Model that every side trains: its sizes, timed passes per process, clients and batches."""

  network: str
  num_tokens: int
  sizes: dict[str, int]
  passes: int
  clients: int = 30
  sentences: int = 64
  batches: tuple[int, ...] = (64, 8)
  length: int = LENGTH


_BILINEAR = {'network': 'log_bilinear', 'passes': 5}
CASES = {
  'training-log-bilinear': Case(**_BILINEAR, num_tokens=2004, sizes={'embedding': 64}),
  'training-lstm-128': Case(
    network='lstm', num_tokens=2004, sizes={'embedding': 96, 'units': 128}, passes=4
  ),
  # The model of the papers.
  'training-lstm-670': Case(
    network='lstm', num_tokens=10_004, sizes={'embedding': 96, 'units': 670}, passes=2
  ),
  # What a client costs beside its steps.
  'training-one-batch': Case(
    **_BILINEAR, num_tokens=204, sizes={'embedding': 8}, clients=100, sentences=8, batches=(8,)
  ),
}
TABLE = (
  'model={model}|side={side}|batch={batch}|sentences/s={rate}|pass, s={seconds:.2f}|'
  'computed, s={cpu_seconds:.2f}|of the central rate={of_loop:.2f}|'
  'of it, computed={of_loop_computed:.2f}|ms a client beside steps={fixed_ms:.2f}|'
  'over the peer={over_peer:.2f}|over it, computed={over_peer_computed:.2f}'
)


def compare(name: str, case: Case, batch: int, sides: dict[str, Runs]) -> list[dict[str, Any]]:
  """Returns a row for each side at one batch size: its medians, and what they are of others'."""
  passes = {s: [one for result in runs.results for one in result] for s, runs in sides.items()}
  medians = {
    key: {s: statistics.median(one[key] for one in ones) for s, ones in passes.items() if ones}
    for key in ('seconds', 'cpu_seconds')
  }
  rows = []
  for side, runs in sides.items():
    row = dict(model=name.removeprefix('training-'), side=side, batch=batch, passes=passes[side])
    for key, suffix in (('seconds', ''), ('cpu_seconds', '_computed')):
      of = medians[key]
      loops = [of[s] for s in (CENTRAL, KERAS) if s in of]
      peers = [of[s] for s in PFL if s in of] if side == FEDERATED else []
      row |= {key: of.get(side), f'of_loop{suffix}': ratio(min(loops, default=None), of.get(side))}
      row[f'over_peer{suffix}'] = ratio(of.get(side), min(peers, default=None))
    row['fixed_ms'] = None
    if side == FEDERATED and row['seconds'] and CENTRAL in medians['seconds']:
      row['fixed_ms'] = 1e3 * (row['seconds'] - medians['seconds'][CENTRAL]) / case.clients
    num_sentences = case.clients * case.sentences
    row['rate'] = f'{num_sentences / row["seconds"]:.0f}' if row['seconds'] else f'{runs}'
    rows.append(dict(failures=runs.failures, **row))
  return rows


def sides(case: Case, batch: int, peer: str) -> dict[str, Side]:
  """Returns the loops only in TensorFlow, then rounds, ours and the peer's."""
  setting = dataclasses.asdict(case)
  loops = (CENTRAL, *([KERAS] if case.network == 'lstm' else []), FEDERATED)
  selected = {}
  for name in loops:
    environment = CLIENTS_AT_ONCE if name == FEDERATED else {}
    command = call('training', 'measure', setting, name, batch)
    selected[name] = Side(command, CORES, 900.0, environment=environment)
  for name, (threads, processes) in PFL.items():
    interpreter, *module = call('pfl', 'measure', setting, batch, python=peer)
    several = ['-m', 'torch.distributed.run', f'--nproc_per_node={processes}']
    command = [interpreter, *(several if processes > 1 else []), *module]
    selected[name] = Side(command, threads, 900.0)
  return selected


def main(options: runner.Options) -> int:
  """Trains the selected models and writes the page after each."""
  about = (
    runner.versions('tensorflow', 'tensorflow-federated', 'numpy'),
    runner.versions('pfl', 'torch', python=options.peer),
  )
  rows: list[dict[str, Any]] = []
  for name, case in options.select(CASES).items():
    for batch in case.batches:
      runs = runner.turns(f'{name} {batch}', sides(case, batch, options.peer), options.repeats)
      rows += compare(name, case, batch, runs)
    runner.write(options, __doc__, 'training', [runner.table(TABLE, rows)], rows, *about)
  return int(any(row['failures'] for row in rows))
