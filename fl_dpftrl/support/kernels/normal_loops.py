"""Loops over the words of normals, for `noise.normals`, which proves what they rely on."""

import math

import numpy as np

from fl_dpftrl.support.kernels import compiled

# A word: 9 bits of a layer, a sign, and 54 bits of u.
LAYERS, PLACES, SHIFT = np.uint64(511), np.uint64(1023), np.uint64(10)
# E of a normal in layer i is 2⁻⁵⁰ xᵢ, in widths of 2⁻⁵⁴ xᵢ; and E of one in the tail.
ERROR_IN_WIDTHS, TAIL_ERROR = 16.0, 2.0**-44
# Comparisons of float64 that are closer than this are left to decimals.
_CLOSE, _LEAST = 2.0**-30, 2.0**-20


@compiled.loop
def log(x):
  """Natural logarithm by the machine's library, as `settled` calls it."""
  return math.log(x)


@compiled.loop
def exp(x):
  """Exponential by the machine's library, as `settled` calls it."""
  return math.exp(x)


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
def count(row, chunk, use, places, chunk_size, blocks, block, counters):
  """Writes the counter of a block of each place, from the beginning of a chunk on, as bytes.

  Each place has so many blocks. A counter has 48 bits of the row, 32 of the chunk, 16 of its use,
  and 32 of the block within the chunk.
  """
  for i in range(places.size):
    number, within = chunk + places[i] // chunk_size, places[i] % chunk_size * blocks + block
    high = np.uint64(row) << np.uint64(16) | np.uint64(number >> 16)
    low = np.uint64(number & 0xFFFF) << np.uint64(48) | np.uint64(use << 32 | within)
    for byte in range(8):
      shift = np.uint64(56 - 8 * byte)
      counters[i, byte] = high >> shift
      counters[i, 8 + byte] = low >> shift


@compiled.loop
def settled(words, bits, places, count, in_tail, tables, scale, out, undecided, num_undecided):
  """Settles unsure normals by the further bits of one attempt.

  Those that need another attempt move to the front of words, places and in_tail. Returns how many
  these are, and the new number of those that float64 does not decide, in undecided.
  """
  widths, limits, heights, steps, tail = tables
  open_count = 0
  for i in range(count):
    word, first, second = words[i], bits[i, 0], bits[i, 1]
    place, whole = word & PLACES, np.int64(word >> SHIFT)
    u, v = first * 2.0**-64, second * 2.0**-64
    x, error = whole * widths[place], ERROR_IN_WIDTHS * abs(widths[place])
    is_tail = in_tail[i] or (place & LAYERS == 0 and whole > limits[place])
    # How far the point is below the density, or how surely one of the tail is taken.
    if is_tail:
      gap = 0.0
      if u >= _LEAST:
        beyond = -log(u) / tail
        gap = -2.0 * log(v) - beyond * beyond
        x, error = math.copysign(tail + beyond, widths[place]), TAIL_ERROR
    elif whole < limits[place]:
      gap = np.inf
    elif whole == limits[place]:
      gap = 0.0
    else:
      gap = exp(-0.5 * x * x) - (heights[place] + u * steps[place])
    if gap < -_CLOSE:
      # In the tail, the sign stays; elsewhere an attempt has a word of its own.
      words[open_count] = word if is_tail else second
      places[open_count], in_tail[open_count] = places[i], is_tail
      open_count += 1
      continue
    value = scale * x
    nearest = np.rint(value)
    if gap > _CLOSE and abs(value - nearest) < 0.5 - scale * error:
      out[places[i]] = nearest
    else:
      undecided[num_undecided] = places[i]
      num_undecided += 1
  return open_count, num_undecided
