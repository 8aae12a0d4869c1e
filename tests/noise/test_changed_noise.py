"""Replay of noise that changed within a run, against what was released.

The real executors are driven with normals that are unit vectors, so that a
released row is the row of the linear map from normals to the noise. Its covariance is
what an attacker faces; replay has to be at least as careful.
"""

import functools
import itertools

import numpy as np
import pytest
import scipy.linalg
import tensorflow as tf

from fl_dpftrl.accounting import gaussian
from fl_dpftrl.families import banded_toeplitz as toeplitz
from fl_dpftrl.families import lattice, tree_full
from fl_dpftrl.families import tree_online as tree
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import noise_record, writer
from fl_dpftrl.noise import normals, rows
from fl_dpftrl.noise import stream as streams
from fl_dpftrl.replaying import exposure, runs, void
from fl_dpftrl.strategies import files
from tests import every_family

pytestmark = pytest.mark.tff

NUM_HISTORIES = 44
DELTA = 1e-6


class History:
  """Random changes made in a run of n rounds.

  Attributes:
    strategies: of each stream.
    num_rounds: n.
    multipliers, clip_norms: of each round, shape [n].
    restarts: rounds at which the noise began anew.
    burnt: rounds that released nothing.
    rounds: in which the one device took part.
  """

  def __init__(self, make_strategy, generator):
    self.num_rounds = n = int(generator.integers(2, 11))
    self.multipliers = _piecewise(generator, n, [0.5, 2.0, 8.0])
    self.clip_norms = _piecewise(generator, n, [0.1, 1.0, 3.0])
    size = int(generator.integers(0, 3))
    self.restarts = sorted(set(generator.integers(1, n, size).tolist()))
    self.burnt = np.flatnonzero(generator.random(n) < 0.15)
    size = int(generator.integers(1, min(n, 6) + 1))
    self.rounds = np.sort(generator.choice(n, size, replace=False))
    self.strategies = [make_strategy(n)] * (1 + len(self.restarts))
    if self.restarts and generator.random() < 0.5:  # The last restart brings a tree.
      self.strategies[-1] = tree.TreeOnline()

  @property
  def stddevs(self):
    return self.multipliers * self.clip_norms

  def streams(self):
    """First and last round, exclusive, of each stream of noise."""
    return zip([0, *self.restarts], [*self.restarts, self.num_rounds])


def _piecewise(generator, num_rounds, values):
  changed = generator.random(num_rounds) < 0.2
  pieces = np.cumsum(changed)
  return generator.choice(values, pieces[-1] + 1)[pieces]


def map_from_normals(history, stream_rows):
  """Returns the map from the normals of all streams to the noise of all rounds, [n, n]."""
  blocks = [
    history.stddevs[first:last, None] * stream_rows(strategy, last - first)
    for strategy, (first, last) in zip(history.strategies, history.streams(), strict=True)
  ]
  return scipy.linalg.block_diag(*blocks)


def rows_of_graph(strategy, num_rounds):
  """Rows as a stream of TensorFlow makes them, for Z of standard deviation 1."""
  basis = tf.eye(num_rounds, dtype=tf.float64)
  stream = streams.make_stream(
    strategy, [tf.TensorSpec([num_rounds])], draw=lambda seed, row, specs: [tf.gather(basis, row)]
  )
  state, made = stream.init(), []
  for _ in range(num_rounds):
    (row,), state = stream.next(state)
    made.append(row.numpy())
  return 2.0**-lattice.BITS * np.array(made)


class Basis:
  """Takes the place of `normals.Normals`: the normals of round t are unit vector t."""

  def __init__(self, seed):
    del seed

  def fill(self, row, chunk, scale, part):
    assert chunk == 0
    part[:] = 0.0
    part[row] = np.rint(scale)


def rows_of_engine(strategy, num_rounds):
  """Rows as the engine makes them, for Z of standard deviation 1."""
  maker = rows.RowMaker(
    strategy, size=num_rounds, num_rounds=num_rounds, seed=b'basis', num_threads=1
  )
  made = np.empty([num_rounds, num_rounds], np.int64)
  for row in made:
    maker.make(row)
  return 2.0**-lattice.BITS * made


def true_effect(history, noise_map):
  """The largest ‖Σ^−½ δ‖ of any update of the device, burnt rounds unseen.

  In each of its rounds an update is any vector of at most the clip norm; the
  largest is sought over signs and, from there, over directions.
  """
  seen = np.setdiff1d(np.arange(history.num_rounds), history.burnt)
  covariance = noise_map[seen] @ noise_map[seen].T
  places = [i for i, t in enumerate(seen) if t in history.rounds]
  if not places:
    return 0.0
  clips = history.clip_norms[seen[places]]
  inverse = np.linalg.inv(covariance)[np.ix_(places, places)]
  matrix = inverse * np.outer(clips, clips)
  best = max(
    (np.array(signs) @ matrix @ signs, signs)
    for signs in itertools.product((1.0, -1.0), repeat=len(places))
  )
  directions = np.eye(len(places)) * 0.1
  directions[:, 0] += best[1]
  for _ in range(20):
    for i, others in enumerate(matrix):
      pull = others @ directions - others[i] * directions[i]
      length = np.linalg.norm(pull)
      if length:
        directions[i] = pull / length
  lengths = np.linalg.norm(directions, axis=1, keepdims=True)
  directions /= np.where(lengths, lengths, 1.0)
  found = np.trace(directions.T @ matrix @ directions)
  return float(np.sqrt(max(found, best[0])))


def noise_of(history, folder):
  """The noise as replay takes it from a log in which every change was declared."""
  first, n = history.strategies[0], history.num_rounds
  log = writer.LogWriter(
    folder / 'log.parquet',
    metadata=noise_record.run_metadata(
      first, float(history.multipliers[0]), clip_norm=float(history.clip_norms[0])
    ),
  )
  later = {
    t: None if after is before else after
    for t, before, after in zip(history.restarts, history.strategies, history.strategies[1:])
  }
  for t in range(n):
    changed = t and history.stddevs[t] != history.stddevs[t - 1]
    values = dict(
      noise_multiplier=float(history.multipliers[t]), clip_norm=float(history.clip_norms[t])
    )
    if changed or t in later:
      restart = dict(restart=True, strategy=later[t]) if t in later else {}
      log.change_noise(t, **(values if changed else {}), **restart)
    log.append(t, ['a'] if t in history.rounds else [], 86400 + t)
  log.close()
  run = runs.Run.of(log_lib.read_log(log.path), first)
  assert void.reason([run]) is None
  return run.noise


def replayed_effect(history, folder):
  """Sensitivity over noise multiplier, as replay has it for the device."""
  noise = noise_of(history, folder)
  squares, _ = exposure.Exposure([noise]).squares(history.rounds, np.array([history.rounds.size]))
  return float(np.sqrt(squares[0])) / noise.noise_multiplier


@pytest.mark.slow
def test_replay_is_never_below_what_was_released(monkeypatch, tmp_path):
  """Random histories of all families, in both executors."""
  monkeypatch.setattr(normals, 'Normals', Basis)
  num_changed = num_equal = num_strategies = 0
  for number, family in zip(range(NUM_HISTORIES), itertools.cycle(every_family.FAMILIES)):
    history = History(
      functools.partial(every_family.example, family), np.random.default_rng(number)
    )
    (tmp_path / str(number)).mkdir()
    claimed = replayed_effect(history, tmp_path / str(number))
    num_changed += len(set(history.stddevs)) > 1
    num_strategies += len({id(strategy) for strategy in history.strategies}) > 1
    for executor in (rows_of_graph, rows_of_engine):
      truth = true_effect(history, map_from_normals(history, executor))
      assert truth <= claimed * (1 + 1e-4), (number, family, truth, claimed)
      num_equal += abs(truth / claimed - 1) < 1e-4
  # The bound is no empty one: most histories change, and many meet it.
  assert num_changed > NUM_HISTORIES / 2
  assert num_strategies > NUM_HISTORIES / 8
  assert num_equal > NUM_HISTORIES / 4


@pytest.mark.parametrize('executor', [rows_of_graph, rows_of_engine])
@pytest.mark.parametrize(
  'strategy, epsilon',
  [
    (files.load_strategy('blt-b100'), 6.879),
    (tree.TreeOnline(), 10.418),
    (tree_full.TreeFull(20), 10.418),
    (toeplitz.BandedToeplitz([1.0, 0.5, 0.375, 0.3125], None), 3.864),
  ],
  ids=['blt', 'tree_online', 'tree_full', 'banded_toeplitz'],
)
def test_less_noise_from_round_ten_on_is_what_replay_takes_it_to_be(
  strategy, epsilon, executor, monkeypatch, tmp_path
):
  """With buffers of two scales, ε was up to three times what was printed."""
  monkeypatch.setattr(normals, 'Normals', Basis)
  history = History(lambda n: strategy, np.random.default_rng(0))
  history.num_rounds = 20
  history.multipliers = np.repeat([8.0, 2.0], 10)
  history.clip_norms = np.ones(20)
  history.restarts, history.burnt = [], np.zeros(0, int)
  history.strategies = [strategy]
  history.rounds = np.arange(10)
  truth = true_effect(history, map_from_normals(history, executor))
  found = gaussian.epsilon(1.0 / truth, DELTA)
  printed = gaussian.epsilon(1.0 / replayed_effect(history, tmp_path), DELTA)
  assert printed == pytest.approx(epsilon, abs=1e-3)
  assert found <= printed * (1 + 1e-4)
