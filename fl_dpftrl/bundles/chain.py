"""Chained digests of a run's log, a round at a time, as `logs.chain` defines them."""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from fl_dpftrl.logs import chain, digests
from fl_dpftrl.replaying import embedded
from fl_dpftrl.replaying import runs as runs_lib

_ORDER = 'round, device_id'


def of(run: runs_lib.Run, progress: Callable[[str], None] = lambda text: None) -> Iterator[str]:
  """Yields H_t of each round t of a run, in hexadecimal; rounds without devices too.

  The order of rows in the log does not matter.

  Args:
    run: the run.
    progress: called often with a line about the progress.

  Raises:
    LogError: if the log cannot be believed.
  """
  id_type = run.log.id_type
  before, t = chain.START, 0
  rows = digests.Rows(timestamps=False)
  with embedded.ordered(embedded.Rows([run], progress), _ORDER) as batches:
    for batch in batches:
      table = pa.Table.from_batches([batch])
      rounds = table.column('round').to_numpy()
      bounds = [0, *(np.flatnonzero(np.diff(rounds)) + 1).tolist(), len(rounds)]
      for first, end in zip(bounds, bounds[1:]):
        if first == end:
          continue
        while t < rounds[first]:
          before, t, rows = _next(before, t, rows, id_type)
          yield before.hex()
        rows.update(table.slice(first, end - first))
  while t < run.log.num_rounds:
    before, t, rows = _next(before, t, rows, id_type)
    yield before.hex()


def _next(
  before: bytes, t: int, rows: digests.Rows, id_type: pa.DataType
) -> tuple[bytes, int, digests.Rows]:
  """Returns H_t, the next round, and its rows, of which there are none yet."""
  return chain.of_rows(before, t, rows, id_type), t + 1, digests.Rows(timestamps=False)
