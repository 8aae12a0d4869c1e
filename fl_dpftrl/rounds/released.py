"""The table of what rounds released beside their means: one line a round, which may be published.

A line is written after its round, without waiting for the disk. Lines that a loss of power takes
away only take knowledge away: a clip norm then follows from the rounds before.
"""

import csv
import io
import math
import pathlib
from collections.abc import Sequence
from typing import Any

from fl_dpftrl import adaptive_clipping, extra_coordinates
from fl_dpftrl.rounds import release

NAME = 'released.csv'
"""Name of the table in the folder of a run."""

_ROUND, _CLIP_NORM = 'round', 'clip_norm'


class ReleasedTable:
  """A CSV file with what each round released: its clip norm, counts and metrics."""

  def __init__(self, path: pathlib.Path, release: release.Release, num_rounds: int):
    """Reads the file if it is there; ValueError for one of another run, or that is damaged.

    Args:
      path: of the file, which is made with the first round that has extra coordinates.
      release: coordinates of the run.
      num_rounds: rounds of the run so far.
    """
    self._path, self._release = path, release
    clip_norm: Any = release.claim.clip_norm  # Of all rounds, or its rule.
    self._rule = clip_norm
    self._columns = [_ROUND, _CLIP_NORM, *release.names]
    self._rounds: dict[int, dict[str, float]] = {}
    content = path.read_bytes() if path.exists() else b''
    self._whole = content.rfind(b'\n') + 1  # A last line without an end was not written whole.
    reader = csv.reader(io.StringIO(content[: self._whole].decode('utf-8', 'replace')))
    if (header := next(reader, None)) not in (None, self._columns):
      raise ValueError(f'{path} must have the columns {", ".join(self._columns)}, got {header}')
    low, high = (
      clip_norm.limits
      if isinstance(clip_norm, adaptive_clipping.AdaptiveClipping)
      else (clip_norm, clip_norm)
    )
    for number, cells in enumerate(reader, start=2):
      try:
        (index, *values) = int(cells[0]), *map(float, cells[1:])
      except (ValueError, IndexError):
        index, values = -1, []
      is_next = max(self._rounds, default=-1) < index < num_rounds
      is_whole = len(values) == len(self._columns) - 1 and all(map(math.isfinite, values))
      if not (is_next and is_whole and low <= values[0] <= high):
        raise ValueError(f'{path} line {number} is no round of this run; put the file back')
      self._keep(index, values)

  @property
  def clip_norm(self) -> float:
    """Clip norm of the next round, from the counts of the last one."""
    rule = self._rule
    if not isinstance(rule, adaptive_clipping.AdaptiveClipping):
      return rule
    if not self._rounds:
      return rule.initial
    last, values = next(reversed(self._rounds.items()))
    return rule.following(
      values[_CLIP_NORM], last, values[extra_coordinates.COUNTS[0]], self._release.report_goal
    )

  def put(self, index: int, values: dict[str, float]) -> None:
    """Adds the line of a round, whose clip norm is `clip_norm`."""
    if not values:
      return
    row = [self.clip_norm, *values.values()]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator='\n')
    if not self._whole:
      writer.writerow(self._columns)
    writer.writerow([index, *map(repr, row)])
    line = text.getvalue().encode()
    with self._path.open('r+b' if self._path.exists() else 'xb') as file:
      file.seek(self._whole)
      file.write(line)
      file.truncate()
    self._whole += len(line)
    self._keep(index, row)

  def columns(self) -> dict[str, dict[int, float]]:
    """Returns name → round → what it released, for each metric."""
    names = self._release.metric_names
    return {name: {t: row[name] for t, row in self._rounds.items()} for name in names}

  def _keep(self, index: int, row: Sequence[float]) -> None:
    self._rounds[index] = dict(zip(self._columns[1:], row, strict=True))
