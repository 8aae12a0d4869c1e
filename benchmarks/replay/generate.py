"""Writes the log of a case, with full cohorts and enforced gaps of devices.

python -m benchmarks.replay.generate CASE FILE.parquet
"""

import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.replay import cases
from fl_dpftrl.logs import keys

LEAST_GAP = 200
MOST_GAP = 400

_ROW_GROUP = 1 << 20
_SECONDS_BETWEEN_LINES = 5.0


def cohorts(num_devices: int, num_rounds: int, cohort: int, seed: int = 0) -> Iterator[np.ndarray]:
  """Yields the devices of each round, unsorted.

  Each device has a gap of its own, from LEAST_GAP to MOST_GAP rounds, after
  which it may be drawn again. All devices that may be drawn are equally likely.

  Args:
    num_devices: number of devices; ids are below it.
    num_rounds: n.
    cohort: number of devices per round.
    seed: seed of the draws.

  Yields:
    Distinct ids, int64, of shape [cohort].

  Raises:
    ValueError: if a round could find too few devices.
  """
  if num_devices <= MOST_GAP * cohort:
    raise ValueError(
      f'num_devices must be more than {MOST_GAP} cohorts of {cohort}, got {num_devices}'
    )
  rng = np.random.default_rng(seed)
  gaps = rng.integers(LEAST_GAP, MOST_GAP, num_devices, np.int16, endpoint=True)
  due = np.zeros(num_devices, np.int32)
  for round_index in range(num_rounds):
    parts, missing = [], cohort
    while missing:
      drawn = rng.integers(0, num_devices, 2 * missing + 16)
      drawn = drawn[due[drawn] <= round_index]
      # If a device was drawn twice, its last place remains.
      places = np.arange(-drawn.size, 0, dtype=np.int32)
      due[drawn] = places
      drawn = drawn[due[drawn] == places]
      taken, spared = drawn[:missing], drawn[missing:]
      due[taken] = round_index + gaps[taken]
      due[spared] = 0
      parts.append(taken)
      missing -= taken.size
    yield np.concatenate(parts)


def write(
  path: str | os.PathLike[str],
  case: cases.Case,
  progress: Callable[[str], None] = lambda text: None,
) -> None:
  """Writes the reproducible log of a case, under its name once complete."""
  path = pathlib.Path(path)
  unfinished = path.with_name(f'{path.name}.{os.getpid()}.unfinished')
  id_type = pa.string() if case.ids == 'text' else pa.int64()
  schema = pa.schema(
    [('round', pa.int64()), ('device_id', id_type)],
    metadata={keys.VERSION_KEY: str(keys.LOG_VERSION), keys.NUM_ROUNDS_KEY: str(case.num_rounds)},
  )
  rounds = cohorts(case.num_devices, case.num_rounds, case.cohort)
  try:
    with pq.ParquetWriter(
      unfinished, schema, compression='zstd', use_dictionary=['round']
    ) as writer:
      for first, devices in _joined(rounds, case.cohort):
        count = devices.size // case.cohort
        numbers = np.arange(first, first + count)
        columns = [np.repeat(numbers, case.cohort), _ids(devices, case.ids)]
        writer.write_table(pa.table(columns, schema=schema))
        progress(f'{case.name}: {first + count} of {case.num_rounds} rounds')
    os.replace(unfinished, path)
  finally:
    unfinished.unlink(missing_ok=True)


def _joined(rounds: Iterator[np.ndarray], cohort: int) -> Iterator[tuple[int, np.ndarray]]:
  """Yields several rounds at a time as one array, with the first round."""
  first, kept = 0, []
  for devices in rounds:
    kept.append(devices)
    if len(kept) * cohort >= _ROW_GROUP:
      yield first, np.concatenate(kept)
      first, kept = first + len(kept), []
  if kept:
    yield first, np.concatenate(kept)


def _ids(devices: np.ndarray, kind: str) -> pa.Array:
  ids = pa.array(devices)
  if kind == 'integer':
    return ids
  padded = pc.utf8_lpad(ids.cast(pa.string()), 9, '0')
  return pc.binary_join_element_wise('device', padded, '-')


class _Lines:
  """Progress lines on stderr, at most one every few seconds."""

  def __init__(self):
    self._next = 0.0

  def __call__(self, text: str) -> None:
    if time.monotonic() >= self._next:
      print(text, file=sys.stderr)
      self._next = time.monotonic() + _SECONDS_BETWEEN_LINES


def main() -> int:
  name, path = sys.argv[1:]
  case = next(case for case in (*cases.CASES, cases.COUNTED) if case.name == name)
  try:
    write(path, case, _Lines())
  except OSError as e:
    print(f'generate: {e}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  sys.exit(main())
