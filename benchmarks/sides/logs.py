"""Logs that are replayed, and the least that a simulated log can cost."""

import os
import pathlib
import sys
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fl_dpftrl.logs import keys
from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.planning.simulation import attendances

LEAST_GAP, MOST_GAP = 200, 400
_ROW_GROUP = 1 << 20


def cohorts(num_devices: int, num_rounds: int, cohort: int, seed: int = 0) -> Iterator[np.ndarray]:
  """Yields the devices of each round, unsorted: distinct ids, int64, shape [cohort].

  Each device has a gap of its own, from LEAST_GAP to MOST_GAP rounds, after which it may be drawn
  again. All devices that may be drawn are equally likely.
  """
  if num_devices <= MOST_GAP * cohort:
    least = f'more than {MOST_GAP} cohorts of {cohort}'
    raise ValueError(f'num_devices must be {least}, got {num_devices}')
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


def write(path: str, num_devices: int, num_rounds: int, cohort: int, ids: str) -> None:
  """Writes a reproducible log with full cohorts, under its name once complete."""
  unfinished = pathlib.Path(f'{path}.{os.getpid()}.unfinished')
  id_type = pa.string() if ids == 'text' else pa.int64()
  columns = pa.schema(
    [('round', pa.int64()), ('device_id', id_type)],
    metadata={keys.VERSION_KEY: str(keys.LOG_VERSION), keys.NUM_ROUNDS_KEY: str(num_rounds)},
  )
  together = -(-_ROW_GROUP // cohort)
  rounds = cohorts(num_devices, num_rounds, cohort)
  try:
    with pq.ParquetWriter(
      unfinished, columns, compression='zstd', use_dictionary=['round']
    ) as writer:
      for first in range(0, num_rounds, together):
        numbers = np.arange(first, min(first + together, num_rounds))
        devices = pa.array(np.concatenate([next(rounds) for _ in numbers]))
        if ids == 'text':
          padded = pc.utf8_lpad(devices.cast(pa.string()), 9, '0')
          devices = pc.binary_join_element_wise('device', padded, '-')
        writer.write_table(pa.table([np.repeat(numbers, cohort), devices], schema=columns))
        print(f'{first + numbers.size} of {num_rounds} rounds', file=sys.stderr)
    os.replace(unfinished, path)
  finally:
    unfinished.unlink(missing_ok=True)


def limit(num_devices: int, goal: int, num_rounds: int, path: str) -> int:
  """Draws devices at random, drops duplicates, counts and writes; returns the participations."""
  rng = np.random.default_rng(0)
  ids = lambda: np.unique(rng.integers(num_devices, size=goal))
  rounds = (schemas.Cohort(t, ids(), t, t) for t in range(num_rounds))
  return attendances.record(rounds, num_rounds=num_rounds, output=path).num_participations
