"""The chained digest of rounds, computed again from the rows of a log as they are read."""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.logs import ledger_format


class Chain:
  """Chained digest of the rounds of a log, from rows in the order of rounds and of ids in each.

  Attributes:
    in_order: whether the rows came in that order; there is no digest otherwise.
  """

  def __init__(self, units: Sequence[tuple[int, str]] = ()) -> None:
    """Starts before round 0; units: citations by the first round that has each."""
    self.in_order, self._units = True, list(units)[::-1]
    self._cited = ''
    self._last: tuple[int, object] = (-1, None)
    self._num_rounds = 0  # Of which the last may have further rows.
    self._head = hashlib.sha256()

  @classmethod
  def from_unordered(
    cls, tables: Iterable[pa.Table], units: Sequence[tuple[int, str]] = ()
  ) -> 'Chain':
    """Returns the digest of rows in any order, which are all in memory meanwhile."""
    chain = cls(units)
    rows = pa.concat_tables(tables).sort_by([('round', 'ascending'), ('device_id', 'ascending')])
    for batch in rows.to_batches(1 << 18):
      chain.add(pa.Table.from_batches([batch]))
    return chain

  def add(self, table: pa.Table) -> None:
    """Takes the next rows, at least one."""
    rounds = table.column('round').to_numpy()
    ids = table.column('device_id').combine_chunks()
    steps = np.diff(rounds, prepend=self._last[0])
    rises = pc.less(ids[:-1], ids[1:]).to_numpy(zero_copy_only=False)
    first = steps[0] != 0 or self._last[1] < ids[0].as_py()  # type: ignore[operator]
    if not ((steps > 0) | (steps == 0) & np.append(first, rises)).all():
      self.in_order = False
    if not self.in_order:
      return
    self._last = (int(rounds[-1]), ids[-1].as_py())
    starts = np.append(0, np.flatnonzero(steps[1:]) + 1)
    kind = ledger_format.NUMBERS if pa.types.is_integer(ids.type) else ledger_format.TEXT
    ends = np.append(starts, len(ids)).astype(np.int32)
    lists = pa.ListArray.from_arrays(ends, ids.cast(pa.large_string()))
    _, offsets, data = pc.binary_join(lists, pa.scalar('\n', pa.large_string())).buffers()
    text, start = memoryview(data), 0
    for t, end in zip(rounds[starts].tolist(), np.frombuffer(offsets, np.int64)[1:].tolist()):
      if t < self._num_rounds:
        self._head.update(b'\n')
      else:
        self._begin_up_to(t)
        self._begin(kind)
      self._head.update(text[start:end])
      start = end

  def digest(self, num_rounds: int) -> str:
    """Returns the digest of so many rounds, SHA-256 in hexadecimal; the last may have no rows."""
    self._begin_up_to(num_rounds)
    return self._head.hexdigest()

  def _begin_up_to(self, t: int) -> None:
    while self._num_rounds < t:
      self._begin(ledger_format.TEXT)

  def _begin(self, kind: str) -> None:
    head = self._head.digest() if self._num_rounds else ledger_format.START
    if self._units and self._units[-1][0] == self._num_rounds:
      self._cited = self._units.pop()[1]
    t = self._num_rounds.to_bytes(8, 'little')
    self._head = hashlib.sha256(head + t + ledger_format.cited(kind, self._cited).encode())
    self._num_rounds += 1
