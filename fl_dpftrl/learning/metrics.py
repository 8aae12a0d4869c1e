"""Measurements of a run: one row a round, as CSV and for TensorBoard."""

import contextlib
import csv
import errno
import io
import math
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from fl_dpftrl import files

_ROUND = 'round'


class MetricsTable:
  """A CSV file with one row a round, always complete on disk.

  A round that is put again replaces its row, so that a resumed run leaves the
  file that an uninterrupted one leaves. Rows that a truncated file has only in
  part count as lost: `rounds` does not have them.

  Attributes:
    path: the file.

  Raises:
    ValueError: naming the file, where it is not such a table.
  """

  def __init__(self, path: str | os.PathLike[str]):
    self.path = pathlib.Path(path)
    self._rows: dict[int, dict[str, str]] = {}
    if self.path.exists():
      self._read()

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

  def first_not_finite(self) -> int | None:
    """The first round with a NaN or infinity; None if there is none."""
    for r in self.rounds:
      for text in self._rows[r].values():
        try:
          if not math.isfinite(float(text)):
            return r
        except (TypeError, ValueError):
          continue  # Text, or nothing.
    return None

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

  def _read(self) -> None:
    line = 1
    try:
      text = self.path.read_bytes().decode()
      whole = text[: text.rfind('\n') + 1]
      for line, row in enumerate(csv.DictReader(io.StringIO(whole)), start=2):
        number = int(row[_ROUND])
        if None not in row and None not in row.values():
          self._rows[number] = row
    except (KeyError, TypeError, ValueError, csv.Error):
      raise ValueError(
        f'{self.path} line {line} is no row of measurements with its round'
        ' number; move the file away to go on'
      ) from None

  def _write(self) -> None:
    # Dictionaries keep the order in which columns first appeared.
    columns = list(dict.fromkeys(name for r in self.rounds for name in self._rows[r]))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns or [_ROUND], lineterminator='\n')
    writer.writeheader()
    writer.writerows(self._rows[r] for r in self.rounds)
    files.write_durably(self.path, text.getvalue().encode(), private=True)


def write_tensorboard(
  writer: tf.summary.SummaryWriter, round_index: int, values: dict[str, float | int | str]
) -> None:
  """Adds the numbers among a round's values to TensorBoard's event file."""
  with events_written():
    with writer.as_default(step=round_index):
      for name, value in values.items():
        if isinstance(value, (int, float)):
          tf.summary.scalar(name, value)
    writer.flush()


@contextlib.contextmanager
def events_written(path: str | os.PathLike[str] = "TensorBoard's event file") -> Iterator[None]:
  """Makes an OSError of each error with which TensorFlow fails to write events.

  Args:
    path: file or folder that the error names.

  Raises:
    OSError: with errno ENOSPC where there is no room.
  """
  try:
    yield
  except (tf.errors.ResourceExhaustedError, tf.errors.OutOfRangeError) as error:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
  except tf.errors.OpError as error:
    raise OSError(f'{path}: {error.message}') from error


def flatten(measurements: Mapping[str, Any], prefix: str = '') -> dict[str, float]:
  """A learning process's nested measurements as scalars named by their path."""
  flat = {}
  for name, value in measurements.items():
    if isinstance(value, Mapping):
      flat.update(flatten(value, f'{prefix}{name}/'))
    elif np.ndim(value) == 0 and np.size(value):
      flat[f'{prefix}{name}'] = np.asarray(value).item()
  return flat
