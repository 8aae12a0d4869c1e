"""Why buffers of 8 bits are refused: what they do to the privacy loss."""

import numpy as np


def bfloat16(values):
  """Rounded to the nearest number of 8 significant bits."""
  words = np.asarray(values, np.float32).view(np.uint32)
  rounded = words + np.uint32(0x7FFF) + ((words >> 16) & 1)
  return (rounded & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def mean_loss(store, size=1_000_000, weight=0.5, stddev=1.0):
  """Mean privacy loss of two rounds in which a device takes part in the first.

  y₀ = z₀, y₁ = z₁ − weight · store(y₀). From what is released, o = x + y, follows
  z₁ = y₁ + weight · store(y₀): of that the neighbours x and 0 are told apart, and
  the difference of their z is what the Gaussian has to hide.
  """
  generator = np.random.default_rng(1)
  change = np.full(size, 1 / np.sqrt(size))  # An update of norm 1.
  y = generator.normal(size=size) * stddev
  shift = weight * (store(y + change) - store(y))
  return (change @ change + shift @ shift) / (2 * stddev**2)


def test_bfloat16_history_costs_more_privacy_than_is_accounted():
  accounted = (1 + 0.5**2) / 2
  np.testing.assert_allclose(mean_loss(lambda y: y), accounted, rtol=1e-9)
  float32 = mean_loss(lambda y: y.astype(np.float32).astype(np.float64))
  assert abs(float32 / accounted - 1) < 1e-3
  assert mean_loss(bfloat16) > 1.5 * accounted
