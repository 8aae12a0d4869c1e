"""Which models are trained, and how."""

import dataclasses
from typing import Any

from benchmarks import selection

PREFIX = 'training'
LENGTH = 20  # Tokens of a sentence.
NUM_CLIENTS = 30  # In a round.
NUM_SENTENCES = 64  # Of each client.
CENTRAL_BATCH = 64
FEDERATED_BATCHES = (64, 16, 8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """A model that every side trains.

  Attributes:
    size: a word for it.
    network: 'lstm' or 'log_bilinear'.
    num_tokens: token ids that it knows.
    sizes: its other arguments.
    passes: that are timed in a process, over the sentences of a round.
  """

  size: str
  network: str
  num_tokens: int
  sizes: dict[str, Any]
  passes: int

  @property
  def name(self) -> str:
    """Such as training-lstm-670."""
    return f'{PREFIX}-{self.size}'

  @property
  def sides(self) -> tuple[str, ...]:
    """Loops in TensorFlow alone, then federated ones by their batch size."""
    keras = ('keras',) if self.network == 'lstm' else ()
    return ('central', *keras, *map(str, FEDERATED_BATCHES))


CASES = (
    Case(
        size='log-bilinear', network='log_bilinear', num_tokens=2004,
        sizes={'embedding': 64}, passes=5,
    ),
    Case(
        size='lstm-128', network='lstm', num_tokens=2004,
        sizes={'embedding': 96, 'units': 128}, passes=4,
    ),
    # The papers' model.
    Case(
        size='lstm-670', network='lstm', num_tokens=10_004,
        sizes={'embedding': 96, 'units': 670}, passes=2,
    ),
)


def select(words: list[str]) -> list[Case]:
  """Cases by parts of their names; see `selection.select`."""
  return selection.select(CASES, words)
