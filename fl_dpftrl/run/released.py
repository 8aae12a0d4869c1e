"""The table of what rounds released beside their means: one line a round, which may be published.

A line is durable before its round's mean is given out. It ends with the chained digest

    H_i = SHA-256(H_{i−1} ‖ rest of line i), H_0 = the run's identity.

A mark beside the table says how many lines it must have, and their digest. So a changed line, a
table that was cut, an older one, and one of another run are refused. A last line that the mark does
not have yet is of a round that was killed.
"""

import csv
import hashlib
import io
import math
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from fl_dpftrl.claims import adaptive_clipping, extra_coordinates
from fl_dpftrl.run import release
from fl_dpftrl.support.files import durable, mark

NAME = 'released.csv'
"""Name of the table in the folder of a run."""

_ROUND, _CLIP_NORM, _DIGEST = 'round', 'clip_norm', 'sha256'


class ReleasedTable:
  """A CSV file with what each round released: its clip norm, counts and metrics."""

  def __init__(self, path: pathlib.Path, release: release.Release, run: str, num_rounds: int):
    """Reads the file if it is there.

    Args:
      path: of the file, which is made with the first round that has extra coordinates.
      release: coordinates of the run.
      run: random identity of the run, in hexadecimal.
      num_rounds: rounds of the run so far.

    Raises:
      ValueError: for a table of another run, and one that is damaged, cut or older than its mark.
      LostStateError: for a mark that is damaged.
    """
    self._path, self._release, self._run = path, release, bytes.fromhex(run)
    self._rule: Any = release.claim.clip_norm  # Of all rounds, or its rule.
    self._columns = [_ROUND, _CLIP_NORM, *release.names]
    self._header = _line([*self._columns, _DIGEST])
    self._rounds: dict[int, dict[str, float]] = {}
    self._whole, self._head = 0, self._run  # Bytes of whole lines, and their digest.
    self._mark = mark.MarkFile(path.with_suffix('.mark')) if release.names else None
    try:
      self._read(num_rounds)
    except BaseException:
      self.close()
      raise

  def close(self) -> None:
    """Lets the mark go."""
    if self._mark is not None:
      self._mark.close()

  def _read(self, num_rounds: int) -> None:
    """Takes the lines over that are whole."""
    content = self._path.read_bytes() if self._path.exists() else b''
    *lines, _ = content.split(b'\n')  # A last line without an end was not written whole.
    if lines and lines[0] != self._header:
      raise ValueError(f'{self._path} must have the columns {", ".join(self._columns)}')
    self._whole = sum(len(line) + 1 for line in lines)
    clip_norm: Any = self._rule
    is_adaptive = isinstance(clip_norm, adaptive_clipping.AdaptiveClipping)
    low, high = clip_norm.limits if is_adaptive else (clip_norm, clip_norm)
    heads = [self._head]
    for number, line in enumerate(lines[1:], start=2):
      body, _, digest = line.rpartition(b',')
      heads.append(hashlib.sha256(heads[-1] + body).digest())
      index, values = -1, list[float]()
      if digest == heads[-1].hex().encode():
        index, values = int(body.split(b',')[0]), list(map(float, body.split(b',')[1:]))
      is_next = max(self._rounds, default=-1) < index < num_rounds
      if not (is_next and low <= values[0] <= high and all(map(math.isfinite, values))):
        raise ValueError(f'{self._path} line {number} is no round of this run; put the file back')
      self._keep(index, values)
    self._head, count = heads[-1], len(heads) - 1
    _, due, head, run, *_ = (self._mark and self._mark.record) or mark.Record(0, 0, self._run)
    if not due <= count <= due + 1 or heads[due] != head or (due and run != self._run):
      raise ValueError(
        f'{self._path} has {count} rounds, and {self._path.stem}.mark is of {due}: put the newest'
        ' of both back, or move both away to go on without these figures'
      )

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
    """Adds the line of a round, whose clip norm is `clip_norm`, durably."""
    if self._mark is None:
      return
    row = [self.clip_norm, *values.values()]
    body = _line([index, *map(repr, row)])
    head = hashlib.sha256(self._head + body).digest()
    content = b'' if self._whole else self._header + b'\n'
    content += body + b',' + head.hex().encode() + b'\n'
    is_new = not self._path.exists()
    with self._path.open('xb' if is_new else 'r+b') as file:
      file.seek(self._whole)
      file.write(content)
      file.truncate()
      file.flush()
      with durable.naming(self._path):
        os.fsync(file.fileno())
    if is_new:
      durable.sync_folder(self._path.parent)
    self._mark.write(num_rounds=len(self._rounds) + 1, head=head, run=self._run)
    self._whole, self._head = self._whole + len(content), head
    self._keep(index, row)

  def columns(self) -> dict[str, dict[int, float]]:
    """Returns name → round → what it released, for each metric."""
    names = self._release.metric_names
    return {name: {t: row[name] for t, row in self._rounds.items()} for name in names}

  def _keep(self, index: int, row: Sequence[float]) -> None:
    self._rounds[index] = dict(zip(self._columns[1:], row, strict=True))


def _line(cells: Sequence[object]) -> bytes:
  """Returns a line of the table, without its end."""
  text = io.StringIO()
  csv.writer(text, lineterminator='').writerow(cells)
  return text.getvalue().encode()
