"""No row of noise enters two released sums, whatever is put back from a copy."""

import collections
import itertools
import shutil
import types
from typing import NamedTuple

import numpy as np
import pytest

from fl_dpftrl.logs import schema as log_schema
from fl_dpftrl.logs import writer as writer_lib
from fl_dpftrl.simulation import cohorts, population, server
from fl_dpftrl.training import checkpoints, loop

pytestmark = pytest.mark.tff

NUM_ROUNDS = 7
SIMULATION = cohorts.Simulation(
  population=population.Population(num_devices=9),
  timer=server.RoundTimer(2),
  server=server.Server(report_goal=3),
  seed=5,
)


class Noise(NamedTuple):
  row: np.ndarray


class AggregatorState(NamedTuple):
  noise: Noise


class State(NamedTuple):
  global_model_weights: np.ndarray
  aggregator: AggregatorState


class Stopped(BaseException):
  pass


def skip_row(aggregator):
  return AggregatorState(Noise(aggregator.noise.row + 1))


class Process:
  """Adds the devices' numbers and the row of noise to the model."""

  def __init__(self, sums):
    self.sums = sums

  def initialize(self):
    return State(np.zeros(4), AggregatorState(Noise(np.array(0))))

  def skip_row(self, aggregator):
    return skip_row(aggregator)

  def next(self, state, data):
    row = int(state.aggregator.noise.row)
    noise = np.random.default_rng([7, row]).normal(size=4)
    self.sums[row] = sum(data)
    return types.SimpleNamespace(
      state=State(state.global_model_weights + sum(data) + noise, skip_row(state.aggregator)),
      metrics=collections.OrderedDict(loss=0.5),
    )


class Run:
  """A run's folder, and every sum that was released with its row of noise."""

  def __init__(self, folder):
    self.folder = folder
    self.released = collections.defaultdict(set)
    self.warnings = []

  def train(self, *, change=0.0, stop_at=None, published=0):
    sums = {}

    class Steps(loop.Observer):
      def step(_, run, *now):
        if now[0] == 'released' and now[1] in sums:
          self.released[now[1]].add(sums[now[1]])
        if now == stop_at:
          raise Stopped

    training = loop.TrainingRun(
      folder=self.folder,
      num_rounds=NUM_ROUNDS,
      process=Process(sums),
      rounds=SIMULATION.rounds,
      client_data=lambda t, ids: [t + int(i) / 10 + change for i in ids],
      aggregator=None,
      say=self.warnings.append,
    )
    return loop.run(training, [Steps()], published=published)


@pytest.fixture(name='run')
def fixture_run(tmp_path, request):
  """A run with a copy of its folder after round 3, stopped in round 4."""
  run = Run(tmp_path / 'run')
  with pytest.raises(Stopped):
    run.train(stop_at=('published', 3))
  shutil.copytree(run.folder, tmp_path / 'copy')
  with pytest.raises(Stopped):
    run.train(stop_at=(request.param, 4))
  return run


def put_back(run, *, checkpoints_too=True, log_too=False):
  copy = run.folder.parent / 'copy'
  name = loop.CHECKPOINTS_NAME
  if checkpoints_too:
    for path in (run.folder / name).glob('*.*'):
      path.unlink()
    for path in (copy / name).glob('*.*'):
      shutil.copy(path, run.folder / name)
  if log_too:
    shutil.copy(copy / loop.LOG_NAME, run.folder / loop.LOG_NAME)


def assert_one_sum_a_row(run):
  assert all(len(sums) == 1 for sums in run.released.values()), run.released


@pytest.mark.parametrize('run', ['released', 'published'], indirect=True)
def test_put_back_checkpoints_burn_the_row_that_was_released(run):
  put_back(run)
  last = run.train(change=0.25)
  assert last.burnt == (4,) and last.num_rounds == NUM_ROUNDS
  assert any('round 4 is lost: its row' in line for line in run.warnings)
  assert_one_sum_a_row(run)
  assert sorted(run.released) == list(range(NUM_ROUNDS))


@pytest.mark.parametrize('run', ['stored'], indirect=True)
def test_put_back_before_the_release_repeats_the_round(run):
  put_back(run)
  last = run.train()
  assert not last.burnt and not run.warnings
  assert_one_sum_a_row(run)


@pytest.mark.parametrize('run', ['published'], indirect=True)
@pytest.mark.parametrize('parts', itertools.product([False, True], repeat=2))
def test_any_part_that_is_put_back_leaves_one_sum_for_each_row(run, parts):
  names = ('checkpoints_too', 'log_too')
  put_back(run, **dict(zip(names, parts)))
  try:
    # What was published, such as a table, is not among the parts.
    run.train(change=0.25, published=5)
  except (checkpoints.LostStateError, loop.RoundFailedError):
    pass  # Refused: nothing more is released.
  assert_one_sum_a_row(run)


@pytest.mark.parametrize('run', ['published'], indirect=True)
def test_what_was_published_counts_where_every_mark_was_put_back(run):
  put_back(run)
  log = run.folder / loop.LOG_NAME
  rows = writer_lib.LogWriter(log).rows()
  log_schema.write_log(
    log, rounds=rows.rounds, device_ids=rows.device_ids, timestamps=rows.timestamps, num_rounds=5
  )
  writer_lib.LogWriter(log).mark_released(4)
  last = run.train(change=0.25, published=5)
  assert last.burnt == (4,)
  assert_one_sum_a_row(run)
