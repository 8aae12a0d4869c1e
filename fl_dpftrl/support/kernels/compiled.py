"""How loops are compiled: without the interpreter's lock, and without any freedom in float."""

import contextlib
import functools
import logging
import os

import numba


def loop(function):
  """Compiles a function for the types it is called with, and caches that on disk if possible.

  No fastmath: each operation rounds as IEEE 754 says, and no product and sum are fused. The cache
  is `__pycache__` beside the module, else the user's cache folder; NUMBA_CACHE_DIR names another.
  """
  compiled = functools.partial(numba.njit, nogil=True, error_model='numpy')
  with contextlib.suppress(RuntimeError):  # None of these folders can be written.
    # A user without a home would have a cache in the folder ~ of whichever folder is the current.
    if numba.config.CACHE_DIR or os.path.isabs(os.path.expanduser('~')):
      return compiled(cache=True)(function)
  _warn()
  return compiled()(function)


@functools.cache
def _warn() -> None:
  logging.getLogger('fl_dpftrl').warning(
    'no folder for compiled loops can be written: set NUMBA_CACHE_DIR to one only you can write'
  )
