"""Secret seeds, and the rows of Z that they determine."""

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# Version of the rows of Z: raise it with every change of their bits.
VERSION = 4
_PHILOX = 1
# Two 64-bit words make one seed.
SEED_SPEC = tf.TensorSpec([2], tf.int64, 'seed')
# A tensor's counters start at its index times this, more than it can use.
_COUNTERS_PER_TENSOR = 1 << 40
_LARGE = 1 << 16  # numbers of all tensors that XLA works on
_MAX_TENSORS = (1 << 64) // _COUNTERS_PER_TENSOR


def system_seed() -> tf.Tensor:
  """A fresh secret seed from the operating system, int64 [2], whenever the graph runs.

  The seed is not part of the graph. TensorFlow's own non-deterministic seeds will not do: they
  all come from a generator that is seeded with 32 bits itself. Its dataset of text lines reads
  the system's device as a stream. It drops the two bytes that end lines; the others stay
  independent and uniform over 254 values, so that 16 of them carry 127.8 bits. Sixteen lines
  hold fewer than 16 such bytes with a probability below 1e-29; running the graph then fails.
  """
  device = tf.raw_ops.TextLineDataset(filenames='/dev/urandom', compression_type='', buffer_size=64)
  lines = tf.data.experimental.from_variant(device, tf.TensorSpec([], tf.string)).take(16)
  text = lines.reduce(tf.constant(''), lambda joined, line: joined + line)
  words = tf.io.decode_raw(tf.strings.substr(text, 0, 16), SEED_SPEC.dtype)
  return tf.ensure_shape(words, SEED_SPEC.shape)


def fixed_seed(noise_seed: int) -> tf.Tensor:
  """The seed for a given number, the same always: for tests, never secret."""
  digest = hashlib.sha256(b'fl_dpftrl noise seed %d' % noise_seed).digest()
  return tf.constant(np.frombuffer(digest[:16], '<i8').astype(np.int64))


def draw(seed: tf.Tensor, row: tf.Tensor, specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
  """Independent standard normals of one round, float64: a function of seed and round.

  Philox maps the 128-bit counters of one key one-to-one. The first word of the seed is the key;
  a counter's high half is the second word ⊕ row, its low half counts within the row, from an
  offset for each tensor. So no two of (row, tensor, position) share a counter, and neither key
  nor counters are known without the seed. The generator is named, not left to the device.

  The normals are made by Box and Muller from 64-bit uniforms, which reach 9.5
  standard deviations. TensorFlow's own end at 5.68 in float32, beyond which lies 1.4e-8 of
  the mass: seeing an output there would betray more than a delta of 1e-10.
  """
  if len(specs) > _MAX_TENSORS:
    raise ValueError(f'specs has {len(specs)} tensors, beyond {_MAX_TENSORS}')
  tensors = []
  for i, spec in enumerate(specs):
    size = spec.shape.num_elements()
    pairs = normals(random_words(seed, row, i, size + size % 2))
    tensors.append(tf.reshape(pairs[:size], spec.shape))
  return tensors


def random_words(seed: tf.Tensor, row: tf.Tensor, tensor_index: int, num_words: int) -> tf.Tensor:
  """uint64 words for one tensor of one row, two for each of its counters."""
  if num_words > _COUNTERS_PER_TENSOR:
    raise ValueError(f'num_words={num_words} is too many for one tensor')
  low = tf.constant(tensor_index * _COUNTERS_PER_TENSOR, tf.uint64)
  high = tf.bitcast(tf.bitwise.bitwise_xor(seed[1], row), tf.uint64)
  return tf.raw_ops.StatelessRandomUniformFullIntV2(
    shape=[num_words],
    key=tf.bitcast(seed[:1], tf.uint64),
    counter=tf.stack([low, high]),
    alg=tf.constant(_PHILOX),
    dtype=tf.uint64,
  )


def normals(words: tf.Tensor) -> tf.Tensor:
  """Turns uniform uint64 words into as many independent standard normals, float64.

  A word w stands for u = (w + 1/2) / 2⁶⁴. It is read as a signed number s, and u comes from the
  nearer end by h = |s + 1/2| / 2⁶⁴: u = h for s ≥ 0, and u = 1 − h for s < 0, where s = w − 2⁶⁴. h
  lies in [2⁻⁶⁵, 1/2], with the relative precision of float64 all over. −2 log u is then −2 log h
  or −2 log1p(−h), which is at least 2⁻⁶⁴: no radius is 0 or infinite. An angle of 2π u is taken as
  quarter turns and a rest up to π/4, whose sine and cosine are the beginnings of their series.

  Source: Box and Muller 1958.
  """
  first, second = tf.split(tf.bitcast(words, tf.int64), 2)
  return by_xla(_turned, by_xla(_radii, first), second)


def by_xla(function: Callable[..., Any], *arguments: Any) -> Any:
  """Calls a function of tensors and of constants: by XLA in few passes if tensors are large."""
  tensors = filter(tf.is_tensor, tf.nest.flatten(arguments))
  is_large = sum(tensor.shape.num_elements() for tensor in tensors) >= _LARGE
  return (_compiled(function) if is_large else function)(*arguments)


@functools.lru_cache(64)
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
  """Returns one function of TensorFlow for each of Python: another would be compiled anew."""
  return tf.function(function, jit_compile=True, autograph=False)


def _radii(words: tf.Tensor) -> tf.Tensor:
  signed = tf.cast(words, tf.float64) + 0.5
  end, is_above = tf.abs(signed) * 2.0**-64, signed < 0.0
  # XLA's log1p is off by 2⁻⁴⁶ of itself beyond 1/4, where 1 − h loses nothing.
  log = tf.math.log(tf.where(is_above, 1.0 - end, end))
  return tf.sqrt(-2.0 * tf.where(is_above & (end < 0.25), tf.math.log1p(-end), log))


def _turned(radii: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
  """Returns radii times the cosines, then times the sines, of angles of π / 2⁶³ in words."""
  quarters = tf.bitwise.right_shift(words + 2**61, 62)
  rest = tf.cast(words - tf.bitwise.left_shift(quarters, 62), tf.float64) + 0.5
  rest = (math.pi * 2.0**-63) * rest
  # The next terms are below 2⁻⁵⁷.
  even, odd = (_series(tf.square(rest), first) for first in (0, 1))
  is_swapped = tf.equal(quarters & 1, 1)
  signed = lambda value, turns: tf.where(tf.equal(turns & 2, 2), -value, value)
  cosine = signed(tf.where(is_swapped, rest * odd, even), quarters + 1)
  sine = signed(tf.where(is_swapped, even, rest * odd), quarters)
  return tf.concat([radii * cosine, radii * sine], 0)


def _series(square: tf.Tensor, first: int) -> tf.Tensor:
  """Returns Σ (−x²)ᵏ / (2k + first)! for k < 9, from x²."""
  result = tf.zeros_like(square)
  for k in reversed(range(9)):
    result = (-1.0) ** k / math.factorial(2 * k + first) + square * result
  return result
