import subprocess
import sys

import numpy as np
import pytest

from fl_dpftrl.families import banded
from fl_dpftrl.noise import reference
from tests import oracle


@pytest.mark.parametrize('num_rounds', [1, 2, 7, 33])
def test_streams_the_product_of_noising_matrix_and_z(example, num_rounds):
  strategy = example(num_rounds)
  width = strategy.num_noise_rows(num_rounds)
  z = np.random.default_rng(0).normal(size=(width, 5))
  streamed = oracle.rows(reference.reference_stream(strategy, z), num_rounds)
  expected = strategy.noising_matrix(num_rounds) @ z
  np.testing.assert_allclose(streamed, expected, rtol=1e-12, atol=1e-12)


def test_next_is_pure(example):
  strategy = example(7)
  z = np.random.default_rng(1).normal(size=(strategy.num_noise_rows(7), 3))
  stream = reference.reference_stream(strategy, z)
  state = stream.init()
  for _ in range(6):
    once, after = stream.next(state)
    again, _ = stream.next(state)
    np.testing.assert_array_equal(once, again)
    state = after


def test_one_band_needs_no_history():
  strategy = banded.Banded(np.array([[2.0], [4.0]]))
  stream = reference.reference_stream(strategy, np.ones((2, 3)))
  np.testing.assert_allclose(oracle.rows(stream, 2), [[0.5] * 3, [0.25] * 3])


def test_z_that_ends_too_early_is_named(example):
  strategy = example(7)
  z = np.zeros((strategy.num_noise_rows(7) - 1, 2))
  with pytest.raises(ValueError, match=f'z has {len(z)} rows, row {len(z)} is'):
    oracle.rows(reference.reference_stream(strategy, z), 7)


def test_rounds_beyond_the_strategy_are_refused():
  strategy = banded.Banded(np.ones((3, 1)))
  stream = reference.reference_stream(strategy, np.zeros((9, 2)))
  with pytest.raises(ValueError, match='num_rounds=4 is beyond the 3 rounds'):
    oracle.rows(stream, 4)


def test_strategy_without_stream_is_named():
  with pytest.raises(ValueError, match='no noise stream: 3'):
    reference.reference_stream(3, np.zeros((1, 1)))


@pytest.mark.slow
def test_imports_no_tensorflow():
  code = (
    'import sys; import fl_dpftrl.noise.reference;'
    ' sys.exit(bool({"tensorflow", "jax"} & set(sys.modules)))'
  )
  finished = subprocess.run([sys.executable, '-c', code], check=False)
  assert finished.returncode == 0
