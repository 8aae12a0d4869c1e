"""Models that the benchmark trains, and the sides that train them."""

import dataclasses
from typing import Any, NamedTuple

from benchmarks import selection

PREFIX = 'training'
LENGTH = 20  # Tokens per sentence.
CORES = 2
CENTRAL, KERAS, PEER = 'central', 'keras', 'pfl-research'
FEDERATED = 'federated'
OUTPUT = 'output layer'


class Side(NamedTuple):
  """One way to train a model.

  Attributes:
    what: CENTRAL, KERAS, OUTPUT, FEDERATED or PEER.
    batch: sentences in a batch.
    threads: threads of each process.
    processes: processes that share the clients of a round.
  """

  what: str
  batch: int
  threads: int = CORES
  processes: int = 1

  @property
  def name(self) -> str:
    """Name of the side, as in the table without its batch."""
    if self.what != PEER:
      return self.what
    number, unit = (
      (self.threads, 'thread') if self.processes == 1 else (self.processes, 'processes')
    )
    return f'{self.what}, {number} {unit}{"s" * (unit == "thread" and number > 1)}'


# The peer is started in each way that two cores allow.
PEER_WAYS = ((1, 1), (CORES, 1), (1, CORES))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """Model that every side trains.

  Attributes:
    size: size in a word.
    network: 'lstm' or 'log_bilinear'.
    num_tokens: number of token ids.
    sizes: other arguments of the network.
    passes: number of timed passes per process over the sentences of a round.
    clients: clients in a round.
    sentences: sentences of a client.
    batches: batch sizes.
  """

  size: str
  network: str
  num_tokens: int
  sizes: dict[str, Any]
  passes: int
  clients: int = 30
  sentences: int = 64
  batches: tuple[int, ...] = (64, 8)

  @property
  def name(self) -> str:
    """Name of the case, such as training-lstm-670."""
    return f'{PREFIX}-{self.size}'

  @property
  def sides(self) -> tuple[Side, ...]:
    """For each batch size the loops in TensorFlow alone, then rounds, ours and the peer's."""
    found = []
    for batch in self.batches:
      found.append(Side(CENTRAL, batch))
      # Keras's own layers; of the log-bilinear model, its last layer alone.
      found.append(Side(KERAS if self.network == 'lstm' else OUTPUT, batch))
      found.append(Side(FEDERATED, batch))
      found += [Side(PEER, batch, threads, processes) for threads, processes in PEER_WAYS]
    return tuple(found)


CASES = (
  Case(
    size='log-bilinear', network='log_bilinear', num_tokens=2004, sizes={'embedding': 64}, passes=5
  ),
  Case(
    size='lstm-128',
    network='lstm',
    num_tokens=2004,
    sizes={'embedding': 96, 'units': 128},
    passes=4,
  ),
  # The model of the papers.
  Case(
    size='lstm-670',
    network='lstm',
    num_tokens=10_004,
    sizes={'embedding': 96, 'units': 670},
    passes=2,
  ),
  # What a client costs beside its steps.
  Case(
    size='one-batch',
    network='log_bilinear',
    num_tokens=204,
    sizes={'embedding': 8},
    passes=5,
    clients=100,
    sentences=8,
    batches=(8,),
  ),
)


def select(words: list[str]) -> list[Case]:
  """Returns cases by parts of their names; see `selection.select`."""
  return selection.select(CASES, words)
