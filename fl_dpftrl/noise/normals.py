"""Standard normals from secret bits, scaled and rounded to integers without an error."""

import functools
import hashlib
import math
import os

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fl_dpftrl.noise import exact

# Normals that are made in one go, in a processor's cache. It is part of what they are: another
# number would be other noise.
CHUNK = 1 << 14
SEED_BYTES = 32
# No normal that float64 decides is above 9.5, nor one of 128 bits above 13.4: far below 2⁶³.
MAX_SCALE = 2.0**58
# No normal is above 37 but with a probability of 1e-299, and float64 holds integers up to 2⁵³.
_MAX_FLOAT_SCALE = 2.0**47
_PAIRS = CHUNK // 2
# A counter is for the words of a chunk, or for further bits of one of its pairs.
_WORDS, _FURTHER = 0, 1
# Blocks of 128 further bits that a pair has.
_FURTHER_BLOCKS = 1 << 19


def system_seed() -> bytes:
  """A fresh secret seed of 256 bits from the operating system."""
  return os.urandom(SEED_BYTES)


def fixed_seed(noise_seed: int) -> bytes:
  """The seed for a given number, always the same: for tests, never secret."""
  return hashlib.sha256(b'fl_dpftrl row seed %d' % noise_seed).digest()


class Normals:
  """Integers round(scale · ξ), each ξ a standard normal: a function of seed, row and place.

  AES-256 in counter mode gives a word of 64 bits for each normal. Two words begin the infinite
  sequence of bits of a pair: a binary fraction u; two signs; a binary fraction v, whose first bit
  is inverted. The pair is ±r·cos φ and ±r·sin φ with r = √(−2 ln u) and φ = v·π/2, by Box and
  Muller 1958. Rows, chunks and pairs never share a counter.

  No integer is wrongly rounded. A value is computed in float64 from the words alone, and taken if
  no boundary between integers is within its error bound E; else again in extended precision, where
  NumPy has it; else in decimals, with as many further bits as it takes. Where NumPy's logarithm is
  within 4 units in the last place (`check_logarithm`), the error of scale · ξ is below
    scale · (2⁻⁴⁸ r + 2⁻⁵²/r + 2⁻⁶³/(u r)), u and r as computed:
  - −2 ln u is off by 2·2⁻⁵³ because u is rounded, by 2·2⁻⁶⁴/u because of further bits, and
    relatively by 4·2⁻⁵² through the logarithm. The root halves relative errors. So r is off by
    less than (2⁻⁵² + 2⁻⁶³/u)/(2r) and 2⁻⁵¹ r + 2⁻⁵³ r, of which half are to spare.
  - x = φ − π/4, within ±π/4, is off by 3·2⁻⁵³·π/4 by three roundings and by 2⁻⁶²·π/2 by further
    bits; the polynomials of sine and cosine by 2⁻⁵⁴ for terms left out and by 4·2⁻⁵³ for rounding,
    since their terms fall by more than 3 from one to the next. √2 cos φ = cos x − sin x and
    √2 sin φ = cos x + sin x, two products and √½ bring 8·2⁻⁵³ r more. In all below 24·2⁻⁵³ r.
  The terms in r are below 2⁻⁴⁸ r. E is four times the bound. Where u is below 2⁻⁴⁰, or r is
  rounded to 0, E is infinite. Extended precision has 11 bits more, and no more bits of u and v.

  Use one object in each thread.

  Args:
    seed: secret, 32 bytes: the key.
    stream: keeps the uses of one seed apart, 0 to 255.

  Raises:
    ValueError: for a seed or a stream that will not do.
    RuntimeError: if NumPy's logarithm is less exact than E assumes.
  """

  def __init__(self, seed: bytes, *, stream: int = 0):
    if not isinstance(seed, bytes) or len(seed) != SEED_BYTES:
      raise ValueError(f'seed must be {SEED_BYTES} bytes')
    if not 0 <= stream < 1 << 8:
      raise ValueError(f'stream must be between 0 and 255, got {stream!r}')
    check_logarithm()
    self._key, self._stream = algorithms.AES256(seed), stream
    self._pairs = _Pairs(_PAIRS, np.float64)
    self._zeros = bytes(8 * CHUNK)

  def fill(self, row: int, chunk: int, scale: float, out: np.ndarray) -> None:
    """Writes round(scale · ξ) for normals of a row, from the beginning of a chunk on.

    Args:
      row: from 0, below 2⁴⁸.
      chunk: from 0; the last that is reached below 2³².
      scale: above 0, at most 2⁵⁸; above 2⁴⁰, float64 decides few of them.
      out: int64, or float64 for a scale of at most 2⁴⁷, whose integers it holds; several chunks at
        a time are made faster than each alone.

    Raises:
      ValueError: if scale is out of its range.
    """
    if not 0.0 < scale <= MAX_SCALE:
      raise ValueError(f'scale must be above 0 and at most 2^58, got {scale!r}')
    if out.dtype == np.float64 and scale > _MAX_FLOAT_SCALE:
      raise ValueError(f'scale must be at most 2^47 for float64, got {scale!r}')
    if not out.size:
      return
    undecided = []
    for number, at in enumerate(range(0, out.size, CHUNK), chunk):
      words = np.frombuffer(self._bits(row, number, _WORDS, 0, 8 * CHUNK), '<u8').reshape(2, -1)
      made, places = self._pairs.rounded(words[0], words[1], scale)
      part = out[at : at + CHUNK]
      with np.errstate(invalid='ignore'):  # Of an infinite one, which is not decided.
        np.copyto(part, made[: part.size], casting='unsafe')
      places = places[places < part.size]
      undecided.append((at + places, *words[:, places % _PAIRS]))
    places, first, second = map(np.concatenate, zip(*undecided))
    if places.size and has_extended():
      made, open_ = _Pairs(places.size, np.longdouble).rounded(first, second, scale)
      is_sine = places % CHUNK >= _PAIRS
      own = np.arange(places.size) + places.size * is_sine
      out[places] = made[own]
      kept = np.isin(own, open_)
      places, first, second = places[kept], first[kept], second[kept]
    for place, *pair in zip(places.tolist(), first.tolist(), second.tolist()):
      out[place] = self._exact(row, chunk + place // CHUNK, place % CHUNK, pair, scale)

  def _exact(self, row: int, chunk: int, place: int, words: list[int], scale: float) -> int:
    """round(scale · ξ) of a normal of a chunk, whose pair begins with the given words."""
    first, second = words
    pair, is_sine = place % _PAIRS, place >= _PAIRS
    is_negative = second >> (62 if is_sine else 63) & 1
    u = exact.Bits(first, 64)
    v = exact.Bits(second & (1 << 62) - 1 ^ 1 << 61, 62)
    for block in range(_FURTHER_BLOCKS):
      text = self._bits(row, chunk, _FURTHER, pair * _FURTHER_BLOCKS + block, 16)
      u, v = u.then(text[:8]), v.then(text[8:])
      made = exact.rounded(u, v, is_sine, scale)
      if made is not None:
        return -made if is_negative else made
    raise RuntimeError('2^26 bits did not decide a normal')

  def _bits(self, row: int, chunk: int, use: int, block: int, size: int) -> bytes:
    fields = ((row, 6), (chunk, 4), (self._stream, 1), (use, 1), (block, 4))
    counter = b''.join(value.to_bytes(length, 'big') for value, length in fields)
    return Cipher(self._key, modes.CTR(counter)).encryptor().update(self._zeros[:size])


@functools.cache
def has_extended() -> bool:
  """Returns True if NumPy has numbers with 64 bits of precision here, as on x86 processors."""
  return np.finfo(np.longdouble).nmant >= 63


@functools.cache
def check_logarithm() -> None:
  """Compares NumPy's logarithm with decimals, at 272 places.

  Raises:
    RuntimeError: if it is off by more than 2 units in the last place, half of what E assumes.
  """
  for dtype in (np.float64, np.longdouble) if has_extended() else (np.float64,):
    points = np.random.default_rng(0).random(_PAIRS).astype(dtype)
    places = np.r_[: _PAIRS : _PAIRS // 256, _PAIRS - 16 : _PAIRS]
    off = exact.units_off_log(points[places], np.log(points)[places])
    if not off <= 2.0:
      raise RuntimeError(
        f'numpy.log of {dtype.__name__} is off by {off:.3g} units in the last place on this'
        ' machine, too many for noise that is exactly rounded; use another release of NumPy'
      )


class _Pairs:
  """Pairs of normals in one precision, with the memory that computing them takes."""

  def __init__(self, size: int, dtype: type[np.floating]):
    self._dtype = dtype
    self._number, self._square, self._radius, self._error = np.empty((4, size), dtype)
    self._values, self._made = np.empty((2, 2, size), dtype)
    self._open = np.empty((2, size), bool)
    # Factors of E; 2⁻⁵³ is the relative rounding of float64.
    rounding = float(np.finfo(dtype).epsneg)
    self._by_radius, self._by_rounding = 128.0 * rounding, 8.0 * rounding
    terms = 18 if dtype is np.float64 else 22
    one = dtype(1.0)
    inverse = [one / dtype(math.factorial(k)) for k in range(terms)]
    self._waves = [
      [-c if i % 2 else c for i, c in enumerate(inverse[start::2])] for start in (0, 1)
    ]
    self._half = np.sqrt(dtype(0.5))
    self._turn = 2.0 * np.arctan(one) * dtype(2.0**-64)

  def rounded(
    self, first: np.ndarray, second: np.ndarray, scale: float
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns round(scale · ξ), all cosines first, and the places that are not decided.

    Args:
      first, second: words of the pairs, uint64, shape [size].
      scale: by which ξ is multiplied.
    """
    with np.errstate(divide='ignore', invalid='ignore'):  # Where E is infinite.
      values, error = self.approximate(first, second, scale)
      np.rint(values, out=self._made)
      values -= self._made
      np.abs(values, out=values)
      np.less(values, np.subtract(0.5, error, out=error), out=self._open)
    np.logical_not(self._open, out=self._open)
    return self._made.ravel(), np.flatnonzero(self._open)

  def approximate(
    self, first: np.ndarray, second: np.ndarray, scale: float
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns scale · ξ, shape [2, size], and E, shape [size], until the next call."""
    number, radius, error, values = self._number, self._radius, self._error, self._values
    np.copyto(number, first, casting='unsafe')
    number *= self._dtype(2.0**-64)
    np.log(number, out=radius)
    np.abs(radius, out=radius)  # ln 1 is 0; times −2 it would be −0, and E −∞.
    radius *= 2.0
    np.sqrt(radius, out=radius)
    np.divide(2.0**-61, number, out=error)
    error += self._by_rounding
    error /= radius
    error[number < 2.0**-40] = np.inf
    np.multiply(radius, self._by_radius, out=number)
    error += number
    error *= scale
    radius *= self._half * scale
    self._set_waves(second)
    cosine, sine = values
    cosine -= sine  # √2 cos φ
    sine *= 2.0
    sine += cosine  # √2 sin φ
    for half, signs in zip(values, (second, second << np.uint64(1))):
      np.copyto(number, signs.view(np.int64), casting='unsafe')
      half *= np.copysign(radius, number, out=number)
    return values, error

  def _set_waves(self, second: np.ndarray) -> None:
    """Writes cos x and sin x, for x = φ − π/4, into the values."""
    number, square = self._number, self._square
    np.copyto(number, (second << np.uint64(2)).view(np.int64), casting='unsafe')
    number *= self._turn
    np.multiply(number, number, out=square)
    for value, (*others, next_, last) in zip(self._values, self._waves):
      np.multiply(square, last, out=value)
      value += next_
      for factor in reversed(others):
        value *= square
        value += factor
    self._values[1] *= number
