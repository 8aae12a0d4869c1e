"""Finds digits of secret values in whatever a program says of itself."""

import contextlib
import pathlib
import re
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from fl_dpftrl.tff.training import checkpoints

# Successive digits that count as a leak.
_DIGITS, _HEX_DIGITS, _BYTES = 6, 8, 4
_RUNS = re.compile(rf'(?=(\d{{{_DIGITS}}}))')
_HEX_RUNS = re.compile(rf'(?=([0-9a-f]{{{_HEX_DIGITS}}}))')


class Secrets:
  """Runs of digits and bytes of values, of which no text may hold one."""

  def __init__(self, arrays: Iterable[Any]):
    self._digits: set[str] = set()
    self._hex: set[str] = set()
    self._bytes: set[str] = set()
    for value in (value for array in arrays for value in np.ravel(array)):
      self._digits |= set(_RUNS.findall(re.sub(r'\D', '', f'{value!s:.20}')))
      for data in (value.tobytes(), value.tobytes()[::-1]):
        self._hex |= set(_HEX_RUNS.findall(data.hex()))
        ends = range(_BYTES, len(data) + 1)
        self._bytes |= {repr(data[end - _BYTES : end])[2:-1] for end in ends}

  def found_in(self, text: str) -> set[str]:
    """Returns the runs that a text holds."""
    found = self._digits & set(_RUNS.findall(text))
    found |= self._hex & set(_HEX_RUNS.findall(text.lower()))
    return found | {piece for piece in self._bytes if piece in text}


def said(error: BaseException) -> Iterator[str]:
  """Yields all texts of an error and of those that it follows from, shown or not."""
  left, seen = [error], set()
  while left:
    one = left.pop()
    if id(one) in seen:
      continue
    seen.add(id(one))
    yield from (str(one), repr(one), repr(one.args), *getattr(one, '__notes__', ()))
    yield ''.join(traceback.format_exception(one))
    left.extend(e for e in (one.__cause__, one.__context__) if e is not None)


@contextlib.contextmanager
def refused(secrets: Secrets, kind: type[Exception] = Exception) -> Iterator[None]:
  """Fails unless the block raises an error of a kind, and it tells no secret."""
  try:
    yield
  except kind as error:
    for text in said(error):
      assert not secrets.found_in(text), text
  else:
    raise AssertionError('it was not refused')


def spoil(folder: pathlib.Path) -> Secrets:
  """Gives the newest checkpoint of a run a seed of another type; returns what it holds."""
  newest = max((folder / 'checkpoints').glob('round-*.npz'))
  with np.load(newest) as archive:
    leaves = [archive[name] for name in archive.files if name != 'about']
  is_seed = lambda leaf: leaf.dtype == np.int64 and leaf.shape in ((2,), (4,))
  (where,) = [i for i, leaf in enumerate(leaves) if is_seed(leaf)]
  stored = checkpoints.CheckpointFolder(folder / 'checkpoints', leaves)
  latest = stored.load(int(newest.stem.removeprefix('round-')))
  seed = leaves[where].astype(np.uint64)
  latest.state[where] = seed
  stored.save(latest)
  return Secrets([leaves[where], seed])
