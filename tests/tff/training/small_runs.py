"""Runs on a process small enough to see every number, and stops at any step."""

import collections
import dataclasses
import types
from typing import NamedTuple

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import ledger_format, participation_log
from fl_dpftrl.planning.simulation import cohorts, populations, servers
from fl_dpftrl.run.observers import observer
from fl_dpftrl.tff.training import loop
from tests.tff.training import steps

NUM_ROUNDS = 6
DEVICES = np.array([f'device-{i}' for i in range(9)])
CLAIM = dpftrl.Claim(strategy=dpftrl.Identity(), noise_multiplier=1.0)
SIMULATION = cohorts.Simulation(
  population=populations.SimulatedPopulation(num_devices=9),
  timer=servers.RoundTimer(2),
  server=servers.Server(report_goal=3),
  seed=5,
)


class State(NamedTuple):
  global_model_weights: np.ndarray
  aggregator: np.ndarray  # The next row of noise, and a seed.


def named(cohort):
  return cohort._replace(device_ids=DEVICES[cohort.device_ids])


def noise(aggregator: np.ndarray) -> float:
  row, seed = aggregator
  return np.random.default_rng([row, seed]).normal()


class Process:
  """Adds the sum of the devices' numbers and a row of noise to the model, and notes both."""

  def __init__(self):
    self.sums = []

  def initialize(self):
    return State(np.zeros(1), np.array([0, 1234]))

  def skip_row(self, aggregator):
    return skip_row(aggregator)

  def next(self, state, data):
    self.sums.append((int(state.aggregator[0]), round(sum(data), 9)))
    model = state.global_model_weights + sum(data) + noise(state.aggregator)
    return types.SimpleNamespace(
      state=State(model, skip_row(state.aggregator)),
      metrics=collections.OrderedDict(aggregator=collections.OrderedDict(row=state.aggregator[0])),
    )


def skip_row(aggregator: np.ndarray) -> np.ndarray:
  return aggregator + [1, 0]


class Killed(BaseException):
  pass


class Watching(observer.Observer):
  """Keeps what was released, by number of rounds."""

  def __init__(self):
    self.published = {}

  def released(self, run, round_index, measurements):
    assert run.guard.num_rounds == run.checkpoint.num_rounds == round_index + 1
    complete = dataclasses.replace(run.checkpoint, measurements=dict(measurements))
    self.published[round_index + 1] = complete


def run(
  folder,
  process=None,
  *,
  on_step=lambda step, t: None,
  observers=(),
  change=0.0,
  say=None,
  published=0,
  num_rounds=NUM_ROUNDS,
  claim=None,
  **options,
):
  """Trains in a folder; returns the last checkpoint, what was released, and what was said."""
  watching, warnings = Watching(), []
  options |= {'say': say or warnings.append, 'published': published, 'delta': 1e-6}
  with pytest.MonkeyPatch.context() as patched:
    steps.watch(on_step, patched.setattr)
    with loop.TrainingRun(
      folder,
      claim or CLAIM,
      max_rounds=num_rounds,
      process=process or Process(),
      observers=observer.Observers([*observers, watching], folder),
      **options,
    ) as training:
      client_data = lambda t, ids: [t + len(i) + int(i[-1]) / 10 + change for i in ids]
      training.train(map(named, SIMULATION.rounds()), client_data)
  return training.checkpoint, watching.published, warnings


def kill_at(step: str, round_index: int):
  def on_step(now, t):
    if (now, t) == (step, round_index):
      raise Killed

  return on_step


def log_rows(folder):
  log = participation_log.read_log(folder / ledger_format.NAME)
  cohorts = [[] for _ in range(log.num_rounds)]
  for table in log.tables():
    for row in table.to_pylist():
      cohorts[row['round']].append(row['device_id'])
  return cohorts
