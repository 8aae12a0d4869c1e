"""Secret seeds, and the rows of Z that they determine, in NumPy."""

import hashlib
import os

import numpy as np

# Coordinates that are made in one go, in a processor's cache. It is part of what
# a row of Z is: another number would be other noise.
CHUNK = 1 << 14
SEED_BYTES = 16


def system_seed() -> bytes:
  """A fresh secret seed of 128 bits from the operating system."""
  return os.urandom(SEED_BYTES)


def fixed_seed(noise_seed: int) -> bytes:
  """The seed for a given number, always the same: for tests, never secret."""
  digest = hashlib.sha256(b'fl_dpftrl row seed %d' % noise_seed).digest()
  return digest[:SEED_BYTES]


class Draws:
  """Rows of Z, a chunk at a time: a pure function of seed, row and chunk.

  Philox maps the 256-bit counters of one key one-to-one. The key is the seed; row and chunk are
  the counter's upper words, and the lower ones count within a chunk. So no two of (row, chunk,
  position) share a counter, whatever number of words a normal takes. The normals are NumPy's
  from 64-bit words, whose tail reaches twelve standard deviations, and are rounded last. They are
  multiples of a step of at most 2⁻⁵⁰ around 0; 0 is one of these, with the probability of its
  step, 2⁻⁵², and no two normals share a word.

  Use one in each thread.

  Args:
    seed: 16 bytes.
  """

  def __init__(self, seed: bytes):
    self._key = np.frombuffer(seed, '<u8').astype(np.uint64)
    self._wide = np.empty(CHUNK)

  def fill(self, row: int, chunk: int, part: np.ndarray) -> None:
    """Writes a chunk of a row of Z; the last chunk may be shorter."""
    wide = self._wide[: part.size]
    counter = np.array([0, 0, chunk, row], np.uint64)
    philox = np.random.Philox(key=self._key, counter=counter)
    np.random.Generator(philox).standard_normal(out=wide)
    part[:] = wide
