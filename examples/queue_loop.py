"""Rounds as production has them: devices answer through a queue, late, twice, or not at all.

    python examples/queue_loop.py runs/queue

Kill it and start it again: it goes on with the next round. 300 devices train a small network of
PyTorch. A round asks 26 of those that checked in, and closes with the 20th update or at a deadline.
It fails with fewer than 15, as in an outage. The server trusts no message: a late update is dropped
by the number of its round, and one that is malformed, of a stranger, or delivered twice by `add`.
"""

import collections
import pathlib
import queue
import sys
import threading
import time

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import fl_dpftrl as dpftrl

DEVICES, COHORT, GOAL, AT_LEAST, ROUNDS = 300, 26, 20, 15, 40
SCHEMA = dpftrl.MinSep(num_rounds=ROUNDS, min_sep=10)
DEADLINE, WAIT = 3.0, 0.2  # seconds: until a round closes, and until devices check in again


def model_of(weights: np.ndarray | None = None) -> torch.nn.Module:
  torch.manual_seed(0)
  model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))
  if weights is not None:
    vector_to_parameters(torch.from_numpy(weights).clone(), model.parameters())
  return model


def weights_of(model: torch.nn.Module) -> np.ndarray:
  return parameters_to_vector(model.parameters()).detach().numpy()


def examples_of(device: int) -> tuple[torch.Tensor, torch.Tensor]:
  draws = torch.Generator().manual_seed(device)
  points = torch.randn(32, 2, generator=draws) + torch.randn(2, generator=draws)
  return points, (points.norm(dim=1) > 1.0).long() + (points[:, 0] > 1.5).long()


def update_of(device: int, weights: np.ndarray) -> np.ndarray:
  """Returns what one device sends: the change of its copy of the model by its own examples."""
  model, (points, classes) = model_of(weights), examples_of(device)
  optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
  for _ in range(4):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(points), classes).backward()
    optimizer.step()
  return weights_of(model) - weights


def answer(asked: queue.Queue, updates: queue.Queue) -> None:
  """Answers for devices, as a thread: replace both queues by those of your message broker."""
  while True:
    round_index, device, weights = asked.get()
    draws = np.random.default_rng([round_index, device])
    outage = round_index % 20 == 7
    if draws.random() < (0.7 if outage else 0.1):
      continue  # It dropped out.
    time.sleep(draws.exponential(0.01))
    content = update_of(device, weights).tobytes()[: None if draws.random() < 0.98 else -4]
    for _ in range(2 if draws.random() < 0.05 else 1):  # Most queues may deliver twice.
      updates.put((round_index, device, content))


def collect(round_, updates: queue.Queue) -> collections.Counter:
  """Adds updates until the report goal or the deadline; returns how many came to nothing."""
  dropped: collections.Counter = collections.Counter(late=0, refused=0)
  deadline = time.monotonic() + DEADLINE
  while round_.num_updates < GOAL and (left := deadline - time.monotonic()) > 0:
    try:
      round_index, device, content = updates.get(timeout=left)
    except queue.Empty:
      break
    if round_index != round_.index:  # Of an older model, and perhaps of a device that is no member.
      dropped['late'] += 1
      continue
    try:
      round_.add(np.frombuffer(content, np.float32), device_id=int(device))
    except (TypeError, ValueError):  # Its words are of the message: log none of them.
      dropped['refused'] += 1
  return dropped


def checked_in(draws: np.random.Generator) -> list[int]:
  """Returns devices that are idle, charged and online now, in a random order."""
  return draws.permutation(DEVICES)[:200].tolist()


def accuracy(weights: np.ndarray) -> float:
  tests = [examples_of(device) for device in range(10**6, 10**6 + 100)]
  points, classes = (torch.cat(part) for part in zip(*tests))
  return float((model_of(weights)(points).argmax(dim=1) == classes).float().mean())


def store(path: pathlib.Path, weights: np.ndarray) -> None:
  np.save(path.with_name('new.npy'), weights)
  path.with_name('new.npy').replace(path)  # Whole or not at all.


def main(folder: pathlib.Path) -> None:
  torch.set_num_threads(1)
  asked: queue.Queue = queue.Queue()
  updates: queue.Queue = queue.Queue()
  for _ in range(8):
    threading.Thread(target=answer, args=(asked, updates), daemon=True).start()
  stored, weights = folder / 'model.npy', weights_of(model_of())
  folder.mkdir(parents=True, exist_ok=True)
  with dpftrl.PrivateAggregator(
    'blt-b100',
    template=weights,
    noise_multiplier=2.0,
    clip_norm=0.3,
    report_goal=GOAL,
    folder=folder,
    participation=SCHEMA,
    max_epsilon=20.0,
    delta=1e-6,
    observers=[dpftrl.observers.JsonLines(folder / 'events.jsonl')],
  ) as aggregator:
    if not stored.exists():
      aggregator.require_new()  # A run that has rounds has lost its model.
      store(stored, weights)
    weights = np.load(stored)
    update_of(0, weights)  # PyTorch's first step takes seconds.
    draws = np.random.default_rng(aggregator.next_round)
    while aggregator.next_round < aggregator.max_rounds:
      cohort = aggregator.admissible(checked_in(draws), at_most=COHORT).tolist()
      if len(cohort) < COHORT:
        time.sleep(WAIT)  # Nothing is recorded; others check in meanwhile.
        continue
      with aggregator.round(cohort, at_least=AT_LEAST) as round_:  # On disk before devices hear.
        for device in cohort:
          asked.put((round_.index, device, weights))
        dropped = collect(round_, updates)
        is_short = round_.num_updates < AT_LEAST
        if is_short:
          round_.fail()  # Its row of noise is used up, and the model stays.
      outcome = 'failed'
      if not is_short:
        weights = weights + 2.0 * round_.mean
        store(stored, weights)
        outcome = f'accuracy {100 * accuracy(weights):.1f} %, {aggregator.privacy_loss()}'
      text = f'round {round_.index + 1}: {round_.num_updates} of {COHORT} updates, dropped'
      print(
        f'{text} {dropped["late"]} late and {dropped["refused"]} refused, {outcome}', flush=True
      )
    aggregator.report(folder / 'privacy.html')


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else 'runs/queue'))
