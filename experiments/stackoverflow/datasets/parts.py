"""Parts of the training clients, such as one half of them as public text."""

import dataclasses
import hashlib

from experiments.stackoverflow.datasets import dataset as dataset_lib
from fl_dpftrl.text import messages

_MOST = 100  # parts


def parse(text: str) -> tuple[int, int]:
  """Returns number and count of a part, as in '1/2'.

  Raises:
    ValueError: naming the flag and its value.
  """
  number, _, count = text.partition('/')
  if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count) <= _MOST):
    raise ValueError(
      f'--client_part={messages.quoted(text)} must be like 1/2: a number from 1 on, and of'
      f' how many parts, at most {_MOST}'
    )
  return int(number), int(count)


def part(dataset: dataset_lib.Dataset, text: str) -> dataset_lib.Dataset:
  """Returns the data set with a part of its training clients.

  A hash of its id alone says which part a client is in, so that the parts are
  disjoint whatever the run. Validation, test and vocabulary stay the same.

  Args:
    dataset: the data set.
    text: number and count of the part, as in '1/2'.

  Raises:
    ValueError: if there is no such part, or no client in it.
  """
  number, count = parse(text)
  clients = tuple(c for c in dataset.train_clients if _part_of(c, count) == number)
  if not clients:
    raise ValueError(f'--client_part={text} has none of {len(dataset.train_clients)} clients')
  return dataclasses.replace(dataset, train_clients=clients)


def _part_of(client_id: str, count: int) -> int:
  digest = hashlib.sha256(f'part of the training clients: {client_id}'.encode()).digest()
  return 1 + int.from_bytes(digest[:8], 'big') % count
