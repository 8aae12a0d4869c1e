"""The round protocol with served rows: each enters one sum, whatever happens."""

import collections
import types
from typing import NamedTuple

import numpy as np
import pytest

from fl_dpftrl.families import blt
from fl_dpftrl.learning import checkpoints, loop, served
from fl_dpftrl.noise import engine
from fl_dpftrl.noise.engine import server as servers
from fl_dpftrl.simulation import cohorts, population, server, timer

pytestmark = pytest.mark.tff

NUM_ROUNDS = 9
SIMULATION = cohorts.Simulation(
  population=population.Population(num_devices=9),
  timer=timer.RoundTimer(2),
  server=server.Server(report_goal=3),
  seed=5,
)
BLT = blt.BLT((0.9, 0.5), (0.3, 0.2))
STEPS = ['cohort logged', 'computed', 'stored', 'released', 'published']


class Noise(NamedTuple):
  row: np.ndarray


class AggregatorState(NamedTuple):
  noise: Noise


class State(NamedTuple):
  global_model_weights: np.ndarray
  aggregator: AggregatorState


def skip_row(aggregator):
  return AggregatorState(Noise(aggregator.noise.row + 1))


class Process:
  """Adds the devices' numbers and the row that is there to the model."""

  def __init__(self, folder, sums):
    self.folder, self.sums = folder, sums

  def initialize(self):
    return State(np.zeros(4), AggregatorState(Noise(np.array(0))))

  def next(self, state, data):
    row = int(state.aggregator.noise.row)
    content = (self.folder / servers.row_name(row)).read_bytes()
    noise = np.frombuffer(content[servers.HEADER_BYTES :], '<f4')
    self.sums.append((row, noise.tobytes(), sum(data)))
    return types.SimpleNamespace(
      state=State(state.global_model_weights + sum(data) + noise, skip_row(state.aggregator)),
      metrics=collections.OrderedDict(),
    )


class Killed(BaseException):
  pass


def run(folder, sums, killed_at=None):
  rows = engine.RowServer(
    BLT,
    folder / loop.CHECKPOINTS_NAME / 'rows',
    size=4,
    noise_seed=5,
    num_rounds=NUM_ROUNDS,
    stddev=1.0,
    num_threads=1,
    snapshot_rows=3,
  )

  def on_step(*now):
    if now == killed_at:
      raise Killed

  federation = loop.Federation(
    process=served.ServedProcess(Process(rows.folder, sums), rows),
    skip_row=skip_row,
    rounds=SIMULATION.rounds,
    client_data=lambda t, ids: [t + int(i) / 10 for i in ids],
    marks=(rows,),
  )
  try:
    return loop.run(
      federation, folder, num_rounds=NUM_ROUNDS, publish=lambda _: None, on_step=on_step
    )
  finally:
    rows.close()


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory):
  sums = []
  last = run(tmp_path_factory.mktemp('undisturbed'), sums)
  assert [row for row, *_ in sums] == list(range(NUM_ROUNDS))
  return last, sums


@pytest.mark.parametrize('step', STEPS)
def test_killed_and_resumed_ends_the_same(tmp_path, undisturbed, step):
  sums = []
  for round_index in (0, 4, NUM_ROUNDS - 1):
    with pytest.raises(Killed):
      run(tmp_path, sums, (step, round_index))
  last = run(tmp_path, sums)
  expected, expected_sums = undisturbed
  assert not last.burnt
  np.testing.assert_array_equal(
    last.state.global_model_weights, expected.state.global_model_weights
  )
  # Repeated or not, a row only ever met one sum.
  assert set(sums) == set(expected_sums)


def test_a_lost_result_burns_its_row(tmp_path, undisturbed):
  sums = []
  with pytest.raises(Killed):
    run(tmp_path, sums, ('published', 4))
  (tmp_path / loop.CHECKPOINTS_NAME / 'round-000000005.npz').unlink()
  last = run(tmp_path, sums)
  assert last.burnt == (4,)
  assert sums == undisturbed[1]


def test_a_state_from_before_is_refused(tmp_path):
  sums = []
  with pytest.raises(Killed):
    run(tmp_path, sums, ('published', 4))
  before = tmp_path / loop.CHECKPOINTS_NAME / 'rows'
  # As if all but the rows had been put back from a copy, or deleted.
  for path in tmp_path.rglob('*'):
    if path.is_file() and path.parent != before:
      path.unlink()
  with pytest.raises(checkpoints.LostStateError, match='5 were released'):
    run(tmp_path, sums)
  assert len(sums) == 5
