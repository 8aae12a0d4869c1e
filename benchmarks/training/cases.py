"""Models that the benchmark trains."""

import dataclasses
from typing import Any

from benchmarks import selection

PREFIX = 'training'
LENGTH = 20  # Tokens per sentence.
NUM_CLIENTS = 30  # Clients per round.
NUM_SENTENCES = 64  # Sentences per client.
CENTRAL_BATCH = 64
FEDERATED_BATCHES = (64, 16, 8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """Model that every side trains.

  Attributes:
    size: size in a word.
    network: 'lstm' or 'log_bilinear'.
    num_tokens: number of token ids.
    sizes: other arguments of the network.
    passes: number of timed passes per process over the sentences of a round.
  """

  size: str
  network: str
  num_tokens: int
  sizes: dict[str, Any]
  passes: int

  @property
  def name(self) -> str:
    """Name of the case, such as training-lstm-670."""
    return f'{PREFIX}-{self.size}'

  @property
  def sides(self) -> tuple[str, ...]:
    """Loops in TensorFlow alone, then federated ones by their batch size."""
    keras = ('keras',) if self.network == 'lstm' else ()
    return ('central', *keras, *map(str, FEDERATED_BATCHES))


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
)


def select(words: list[str]) -> list[Case]:
  """Returns cases by parts of their names; see `selection.select`."""
  return selection.select(CASES, words)
