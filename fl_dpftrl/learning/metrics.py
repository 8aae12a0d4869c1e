"""Measurements of a run: one row a round, as CSV and for TensorBoard."""

from collections.abc import Mapping
import csv
import io
import os
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf

from fl_dpftrl import files

_ROUND = 'round'


class MetricsTable:
  """A CSV file with one row a round, always complete on disk.

  A round that is put again replaces its row, so that a resumed run leaves the
  file that an uninterrupted one leaves.

  Raises:
    ValueError: naming the file, where it is not such a table.
  """

  def __init__(self, path: str | os.PathLike[str]):
    self._path = pathlib.Path(path)
    self._rows: dict[int, dict[str, str]] = {}
    if self._path.exists():
      with self._path.open(newline='') as file:
        for line, row in enumerate(csv.DictReader(file), start=2):
          try:
            self._rows[int(row[_ROUND])] = row
          except (KeyError, TypeError, ValueError):
            raise ValueError(
                f'{self._path} line {line} has no round number; move the file'
                ' away to go on'
            ) from None

  @property
  def rounds(self) -> list[int]:
    return sorted(self._rows)

  def column(self, name: str) -> dict[int, float]:
    """Round → value, for the rounds that have one."""
    return {
        r: float(self._rows[r][name])
        for r in self.rounds
        if self._rows[r].get(name) not in (None, '')
    }

  def put(self, round_index: int, values: dict[str, float | int | str]) -> None:
    self._rows[round_index] = {
        _ROUND: str(round_index),
        **{name: str(value) for name, value in values.items()},
    }
    self._write()

  def keep_only(self, rounds: set[int]) -> None:
    """Drops the rows of other rounds: their results were not used."""
    if set(self._rows) - rounds:
      self._rows = {r: row for r, row in self._rows.items() if r in rounds}
      self._write()

  def _write(self) -> None:
    # Dictionaries keep the order in which columns first appeared.
    columns = list(
        dict.fromkeys(name for r in self.rounds for name in self._rows[r])
    )
    text = io.StringIO()
    writer = csv.DictWriter(text, columns or [_ROUND], lineterminator='\n')
    writer.writeheader()
    writer.writerows(self._rows[r] for r in self.rounds)
    files.write_durably(self._path, text.getvalue().encode(), private=True)


def write_tensorboard(
    writer: tf.summary.SummaryWriter,
    round_index: int,
    values: dict[str, float | int | str],
) -> None:
  """Adds the numbers among a round's values to TensorBoard's event file."""
  with writer.as_default(step=round_index):
    for name, value in values.items():
      if isinstance(value, (int, float)):
        tf.summary.scalar(name, value)
  writer.flush()


def flatten(
    measurements: Mapping[str, Any], prefix: str = ''
) -> dict[str, float]:
  """A learning process's nested measurements as scalars named by their path."""
  flat = {}
  for name, value in measurements.items():
    if isinstance(value, Mapping):
      flat.update(flatten(value, f'{prefix}{name}/'))
    elif np.ndim(value) == 0 and np.size(value):
      flat[f'{prefix}{name}'] = np.asarray(value).item()
  return flat
