"""Programs that import the package once and fork for each start, as imports take longest.

A fork must follow no thread that could hold a lock. The only one that imports start is that of
Arrow's allocator, which prepares for forks; so Python's warning says nothing, and stderr may be
compared.
"""

import pathlib
import sys

PYTHON = ('env', 'OPENBLAS_NUM_THREADS=1', sys.executable, '-W', 'ignore:This process')
"""Interpreter of such a program, without the warning of Python 3.12 and newer."""

_TASKS = pathlib.Path('/proc/self/task')
_ALLOCATOR = 'jemalloc_bg_thd'


def num_threads() -> int:
  """Returns how many threads this process has, in any language, but for the allocator's."""
  names = [(task / 'comm').read_text().strip() for task in _TASKS.iterdir()]
  return len(names) - names.count(_ALLOCATOR)
