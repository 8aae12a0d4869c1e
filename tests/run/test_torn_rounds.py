"""Updates that are interrupted or changed while they are added: the round fails."""

import sys

import numpy as np
import pytest

from fl_dpftrl.claims import lattice_units
from fl_dpftrl.run import private_round, sums
from fl_dpftrl.support.kernels import sum_loops as loops
from tests import made

ADDS = (private_round.__file__, sums.__file__)


class TimeLimitError(Exception):
  """What a handler of a signal raises."""


def opened(folder):
  return made.aggregator(folder, noise_multiplier=0.0, report_goal=1)


def interrupting(lines):
  """A function for `sys.settrace` that raises before some line of the code that adds."""
  left = [lines]

  def trace(frame, event, argument):
    if frame.f_code.co_filename not in ADDS:
      return None
    if event == 'line':
      left[0] -= 1
      if not left[0]:
        raise TimeLimitError
    return trace

  return trace


def add_twice(round_, lines):
  """Adds an update, again if that was interrupted; returns how often it was."""
  attempts = 0
  while True:
    attempts += 1
    sys.settrace(interrupting(lines if attempts == 1 else 0))
    try:
      round_.add(np.array([1.0, 0.0, 0.0]))
      return attempts
    except TimeLimitError:
      continue
    finally:
      sys.settrace(None)


@pytest.mark.slow
def test_an_add_that_was_interrupted_and_done_again_never_counts_twice(tmp_path):
  whole, torn, lines = 0, 0, 0
  with opened(tmp_path) as aggregator:
    while True:
      lines += 1
      round_ = aggregator.round([0, 1])
      try:
        with round_:
          attempts = add_twice(round_, lines)
      except ValueError as error:
        assert 'torn' in str(error)
        torn += 1
        continue
      assert round_.num_updates == 1 and np.abs(round_.mean).max() <= 1.0
      whole += 1
      if attempts == 1:  # No line was left to interrupt.
        break
  assert whole > 3 and torn > 10


def test_a_torn_round_takes_no_update_and_releases_nothing(tmp_path, monkeypatch):
  with opened(tmp_path) as aggregator:
    round_ = aggregator.round([0, 1, 2])
    with pytest.raises(ValueError, match='round 0 was torn.*its row of noise is used up'):
      with round_:
        round_.add(np.zeros(3))  # As many as the goal.
        with monkeypatch.context() as patch:
          patch.setattr(loops, 'add', lambda *_: (_ for _ in ()).throw(TimeLimitError))
          with pytest.raises(TimeLimitError):
            round_.add(np.ones(3))
        with pytest.raises(ValueError, match='round 0 was torn'):
          round_.add(np.ones(3))
    assert aggregator.next_round == 1
    with aggregator.round([0, 1, 2]) as another:
      another.add(np.array([1.0, 0.0, 0.0]))
    assert np.allclose(another.mean, [1.0, 0.0, 0.0], atol=1e-6)


@pytest.mark.parametrize('later', [[3.0, 0.0, 0.0], [np.nan] * 3, [1e30, 0.0, 0.0]])
@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_an_update_that_got_longer_after_it_was_measured_is_not_released(later, dtype, monkeypatch):
  update, bound = np.array([[0.5, 0.0, 0.0]], dtype), loops.bound

  def changing(*args):
    bound(*args)
    update[:] = later  # As another thread does.

  monkeypatch.setattr(loops, 'bound', changing)
  total = sums.Sum(3, unit=lattice_units.Unit.of(1.0))
  total.begin(1.0)
  with pytest.raises(ValueError, match='was changed while it was added'):
    total.add([update])
  monkeypatch.setattr(loops, 'bound', bound)
  total.begin(1.0)
  assert not total.total.any()


def test_threads_that_an_interrupt_left_behind_add_to_no_later_round(monkeypatch):
  total = sums.Sum(3, unit=lattice_units.Unit.of(1.0))
  total.begin(1.0)
  before = total.total
  with monkeypatch.context() as patch:
    patch.setattr(loops, 'add', lambda *_: (_ for _ in ()).throw(TimeLimitError))
    with pytest.raises(TimeLimitError):
      total.add([np.ones((1, 3))])
  total.begin(1.0)
  before += 7  # What such a thread does.
  assert not total.total.any()


@pytest.mark.parametrize('error', [KeyboardInterrupt, TimeLimitError])
def test_an_interrupt_while_a_round_begins_leaves_no_round_open(tmp_path, error, monkeypatch):
  with opened(tmp_path) as aggregator:
    with monkeypatch.context() as patch:
      patch.setattr(aggregator._turns.observers, 'begin', lambda *_: (_ for _ in ()).throw(error))
      with pytest.raises(error):
        with aggregator.round([0]):
          pass
    with aggregator.round([0]) as round_:
      round_.add(np.zeros(3))
    assert round_.index == 1
