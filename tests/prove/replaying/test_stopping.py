"""A run that ends because of what it released: which of its printed ε hold."""

import math
from typing import NamedTuple

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.prove.replaying import opened_runs, replays
from tests.prove.replaying.in_memory import log_of

DELTA, PATHS, DECLARED, ENDED = 1e-3, 200_000, 200, 20


class Mechanism(NamedTuple):
  """A BLT, or the identity where it has no buffers, with its noise and declared min-sep."""

  decay: list[float]
  scale: list[float]
  noise_multiplier: float
  min_sep: int

  @property
  def strategy(self):
    return dpftrl.BLT(self.decay, self.scale) if self.decay else dpftrl.Identity()


IDENTITY = Mechanism([], [], 6.0, 1)
BLT = Mechanism([0.9, 0.5], [0.1, 0.2], 2.0, 5)


def statement_of(mechanism, num_rounds):
  """Returns what is printed of a run of a device that took part whenever it could."""
  rows = [(t, 'a') for t in range(0, num_rounds, mechanism.min_sep)]
  run = opened_runs.RecordedRun.of(
    log_of(rows, num_rounds),
    mechanism.strategy,
    noise_multiplier=mechanism.noise_multiplier,
    participation=dpftrl.MinSep(num_rounds=DECLARED, min_sep=mechanism.min_sep),
  )
  return replays.replay(run, delta=DELTA)


def simulated(mechanism, seed, *, hesitant):
  """Yields the privacy loss of each path after 1, 2, … declared rounds, drawn with the device."""
  rng = np.random.default_rng(seed)
  decay, scale = (np.array(values, np.float32) for values in mechanism[:2])
  buffers = np.zeros((decay.size, PATHS), np.float32)
  loss, last = np.zeros(PATHS, np.float32), np.full(PATHS, -mechanism.min_sep)
  for t in range(DECLARED):
    joins = t - last >= mechanism.min_sep
    if hesitant:
      joins &= (loss >= loss.mean()) | (t - last > mechanism.min_sep)
    last[joins] = t
    mean = (joins + scale @ buffers) / np.float32(mechanism.noise_multiplier)
    buffers = decay[:, None] * buffers + joins
    loss += mean * rng.standard_normal(PATHS, np.float32) + mean * mean / 2
    yield t + 1, loss


def excess(loss, epsilon):
  """Returns the terms whose mean is δ at ε, the hockey-stick divergence."""
  return np.maximum(0.0, -np.expm1(epsilon - loss))


@pytest.mark.slow
@pytest.mark.parametrize(
  'mechanism, goes_on_above, hesitant', [(IDENTITY, 1.8, False), (BLT, 3.0, True)]
)
def test_most_runs_end_and_those_whose_releases_betray_the_device_go_on(
  mechanism, goes_on_above, hesitant
):
  """After 20 rounds; the few that go on have all 200."""
  printed = statement_of(mechanism, ENDED)
  for t, loss in simulated(mechanism, 1, hesitant=hesitant):
    if t == ENDED:
      goes_on, ended = loss > goes_on_above, loss.copy()
  released = np.where(goes_on, loss, ended)
  assert goes_on.mean() < 0.05
  assert excess(released, printed.declared.guarantee.epsilon()).mean() < DELTA
  assert excess(released, printed.worst_case.epsilon()).mean() > 6 * DELTA


@pytest.mark.slow
@pytest.mark.parametrize('mechanism', [IDENTITY, BLT])
def test_a_run_that_ends_once_it_betrays_more_than_is_printed_of_its_rounds(mechanism):
  """It looks every ten rounds."""
  worst = {}
  for t in range(10, DECLARED + 1, 10):
    schema = dpftrl.MinSep(num_rounds=t, min_sep=mechanism.min_sep)
    given = dict(noise_multiplier=mechanism.noise_multiplier, delta=DELTA)
    worst[t] = dpftrl.account(mechanism.strategy, schema, **given).epsilon()
  declared = statement_of(mechanism, ENDED).declared.guarantee.epsilon()
  assert declared == worst[DECLARED]
  ends = {'worst case': np.zeros(PATHS), 'declared': np.zeros(PATHS)}
  running = {name: np.ones(PATHS, bool) for name in ends}
  for t, loss in simulated(mechanism, 2, hesitant=False):
    if t in worst:
      for name, epsilon in (('worst case', worst[t]), ('declared', declared)):
        over = running[name] & (loss > epsilon + 0.2)
        ends[name][over] = excess(loss[over], epsilon)
        running[name] &= ~over
  assert ends['declared'].mean() < DELTA
  assert ends['worst case'].mean() > 3 * DELTA


def test_the_declared_figure_is_that_of_all_declared_rounds():
  early, whole = (statement_of(IDENTITY, n) for n in (ENDED, DECLARED))
  assert early.declared == whole.declared
  assert whole.worst_case.to_json().items() <= early.declared.to_json().items()
  assert early.declared.participation.num_rounds == DECLARED and early.declared.holds
  assert early.worst_case.epsilon() == pytest.approx(2.189, abs=1e-3)
  assert early.worst_case.sensitivity == pytest.approx(math.sqrt(ENDED))
  told = ' '.join(early.assumptions)
  assert 'neither participation nor the end of the run depended on what was released' in told
  assert 'all 200 declared rounds' in told and 'max_epsilon' in told


def test_a_guarantee_of_a_statement_is_one_sentence():
  statement = statement_of(IDENTITY, ENDED)
  declared = statement.declared.guarantee
  assert repr(statement.headline) == f'declared: {declared}, of 200 declared rounds'
  assert repr(statement.parts[0]) == f'worst case: {statement.worst_case}'
  rows = [(0, 'a'), (0, 'b'), (1, 'a')]
  run = opened_runs.RecordedRun.of(
    log_of(rows, 9),
    dpftrl.Identity(),
    noise_multiplier=1.0,
    participation=dpftrl.MinSep(num_rounds=9, min_sep=2),
  )
  broken = replays.replay(run, delta=DELTA).declared
  assert repr(broken).startswith('declared: does not hold, as at least 2 rounds apart and')
