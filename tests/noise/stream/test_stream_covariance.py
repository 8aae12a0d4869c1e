"""The covariance that streams add, over many coordinates, against σ² N Nᵀ."""

import numpy as np
import pytest
import scipy.linalg
import tensorflow as tf

from fl_dpftrl.families import identity
from fl_dpftrl.noise import stream as streams

pytestmark = pytest.mark.tff

STDDEV = 0.7
NUM_ROUNDS = 9
# Coordinates, which are independent: 5 standard errors are 3 % of a variance.
SAMPLES = 50_000


def released(strategy, template, num_rounds=NUM_ROUNDS):
  """Rows of noise, shape [num_rounds, tensors, samples]."""
  stream = streams.make_stream(strategy, template, stddev=STDDEV, noise_seed=2024)
  next_fn = tf.function(stream.next, reduce_retracing=True)
  state, result = stream.init(), []
  for _ in range(num_rounds):
    row, state = next_fn(state)
    result.append([part.numpy().ravel() for part in row])
  return np.array(result)


def agrees(rows, covariance):
  """Returns true if rows [n, samples] have this covariance, to 5 standard errors.

  Whitened rows have covariance I, and each entry of its estimate a standard
  error of 1/√samples (√2/√samples on the diagonal).
  """
  white = scipy.linalg.solve_triangular(np.linalg.cholesky(covariance), rows, lower=True)
  n, samples = white.shape
  deviation = white @ white.T / samples - np.eye(n)
  errors = (1.0 + (np.sqrt(2.0) - 1.0) * np.eye(n)) / np.sqrt(samples)
  return bool((np.abs(deviation) < 5.0 * errors).all())


@pytest.mark.slow
def test_covariance_over_rounds(example):
  strategy = example(NUM_ROUNDS)
  noising = strategy.noising_matrix(NUM_ROUNDS)
  covariance = STDDEV**2 * noising @ noising.T
  rows = released(strategy, [tf.TensorSpec([SAMPLES], tf.float32)])[:, 0]
  assert agrees(rows, covariance)
  for wrong in (2 / 3, 1.5):
    assert not agrees(wrong * rows, covariance)
  if isinstance(strategy, identity.Identity):
    return  # Its rows are alike: no order is wrong.
  assert not agrees(rows[::-1], covariance)
  assert not agrees(np.roll(rows, 1, axis=0), covariance)


@pytest.mark.slow
def test_layers_are_independent_of_each_other(example):
  strategy = example(4)
  noising = strategy.noising_matrix(4)
  spec = tf.TensorSpec([SAMPLES // 100, 100], tf.float32)
  rows = released(strategy, [spec, spec], num_rounds=4)
  covariance = np.kron(STDDEV**2 * noising @ noising.T, np.eye(2))
  assert agrees(rows.reshape(8, SAMPLES), covariance)
  same = np.repeat(rows[:, :1], 2, axis=1)
  assert not agrees(same.reshape(8, SAMPLES), covariance)
