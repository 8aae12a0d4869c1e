"""Features of texts on disk, in blocks of rows that are each computed once."""

import io
import pathlib
from collections.abc import Callable, Iterable

import numpy as np

from fl_dpftrl.support.files import durable

BLOCK_ROWS = 32


class Features:
  """Arrays of rows [time, width] that are read where they are needed.

  A block is a file that is there as a whole or not at all: a stage that was killed goes on with the
  block that it was at.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    tokens: np.ndarray,
    compute: Callable[[np.ndarray], np.ndarray],
    on_block: Callable[[int], None] = lambda num_rows: None,
  ):
    """Computes the blocks that are not there.

    Args:
      folder: of these tokens and this model only; its files can be read only by their owner.
      tokens: [rows, time].
      compute: tokens [32, time] → features [32, time, width].
      on_block: called with the number of rows before each block.
    """
    folder.mkdir(0o700, parents=True, exist_ok=True)
    self._blocks = []
    for start in range(0, len(tokens), BLOCK_ROWS):
      path = folder / f'{start:08d}.npy'
      rows = tokens[start : start + BLOCK_ROWS]
      if not path.exists():
        on_block(start)
        # One shape, so that one program is compiled.
        filled = np.resize(rows, (BLOCK_ROWS, rows.shape[1]))
        content = io.BytesIO()
        np.save(content, np.asarray(compute(filled), np.float16)[: len(rows)])
        durable.write_durably(path, content.getvalue(), private=True)
      try:
        block = np.load(path, mmap_mode='r', allow_pickle=False)
      except (ValueError, EOFError):
        block = np.empty(0)
      if block.shape[:2] != rows.shape:
        raise ValueError(f'{path} is damaged: remove it, and start again')
      self._blocks.append(block)

  def __getitem__(self, rows: Iterable[int]) -> np.ndarray:
    """Returns features of rows by their numbers, float16 [rows, time, width]."""
    return np.stack([self._blocks[i // BLOCK_ROWS][i % BLOCK_ROWS] for i in rows])
