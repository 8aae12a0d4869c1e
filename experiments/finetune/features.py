"""Features of texts, which are stored on disk in blocks of rows that are each computed once."""

import pathlib
from collections.abc import Callable

import numpy as np

from experiments.finetune import data
from fl_dpftrl.support.files import durable

BLOCK_ROWS = 32


def stored(
  folder: pathlib.Path, tokens: np.ndarray, compute: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
  """Returns features, float16 [rows, time, width]; computes the blocks that are not there.

  A block is a file that is there as a whole or not at all: a stage that was killed goes on with the
  block that it was at. The folder is of these tokens [rows, time] and this model only, and only
  its owner can read the files. `compute` has tokens [32, time] → features [32, time, width].
  """
  folder.mkdir(0o700, parents=True, exist_ok=True)
  blocks = []
  for start in range(0, len(tokens), BLOCK_ROWS):
    path = folder / f'{start:08d}.npy'
    rows = tokens[start : start + BLOCK_ROWS]
    if not path.exists():
      data.say(f'frozen layers: {start} of {len(tokens)} {folder.name} blocks of text')
      filled = np.resize(rows, (BLOCK_ROWS, rows.shape[1]))  # So that one program is compiled.
      with durable.replacing(path, private=True) as temporary, temporary.open('wb') as file:
        np.save(file, np.asarray(compute(filled), np.float16)[: len(rows)])
    try:
      block = np.load(path, allow_pickle=False)
    except (ValueError, EOFError):
      block = np.empty(0)
    if block.shape[:2] != rows.shape:
      raise ValueError(f'{path} is damaged: remove it, and start again')
    blocks.append(block)
  return np.concatenate(blocks)
