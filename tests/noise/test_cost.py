import numpy as np
import pytest

from fl_dpftrl.commands import main
from fl_dpftrl.families import banded_toeplitz as toeplitz
from fl_dpftrl.families import dense, identity
from fl_dpftrl.families import tree_online as tree
from fl_dpftrl.noise import recurrence, rows


def test_memory_is_that_of_the_buffers(example):
  predicted = recurrence.predicted_cost(example(33), 33, 1000)
  maker = rows.RowMaker(example(33), size=1000, num_rounds=33, seed=bytes(32))
  assert abs(predicted.memory_bytes - maker.buffers.nbytes) <= 8000
  assert 1e-6 < predicted.seconds_per_round < 1e-2


def test_what_takes_longer():
  bands = lambda count: toeplitz.BandedToeplitz(np.ones(count), None)
  times = [
    recurrence.predicted_cost(strategy, 512, 4_000_000).seconds_per_round
    for strategy in (
      identity.Identity(),
      bands(64),
      tree.TreeOnline(),
      bands(342),
      dense.Dense(np.tri(512) + np.eye(512)),
    )
  ]
  assert times == sorted(times) and times[0] < 0.1 < times[-2] < 0.5


def test_refuses():
  with pytest.raises(ValueError, match='num_parameters must be .* got 0'):
    recurrence.predicted_cost(identity.Identity(), 5, 0)


def test_describe_shows_it(capsys):
  arguments = ['describe', 'blt-b400', '--num_parameters=4050748']
  assert not main.main(arguments)
  shown = capsys.readouterr().out
  assert 'memory_bytes' in shown and 'seconds_per_round' in shown
