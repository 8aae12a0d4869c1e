"""Loops over the words of normals, for `noise.normals`, which proves what they rely on."""

import math

import numpy as np

from fl_dpftrl.support.kernels import compiled

# A word: 9 bits of a layer, a sign, and 54 bits of u.
LAYERS, PLACES, SHIFT = np.uint64(511), np.uint64(1023), np.uint64(10)
# E of a normal over the scale, in widths of 2⁻⁵⁴ xᵢ, and in the tail; and of roundings near ½.
ERROR_IN_WIDTHS, TAIL_ERROR, ROUNDING = 0.51, 2.0**-44, 2.0**-50
_SPLIT = 2.0**27 + 1.0
# Comparisons of float64 that are closer than this are left to decimals.
_CLOSE, _LEAST = 2.0**-30, 2.0**-20


@compiled.loop
def functions(x):
  """Natural logarithm and exponential by the machine's library, as `settled` calls them."""
  return math.log(x), math.exp(x)


@compiled.loop
def rounded(words, limits, widths, most, out, places):
  """Writes the integers nearest to u · widths[layer]; returns how many are unsure, in places."""
  count = 0
  for i in range(words.size):
    word = words[i]
    place, u = word & PLACES, np.int64(word >> SHIFT)
    value = u * widths[place]
    nearest = np.rint(value)
    out[i] = nearest
    # Stored each time and counted if unsure, so that no branch has to be predicted.
    places[count] = i
    count += not (abs(value - nearest) < most and u < limits[place])
  return count


@compiled.loop
def _swapped(word):
  """Returns a word with its bytes in the opposite order: AES takes its counters as big-endian."""
  pairs = np.uint64(0x00FF00FF00FF00FF)
  word = word >> np.uint64(8) & pairs | (word & pairs) << np.uint64(8)
  pairs = np.uint64(0x0000FFFF0000FFFF)
  word = word >> np.uint64(16) & pairs | (word & pairs) << np.uint64(16)
  return word >> np.uint64(32) | word << np.uint64(32)


@compiled.loop
def count(row, chunk, use, places, per_chunk, most, step, counters):
  """Writes counters of places, shape [places, any, 2], whose blocks are `step` apart.

  Places are counted from a chunk on, each with `most` steps. A counter has 48 bits of the row, 32
  of the chunk, 16 of its use, and 32 of the block.
  """
  for i in range(places.size):
    number, first = chunk + places[i] // per_chunk, places[i] % per_chunk * most
    high = _swapped(np.uint64(row) << np.uint64(16) | np.uint64(number >> 16))
    low = np.uint64(number & 0xFFFF) << np.uint64(48) | np.uint64(use) << np.uint64(32)
    for j in range(counters.shape[1]):
      counters[i, j, 0] = high
      counters[i, j, 1] = _swapped(low | np.uint64((first + j) * step))


@compiled.loop
def _product(x, y):
  """Returns a product in float64, and what its rounding lost, without an error (Dekker 1971)."""
  product, x_high, y_high = x * y, _SPLIT * x, _SPLIT * y
  x_high -= x_high - x
  y_high -= y_high - y
  x_low, y_low = x - x_high, y - y_high
  return product, x_low * y_low + (x_low * y_high + (x_high * y_low + (x_high * y_high - product)))


@compiled.loop
def offset(whole, width, rest, scale, nearest):
  """Returns (whole + ½) · (width + rest) · scale − nearest, to twice the bits of float64."""
  scaled, lost = _product(width, scale)
  lost += rest * scale
  high, low = np.float64(whole >> 27 << 27), np.float64(whole & (1 << 27) - 1) + 0.5
  first, first_lost = _product(high, scaled)
  second, second_lost = _product(low, scaled)
  return first - nearest + second + (first_lost + second_lost + (high + low) * lost)


@compiled.loop
def settled(words, bits, places, tables, scale, out, undecided):
  """Settles unsure normals by the further bits of their attempts, shape [size, attempts, 2].

  Returns how many float64 does not decide, or no attempt does; their places are in undecided.
  """
  widths, rests, limits, heights, steps, tail = tables
  num_undecided = 0
  for i in range(words.size):
    word, in_tail, is_settled = words[i], False, False
    for attempt in range(bits.shape[1]):
      first, second = bits[i, attempt, 0], bits[i, attempt, 1]
      place, whole = word & PLACES, np.int64(word >> SHIFT)
      u, v = first * 2.0**-64, second * 2.0**-64
      x = whole * widths[place]
      in_tail |= place & LAYERS == 0 and whole > limits[place]
      # How far the point is below the density, or how surely one of the tail is taken.
      if in_tail:
        gap = 0.0
        if u >= _LEAST:
          beyond = -math.log(u) / tail
          gap = -2.0 * math.log(v) - beyond * beyond
          x = math.copysign(tail + beyond, widths[place])
      elif whole <= limits[place]:
        gap = np.inf if whole < limits[place] else 0.0
      else:
        gap = math.exp(-0.5 * x * x) - (heights[place] + u * steps[place])
      if gap >= -_CLOSE:
        nearest = np.rint(scale * x)
        off, error = scale * x - nearest, TAIL_ERROR
        if not in_tail:
          off = offset(whole, widths[place], rests[place], scale, nearest)
          error = ERROR_IN_WIDTHS * abs(widths[place])
        is_settled = gap > _CLOSE and abs(off) < 0.5 - ROUNDING - scale * error
        if is_settled:
          out[places[i]] = nearest
        break
      # In the tail, the sign stays; elsewhere an attempt has a word of its own.
      if not in_tail:
        word = second
    if not is_settled:
      undecided[num_undecided] = places[i]
      num_undecided += 1
  return num_undecided
