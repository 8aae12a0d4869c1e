"""Loops over the coordinates of a row and of its buffers, for `noise.recurrence`.

A kernel makes one row for some coordinates, from `at` on in the buffers, which are passed whole so
that their stride is known. It works on a few columns at a time, which stay in the first cache. A
row is fresh + rint(total), and `begins` says that the total has nothing in it yet. Each returns the
sum of the row's integers, modulo 2⁶⁴.
"""

import numpy as np

from fl_dpftrl.support.kernels import compiled

_COLUMNS = 512


@compiled.loop
def _finish(total, fresh, out):
  """Adds the rounded total to the fresh integers, which become the row."""
  trail = 0
  for i in range(fresh.size):
    fresh[i] += np.rint(total[i])
    out[i] = np.int64(fresh[i])
    trail += out[i]
  return trail


@compiled.loop
def _add_weighted(weights, buffers, stack, at, total, begins):
  """Adds weighted buffers to a total, in the order of the stack."""
  if begins:
    total[:] = 0.0
  for j in range(stack.size):
    weight, buffer = weights[j], buffers[stack[j], at : at + total.size]
    for i in range(total.size):
      total[i] += buffer[i] * weight


@compiled.loop
def add(total, begins, fresh, oldest, buffers, at, weights, stack, gains, scale, restarts, out):
  """Makes a row, and adds it and an older normal to running sums.

  Gains: lost share, gain of the row over its scale, and gain of the older normal, of each sum.
  """
  trail = 0
  for start in range(0, fresh.size, _COLUMNS):
    part = slice(start, min(start + _COLUMNS, fresh.size))
    row, normal, first = fresh[part], oldest[part], at + start
    if restarts:
      buffers[:, first : first + row.size] = 0.0
    _add_weighted(weights, buffers, stack, first, total[part], begins)
    trail += _finish(total[part], row, out[part])
    row /= scale
    for j in range(len(buffers)):
      buffer = buffers[j, first : first + row.size]
      share, gain, normal_gain = 1.0 - gains[0, j], gains[1, j], gains[2, j]
      if share != 1.0 or gain != 0.0:
        for i in range(row.size):
          buffer[i] = buffer[i] * share + row[i] * gain
      if normal_gain != 0.0:
        for i in range(row.size):
          buffer[i] += normal[i] * normal_gain
  return trail


@compiled.loop
def push(total, begins, fresh, buffers, at, weights, stack, top, merged, scale, out):
  """Makes a row, and pushes it onto a stack: its buffer is `top`, in which others may merge."""
  trail = 0
  for start in range(0, fresh.size, _COLUMNS):
    part = slice(start, min(start + _COLUMNS, fresh.size))
    row, first = fresh[part], at + start
    buffer = buffers[top, first : first + row.size]
    _add_weighted(weights, buffers, stack, first, total[part], begins)
    trail += _finish(total[part], row, out[part])
    if not merged.size:
      buffer[:] = 0.0
    for j in range(merged.size - 1):  # The last of them is `top`.
      buffer += buffers[merged[j], first : first + row.size]
    for i in range(row.size):
      buffer[i] += row[i] / scale
  return trail
