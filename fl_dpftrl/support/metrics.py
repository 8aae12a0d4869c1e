"""Measurements of a run: one row a round, as a CSV file and as arrays.

A row of a run ends with a digest of its identity and the row, by which a changed row, and one of
another run, are refused.
"""

import csv
import dataclasses
import hashlib
import io
import math
import numbers
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fl_dpftrl.support import tables
from fl_dpftrl.support.files import durable

NAME = 'metrics.csv'
_ROUND, _DIGEST = 'round', 'sha256'


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class History:
  """Measurements of a run by round.

  Attributes:
    rounds: int64 [num_rows], the rounds whose results were used.
    measured: name → round → number, for the rounds that have one; it may be NaN or infinite.
  """

  rounds: np.ndarray
  measured: Mapping[str, Mapping[int, float]]

  def __getitem__(self, name: str) -> np.ndarray:
    """Returns a column, float64, NaN where a round has no number; KeyError naming all others."""
    if name not in self.measured:
      raise KeyError(f'{name!r} is no column; they are {", ".join(self.measured)}')
    by_round = self.measured[name]
    return np.array([by_round.get(r, math.nan) for r in self.rounds.tolist()])

  def column(self, name: str) -> dict[int, float]:
    """Returns round → number of a column; nothing for a name that was not measured."""
    return dict(self.measured.get(name, {}))

  def first_not_finite(self) -> int | None:
    """Returns the first round with a NaN or infinity; None if there is none."""
    rounds = [r for by in self.measured.values() for r, v in by.items() if not math.isfinite(v)]
    return min(rounds, default=None)

  def __repr__(self) -> str:
    return f'History({len(self.rounds)} rounds of {", ".join(self.measured)})'


class MetricsTable:
  """A CSV file with one row a round, always complete on disk.

  A round that is put again replaces its row, so that a resumed run leaves the
  file that an uninterrupted one leaves. Rows that a truncated file has only in
  part count as lost: `rounds` does not have them.
  """

  def __init__(self, path: str | os.PathLike[str]):
    self.path = pathlib.Path(path)
    self._rows: dict[int, dict[str, str]] = {}
    self._run: str | None = None
    if self.path.exists():
      self._read()

  @property
  def rounds(self) -> list[int]:
    return sorted(self._rows)

  def history(self) -> History:
    """Returns the numbers of all rounds."""
    measured: dict[str, dict[int, float]] = {}
    for r in self.rounds:
      for name, text in self._rows[r].items():
        value = _number(text)
        if name not in (_ROUND, _DIGEST) and value is not None:
          measured.setdefault(name, {})[r] = value
    return History(np.array(self.rounds, dtype=np.int64), measured)

  def bind(self, run: str) -> None:
    """Gives rows the digest of a run from now on; ValueError for one that is not of it."""
    self._run = run
    for r, row in self._rows.items():
      if row.get(_DIGEST) != self._digest(row):
        raise ValueError(
          f'{self.path}: round {r} was changed, or is of another run; put the file back, or move it'
          ' away to go on without its measurements'
        )

  def put(self, round_index: int, values: dict[str, float | int | str]) -> None:
    row = {_ROUND: str(round_index), **{name: str(value) for name, value in values.items()}}
    self._rows[round_index] = row | ({_DIGEST: self._digest(row)} if self._run else {})
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

  def _digest(self, row: Mapping[str, str]) -> str:
    cells = sorted((name, text) for name, text in row.items() if text and name != _DIGEST)
    return hashlib.sha256(repr((self._run, cells)).encode()).hexdigest()

  def _write(self) -> None:
    # Dictionaries keep the order in which columns first appeared.
    columns = list(dict.fromkeys(name for r in self.rounds for name in self._rows[r]))
    columns.sort(key=_DIGEST.__eq__)  # It is the last.
    content = tables.as_csv(columns or [_ROUND], (self._rows[r] for r in self.rounds))
    durable.write_durably(self.path, content, private=True)


def _number(text: str | None) -> float | None:
  """Returns the number of a cell; None for text, or nothing."""
  try:
    return float(text or '')
  except ValueError:
    return None


def finite(values: Mapping[str, float]) -> dict[str, float | None]:
  """Returns measurements for JSON, in which NaN and infinities are None."""
  return {name: value if math.isfinite(value) else None for name, value in values.items()}


def flatten(measurements: Mapping[str, Any], prefix: str = '') -> dict[str, float]:
  """Returns a learning process's nested measurements as scalars named by their path."""
  flat = {}
  for name, value in measurements.items():
    if isinstance(value, Mapping):
      flat.update(flatten(value, f'{prefix}{name}/'))
    elif np.ndim(value) == 0 and np.size(value):
      flat[f'{prefix}{name}'] = plain(np.asarray(value).item())
  return flat


def plain(value: Any) -> Any:
  """Returns a number of any library as Python's own; what is no number stays as it is."""
  if isinstance(value, numbers.Integral):
    return int(value)
  if isinstance(value, (str, bytes)) or np.ndim(value):
    return value
  try:
    return float(value)
  except (TypeError, ValueError, OverflowError):
    return value
