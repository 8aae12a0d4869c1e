"""Rounds of the guard, of its log alone, of `PrivateAggregator`, and of bare NumPy."""

import contextlib
import pathlib
import resource
import statistics
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

import fl_dpftrl as dpftrl
from benchmarks import runner
from fl_dpftrl.run import guards

COHORT, DEVICES = 6500, 3_000_000
SIZE, UPDATES, KINDS, CLIP_NORM = 4_050_748, 100, 4, 1.0


def folder() -> contextlib.AbstractContextManager[str]:
  """Returns a temporary folder on the disk of the project."""
  runner.CACHE.mkdir(exist_ok=True)
  return tempfile.TemporaryDirectory(dir=runner.CACHE, ignore_cleanup_errors=True)


def resident() -> float:
  """Returns the peak memory of this process, in MiB."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def guarded(side: str, rounds: int) -> dict[str, Any]:
  """Returns the figures of rounds of the guard, or of its log alone."""

  def prepare(t: int) -> Callable[[], Any]:
    drawn = np.random.default_rng(t).choice(DEVICES, count, replace=False)
    ids = [f'device-{i:09d}' for i in drawn.tolist()]
    return lambda: record(t, ids)

  with folder() as place:
    path = pathlib.Path(place) / 'log.parquet'
    if side == 'log':
      opened, count = dpftrl.LogWriter(path), COHORT
      record = lambda t, ids: opened.append(t, ids, 1_767_225_600 + t)
    else:
      schema = dpftrl.MinSep(num_rounds=max(rounds, 2000), min_sep=100, max_participations=20)
      claim = dpftrl.Claim(strategy='blt-b400', noise_multiplier=7.379, participation=schema)
      opened, count = guards.Guard(claim, delta=1e-10, log=path), 9000
      record = lambda t, ids: opened.admit(ids, row=t, at_most=COHORT).device_ids
    seconds, computed = runner.timed(rounds, prepare)
    (closing,), _ = runner.timed(1, lambda t: opened.close)
    size = path.stat().st_size
  part = max(1, rounds // 20)
  early, late = computed[part : 2 * part], computed[-part:]
  return {
    'rounds': rounds,
    'early_ms': 1e3 * statistics.median(early),
    'late_ms': 1e3 * statistics.median(late),
    'ratio': statistics.median(late) / statistics.median(early),
    'clock_ms': 1e3 * statistics.median(seconds),
    'longest_ms': 1e3 * max(computed),
    'closing_seconds': closing,
    'log_mib': size / 2**20,
    'resident_mib': resident(),
  }


def large(side: str, rounds: int) -> dict[str, float]:
  """Returns the milliseconds of a round, and the memory beyond the updates."""
  rng = np.random.default_rng(0)
  scales = np.geomspace(0.5, 2.0, KINDS) / np.sqrt(SIZE)
  updates = [[rng.standard_normal(SIZE, np.float32) * np.float32(scale)] for scale in scales]
  strategy, memory = dpftrl.load_strategy('blt-b400'), resident()

  def bare() -> np.ndarray:
    total = np.zeros(SIZE, np.float32)
    for index in range(UPDATES):
      (update,) = updates[index % KINDS]
      total += update * np.float32(min(1.0, CLIP_NORM / np.linalg.norm(update)))
    return total / UPDATES

  with folder() as place, contextlib.ExitStack() as stack:
    if side == 'aggregator':
      settings = dict(noise_multiplier=1.0, clip_norm=CLIP_NORM, report_goal=UPDATES)
      aggregator = stack.enter_context(
        dpftrl.PrivateAggregator(strategy, template=updates[0], folder=place, **settings)
      )
    elif side == 'row':
      rows = dpftrl.NoiseRows(strategy, SIZE, folder=place)

    def aggregated() -> Any:
      with aggregator.round(range(UPDATES)) as round_:
        for index in range(UPDATES):
          round_.add(updates[index % KINDS])
      return round_.mean

    steps = {'bare': lambda t: bare, 'row': lambda t: lambda: rows.integers(t)}
    seconds, _ = runner.timed(rounds, steps.get(side, lambda t: aggregated))
  return {'ms': 1e3 * statistics.median(seconds[1:]), 'mib': resident() - memory}


def small(rounds: int, reserve: int) -> dict[str, float]:
  """Returns the time of small rounds, early and late, with so many recorded at a time."""
  update = np.full(10, 0.1, np.float32)
  cohorts = (range(10 * t, 10 * t + 10) for t in range(rounds))
  with (
    folder() as place,
    dpftrl.PrivateAggregator(
      dpftrl.BLT((0.9, 0.5), (0.3, 0.2)),
      template=np.zeros(10, np.float32),
      noise_multiplier=1.0,
      clip_norm=1.0,
      report_goal=10,
      folder=place,
    ) as aggregator,
  ):
    reserved = aggregator.rounds(cohorts, reserve=reserve) if reserve > 1 else None
    each = reserved or map(aggregator.round, cohorts)

    def step() -> None:
      with next(each) as round_:
        for _ in range(10):
          round_.add(update)

    seconds, computed = runner.timed(rounds, lambda t: step)
  part = max(1, rounds // 10)
  return {
    'rounds': rounds,
    'early_ms': 1e3 * statistics.mean(seconds[part : 2 * part]),
    'late_ms': 1e3 * statistics.mean(seconds[-part:]),
    'cpu_ms': 1e3 * statistics.mean(computed),
    'resident_mib': resident(),
  }
