"""Loops over the coordinates of updates, for `run.sums`, which proves the bound."""

import math

import numpy as np

from fl_dpftrl.support.kernels import compiled

KEPT, CLIPPED, ZEROED, REJECTED = range(4)
_LANES, _COLUMNS = 64, 2048
_MOST_BITS = np.int64(50)  # of a square; a block of those fits in 64.
_LEAST_NORMAL, _LEAST = 2.0**-126, np.float32(2.0**-149)  # of float32


@compiled.loop
def measure(rows, start, stop, _first, is_zeroing, squares, largest):
  """Writes the sum of squares, and the largest magnitude if asked, of some columns of each row.

  Coordinate i is added to lane i mod 64 in float64, and the lanes in order: the sum has one order
  on every machine, and lanes fill its vector registers.
  """
  lanes = np.empty(_LANES)
  whole = (stop - start) // _LANES * _LANES
  for row in range(len(rows)):
    values = rows[row, start:stop]
    lanes[:] = 0.0
    for first in range(0, whole, _LANES):
      part = values[first : first + _LANES]
      for lane in range(_LANES):
        lanes[lane] += np.float64(part[lane]) * np.float64(part[lane])
    for i in range(whole, values.size):
      lanes[i - whole] += np.float64(values[i]) * np.float64(values[i])
    for lane in range(_LANES):
      squares[row] += lanes[lane]
    if is_zeroing:
      for i in range(values.size):
        largest[row] = max(largest[row], abs(np.float64(values[i])))


@compiled.loop
def bound(squares, largest, scale, longest, clip_norm, zeroing_norm, scales, outcomes):
  """Writes to zeros the scale of each update, 0 if it is not added, and what becomes of it.

  Squares and the largest magnitudes are those of pieces of the updates, shape [pieces, updates].
  """
  for row in range(scales.size):
    square = highest = 0.0
    for piece in range(len(squares)):
      square += squares[piece, row]
      highest = max(highest, largest[piece, row])
    norm = math.sqrt(square)
    if not math.isfinite(square):
      outcomes[row] = REJECTED
    elif highest > zeroing_norm:
      outcomes[row] = ZEROED
    elif norm * scale > longest:
      # Within the margin of the clip norm, an update is scaled too, but not by what would count.
      scales[row], outcomes[row] = longest / norm, CLIPPED if norm > clip_norm else KEPT
    else:
      scales[row] = scale


@compiled.loop
def add(rows, start, stop, first, scales, total, squares):
  """Adds some columns of scaled rows to int64 sums, and writes each row's sum of added squares.

  `first` is the first of the sums. Each product is rounded to its type and then towards zero. Sums
  stay in the first cache for all rows. The squares are exact up to 2⁵³, and infinite where a whole
  number has more bits than any update.
  """
  for column in range(start, stop, _COLUMNS):
    width = min(_COLUMNS, stop - column)
    sums = total[first + column - start : first + column - start + width]
    for row in range(len(rows)):
      part = rows[row, column : column + width]
      factor = part.dtype.type(scales[row])
      if scales[row] < _LEAST_NORMAL and factor > scales[row]:
        factor -= part.dtype.type(_LEAST)  # Rounded down where float32 has fewer bits.
      if factor > 0.0:
        square = bits = np.int64(0)
        for i in range(width):
          whole = np.int64(np.int32(part[i] * factor))
          sums[i] += whole
          square += whole * whole
          bits |= whole * whole
        squares[row] += np.inf if bits >> _MOST_BITS else np.float64(square)
