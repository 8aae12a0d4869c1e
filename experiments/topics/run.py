"""One run: federated averaging in NumPy, with the noise and the log of `PrivateAggregator`."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

import fl_dpftrl as dpftrl
from experiments.stackoverflow.datasets import federated_text, topics
from experiments.topics import log_bilinear
from fl_dpftrl.study import Cell

LANGUAGE_SEED = 0
"""Seed of the language and its clients: all runs are of one data set."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
  """Model, clients and evaluation of every run, beside what its cell says.

  Attributes:
    num_sentences: sentences that a client uses in a round.
    embedding: size of an embedding.
    client_learning_rate: rate of a client's one step.
    num_test_sentences: sentences of the test set, and of the validation set.
  """

  num_clients: int = 100_000
  num_sentences: int = 8
  embedding: int = 16
  client_learning_rate: float = 1.0
  num_test_sentences: int = 4000


def train(task: Task, cell: Cell) -> Mapping[str, Any]:
  """Trains a cell in its folder and returns its summary; one that was interrupted begins anew."""
  design, data = cell.design, dataset_of(task)
  weights = log_bilinear.initial_weights(data.vocabulary.size, task.embedding, cell.seed)
  rates = dpftrl.warmup_cooldown(
    cell.server_learning_rate,
    cell.num_rounds,
    warmup_fraction=design.workload.warmup_fraction,
    cooldown_fraction=design.workload.cooldown_fraction,
  )
  momentum = np.float32(design.workload.momentum)
  velocity = [np.zeros_like(weight) for weight in weights]
  with cell.private_aggregator(list(weights)) as aggregator:
    drawn = cohorts(task, design.planned, design.report_goal, cell.seed)
    for t, (cohort, sentences) in enumerate(drawn):
      gradients = log_bilinear.gradients(weights, sentences)
      with aggregator.round(cohort) as round_:
        for i, device in enumerate(cohort):
          update = [-np.float32(task.client_learning_rate) * g[i] for g in gradients]
          round_.add(update, device_id=int(device))
      velocity = [momentum * v + mean for v, mean in zip(velocity, round_.mean)]
      weights = [w + np.float32(rates[t]) * v for w, v in zip(weights, velocity)]
  finite = all(np.isfinite(weight).all() for weight in weights)
  return {
    'validation': {'accuracy': log_bilinear.accuracy(weights, data.validation)},
    'test': {'accuracy': log_bilinear.accuracy(weights, data.test)},
    'diverged_since_round': None if finite else cell.num_rounds - 1,
  }


@functools.cache
def dataset_of(task: Task) -> federated_text.Dataset:
  """Returns the data set of a task, with its held-out sentences."""
  return topics.load(
    seed=LANGUAGE_SEED, num_clients=task.num_clients, num_test_sentences=task.num_test_sentences
  )


@functools.cache
def _speakers() -> topics.Speakers:
  return topics.Speakers.drawn(seed=LANGUAGE_SEED)


@functools.lru_cache(maxsize=2)
def cohorts(
  task: Task, schema: dpftrl.MinSep, report_goal: int, seed: int
) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
  """Returns the clients of each round, [report_goal], and the token ids that they train on.

  All mechanisms of a seed share them. The sentences of a client are drawn from all of its own, and
  only these are made.
  """
  speakers = _speakers()
  drawn, last = [], np.full(task.num_clients, -schema.min_sep)
  for t in range(schema.num_rounds):
    generator = np.random.default_rng([seed, t])
    free = np.flatnonzero(t - last >= schema.min_sep)
    clients = generator.choice(free, report_goal, replace=False)
    last[clients] = t
    numbers = np.stack(
      [
        generator.choice(speakers.size(client), task.num_sentences, replace=False)
        for client in clients.tolist()
      ]
    )
    ids = speakers.rows(np.repeat(clients, task.num_sentences), numbers.ravel())
    drawn.append((clients, ids.reshape(*numbers.shape, -1).astype(np.int16)))
  return tuple(drawn)
