"""Standard normals from secret bits, scaled and rounded to integers without an error."""

import decimal
import functools
import hashlib
import os
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fl_dpftrl.noise import exact
from fl_dpftrl.support.kernels import normal_loops as loops

# Normals whose bits are made in one go, in a processor's cache. It is part of what they are:
# another number would be other noise.
CHUNK = 1 << 14
SEED_BYTES = 32
# No normal is above 16 but with a probability of 1e-57: far below 2⁶³.
MAX_SCALE = 2.0**58
# No normal is above 37 but with a probability of 1e-299, and float64 holds integers up to 2⁵³.
_MAX_FLOAT_SCALE = 2.0**47
# A counter is for the words of a chunk, or for further bits of one of its normals: those of an
# attempt, and what comes after them.
_WORDS, _FURTHER = 0, 1
_ATTEMPTS, _BLOCKS = 1 << 8, 1 << 2  # of a normal, and of an attempt
# Normals that are made by one operation: fewer would have threads wait for each other.
_BLOCK = 16 * CHUNK
# Attempts that are made in float64 before a normal is left to `exact`: one of 20 million is.
_FLOAT_ATTEMPTS = 3
# A word: the layer, the sign, and the first bits of u.
_LAYER_BITS, _U_BITS = 9, 54
_ERROR = 2.0**-48  # E of any layer over the scale.


def system_seed() -> bytes:
  """A fresh secret seed of 256 bits from the operating system."""
  return os.urandom(SEED_BYTES)


def fixed_seed(noise_seed: int) -> bytes:
  """The seed for a given number, always the same: for tests, never secret."""
  return hashlib.sha256(b'fl_dpftrl row seed %d' % noise_seed).digest()


class Normals:
  """Integers round(scale · ξ), each ξ a standard normal: a function of seed, row and place.

  AES-256 in counter mode gives a word of 64 bits for each normal: a layer i of `exact`, a sign,
  and the beginning of the infinite sequence of bits of a binary fraction u. By Marsaglia and Tsang
  2000, ξ is ±u·xᵢ where u < xᵢ₊₁/xᵢ, which holds for 99.3 % of the words. Else more fractions tell
  whether that point is below the density, or find one in the tail; and if there is none, the next
  attempt has another word. Rows, chunks, normals and attempts never share a counter.

  No integer is wrongly rounded, and no point wrongly taken, whatever the further bits of a fraction
  are. An integer is taken from float64 if no boundary between integers is within E of it, and else
  computed from as many bits as it takes (`exact`):
  - u·xᵢ is off by 4·2⁻⁵³ xᵢ through roundings of u, of xᵢ and of two products, and by 2⁻⁵⁴ xᵢ
    through further bits: below 0.6·2⁻⁵⁰ xᵢ. No xᵢ is above 4.1, so a first pass takes 2⁻⁴⁸ · scale
    as E for all, where the error is below 0.6·2⁻⁴⁸ · scale.
  - A second pass computes u·xᵢ·scale to twice the bits, in the middle of what further bits leave.
    It is off by ½·2⁻⁵⁴ xᵢ · scale through these, by 2⁻²⁴ of that and less than 2⁻⁵¹ through
    roundings; E is 0.51·2⁻⁵⁴ xᵢ · scale + 2⁻⁵⁰.
  - x₁ − ln(u)/x₁, for u of 64 bits and above 2⁻²⁰, is below 7.5. It is off by 2⁻⁴⁴/x₁ through
    further bits, by 4·2⁻⁵³·13.9/x₁ through a logarithm within 4 units in the last place, and by
    less than 2⁻⁴⁸ through other roundings; in all below 0.4·2⁻⁴⁴, and E is 2⁻⁴⁴ · scale, which has
    room for a logarithm within 60 units.
  Comparisons are taken from float64 where both sides differ by more than 2⁻³⁰, which is above 2¹⁰
  times their errors (`check_functions`).

  Use one object in each thread.

  Args:
    seed: secret, 32 bytes: the key.

  Raises:
    RuntimeError: if the machine's logarithm or exponential is less exact than E assumes.
  """

  def __init__(self, seed: bytes):
    if not isinstance(seed, bytes) or len(seed) != SEED_BYTES:
      raise ValueError(f'seed must be {SEED_BYTES} bytes')
    check_functions()
    # The block of a counter is what its encryption is.
    self._blocks = Cipher(algorithms.AES256(seed), modes.ECB()).encryptor()
    self._tables = _tables()
    self._counters = np.empty((_BLOCK // CHUNK, CHUNK // 2, 2), np.uint64)
    self._bits = np.empty(8 * _BLOCK + 16, np.uint8)  # AES asks for room behind.
    self._unsure = np.empty(_BLOCK + 1, np.int64)

  def fill(self, row: int, chunk: int, scale: float, out: np.ndarray) -> None:
    """Writes round(scale · ξ) for normals of a row, from the beginning of a chunk on.

    Args:
      row: from 0, below 2⁴⁸.
      chunk: from 0; the last that is reached below 2³².
      scale: above 0, at most 2⁵⁸; above 2⁵⁰, float64 decides few of them.
      out: int64, or float64 for a scale of at most 2⁴⁷, whose integers it holds; several chunks at
        a time are made faster than singly.
    """
    if not 0.0 < scale <= MAX_SCALE:
      raise ValueError(f'scale must be above 0 and at most 2^58, got {scale!r}')
    if out.dtype == np.float64 and scale > _MAX_FLOAT_SCALE:
      raise ValueError(f'scale must be at most 2^47 for float64, got {scale!r}')
    tables, open_places, open_words = self._tables, [], []
    scaled, most = tables.widths * scale, 0.5 - _ERROR * scale
    for start in range(0, out.size, _BLOCK):
      part = out[start : start + _BLOCK]
      words = self._words(row, chunk + start // CHUNK, part.size)
      count = loops.rounded(words, tables.limits, scaled, most, part, self._unsure)
      open_places.append(self._unsure[:count] + start)
      open_words.append(words[self._unsure[:count]])
    if open_places:
      self._settle(row, chunk, np.concatenate(open_places), np.concatenate(open_words), scale, out)

  def _settle(
    self, row: int, chunk: int, at: np.ndarray, words: np.ndarray, scale: float, out: np.ndarray
  ) -> None:
    """Writes the normals that their first words do not decide in float64."""
    bits, undecided = self._further(row, chunk, at, _FLOAT_ATTEMPTS), np.empty_like(at)
    count = loops.settled(words, bits, at, self._tables, scale, out, undecided)
    for place in undecided[:count].tolist():
      word = int(words[np.searchsorted(at, place)])
      out[place] = self._exact(row, chunk + place // CHUNK, place % CHUNK, word, scale)

  def _exact(self, row: int, chunk: int, place: int, word: int, scale: float) -> int:
    """round(scale · ξ) of a normal of a chunk, whose first word is given."""
    in_tail = False
    for attempt in range(_ATTEMPTS):
      counter = row << 80 | chunk << 48 | _FURTHER << 32 | (place * _ATTEMPTS + attempt) * _BLOCKS
      counters = [(counter + block).to_bytes(16, 'big') for block in range(_BLOCKS)]
      bits = self._blocks.update(b''.join(counters))
      first, second = (int.from_bytes(part, 'little') for part in (bits[:8], bits[8:16]))
      further = [int.from_bytes(bits[i : i + 16], 'big') for i in range(16, len(bits), 16)]
      u = exact.Fraction(word >> 64 - _U_BITS << 128 | further[0], _U_BITS + 128)
      v = exact.Fraction(first << 128 | further[1], 64 + 128)
      w = exact.Fraction(second << 128 | further[2], 64 + 128)
      layer, is_negative = word & exact.LAYERS - 1, word >> _LAYER_BITS & 1
      value = None
      if not in_tail and exact.is_inner(layer, u):
        value = exact.rounded(layer, u, scale)
      else:
        in_tail |= not layer
        if in_tail:
          if exact.is_in_tail(v, w):
            value = exact.rounded_in_tail(v, scale)
        elif exact.is_below(layer, u, v):
          value = exact.rounded(layer, u, scale)
        else:
          word = second
      if value is not None:
        return -value if is_negative else value
    raise RuntimeError(f'{_ATTEMPTS} attempts gave no normal')

  def _words(self, row: int, chunk: int, size: int) -> np.ndarray:
    """The words of so many normals, from the beginning of a chunk on, until the next call."""
    chunks = np.arange(-(-size // CHUNK))
    loops.count(row, chunk, _WORDS, chunks, 1, CHUNK // 2, 1, self._counters)
    counters = self._counters.view(np.uint8).reshape(-1)[: 16 * -(-size // 2)]
    self._blocks.update_into(counters.data, self._bits.data)
    return self._bits[: 8 * size].view('<u8')

  def _further(self, row: int, chunk: int, at: np.ndarray, attempts: int) -> np.ndarray:
    """The first block of each attempt of some normals, as words, shape [size, attempts, 2]."""
    counters = np.empty((at.size, attempts, 2), np.uint64)
    loops.count(row, chunk, _FURTHER, at, CHUNK, _ATTEMPTS, _BLOCKS, counters)
    bits = self._blocks.update(counters.reshape(-1).view(np.uint8).data)
    return np.frombuffer(bits, '<u8').reshape(counters.shape)


class _Tables(NamedTuple):
  """Numbers of each layer with its sign, in float64, by the last bits of a word.

  Attributes:
    widths: ±2⁻⁵⁴ xᵢ.
    rests: what float64 lacks of that.
    limits: u < xᵢ₊₁/xᵢ holds for a word whose bits of u are below; int64.
    heights, steps: f(xᵢ), and how much higher the next layer is.
    tail: x₁.
  """

  widths: np.ndarray
  rests: np.ndarray
  limits: np.ndarray
  heights: np.ndarray
  steps: np.ndarray
  tail: float


@functools.cache
def _tables() -> _Tables:
  widths = exact.widths()
  heights = [exact.height(x) for x in widths]
  steps = [float(above - below) for below, above in zip(heights, heights[1:])]
  x = np.array(widths[:-1], float)
  rest = [
    float(exact_width - decimal.Decimal(width)) for exact_width, width in zip(widths, x.tolist())
  ]
  x, rest = (np.array(values) * 2.0**-_U_BITS for values in (x, rest))
  inner = [exact.inner(layer) >> exact.FIXED - _U_BITS for layer in range(exact.LAYERS)]
  return _Tables(
    widths=np.concatenate([x, -x]),
    rests=np.concatenate([rest, -rest]),
    limits=np.tile(inner, 2),
    heights=np.tile(np.array(heights[:-1], float), 2),
    steps=np.tile(steps, 2),
    tail=float(widths[1]),
  )


@functools.cache
def check_functions() -> None:
  """Compares the compiled logarithm and exponential with decimals, at 275 places each.

  Raises:
    RuntimeError: if one is off by more than 2 units in the last place, half of what E assumes.
  """
  points = np.random.default_rng(0).random(275)
  for i, (name, at) in enumerate({'log': points, 'exp': -8.0 * points}.items()):
    off = exact.units_off(name, at, np.array([loops.functions(x)[i] for x in at.tolist()]))
    if not off <= 2.0:
      raise RuntimeError(
        f'{name} is off by {off:.3g} units in the last place in the mathematical library of this'
        ' machine, too many for noise that is exactly rounded; update the system or use another'
      )
