"""Calls at one size, each with the time that its limit takes, and what writes their files."""

import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import ciphers
from cryptography.hazmat.primitives.ciphers import algorithms, modes

import fl_dpftrl as dpftrl
from benchmarks import replay as replays
from benchmarks import runner
from benchmarks.sides import logs
from fl_dpftrl.logs import ledger_format, ledgers
from fl_dpftrl.run import guards

_BUDGET = dpftrl.LossBudget(max_participations=6, min_sep=342)
_CLAIM = dpftrl.Claim(strategy='blt-b342-endless', noise_multiplier=7.379, participation=_BUDGET)
_ROUNDS, _GOAL, _UPDATES, _CANDIDATES = 2000, 650, 10, 10_000


def write_gate(size: int, folder: str) -> None:
  """Writes a ledger of ten rounds."""
  guard = guards.Guard(_CLAIM, delta=1e-6, log=f'{folder}/log.parquet')
  for devices in np.array_split(np.arange(size), 10):
    guard.admit(devices)
  guard.log.release()


def gate(size: int, folder: str) -> dict[str, Any]:
  """Opens the ledger; a smaller one before, so that all is loaded."""
  guards.Guard(_CLAIM, delta=1e-6, log=f'{folder}/other.parquet').close()
  path, opened = pathlib.Path(folder) / 'log.parquet', []
  figures = _timed(lambda: opened.append(guards.Guard(_CLAIM, delta=1e-6, log=path)))
  candidates = np.random.default_rng(0).choice(size, _CANDIDATES, replace=False)
  _, computed = runner.timed(5, lambda t: lambda: opened[0].check(candidates))
  note = f'{1e3 * statistics.median(computed):.1f} ms of processors a check of 10,000'
  return figures | _read(ledger_format.path_of(path)) | {'note': note}


def write_ledger(size: int, folder: str) -> None:
  """Writes a ledger of rounds of ten devices, some hundred at a time."""
  log, cohorts = ledgers.LogWriter(f'{folder}/log.parquet'), np.arange(10 * size).reshape(-1, 10)
  for first in range(0, size, 500):
    log.reserve(first, list(cohorts[first : first + 500]), 0)
  log.release()


def ledger(size: int, folder: str) -> dict[str, Any]:
  """Appends rounds to the ledger, and closes it."""
  log, more = ledgers.LogWriter(f'{folder}/log.parquet'), np.arange(1000).reshape(-1, 10)
  seconds, _ = runner.timed(100, lambda t: lambda: log.append(size + t, more[t], 0))
  figures = _timed(log.close) | _read(ledger_format.path_of(log.path))
  return figures | {'note': f'{1e3 * statistics.median(seconds):.2f} ms an append'}


def write_replay(size: int, folder: str) -> None:
  """Writes the log, which is kept for the next time."""
  replays.generate(_log(size))


def replay(size: int, folder: str) -> dict[str, Any]:
  """Replays the log."""
  path, given = _log(size).path, dict(strategy='blt-b400', noise_multiplier=8.0)
  return _timed(lambda: dpftrl.replay(dpftrl.open_run(path, **given), delta=1e-6)) | _read(path)


def simulate(size: int, folder: str) -> dict[str, Any]:
  """Simulates rounds after a first one, so that all is loaded."""
  scenario = dpftrl.Scenario(population=size, report_goal=_GOAL, timer_rounds=10)
  dpftrl.simulate(scenario, num_rounds=1)
  path = f'{folder}/log.parquet'
  figures = _timed(lambda: dpftrl.simulate(scenario, num_rounds=_ROUNDS, output=path))
  limit = _timed(lambda: logs.limit(size, _GOAL, _ROUNDS, path))['seconds']
  return figures | {'limit': limit, 'limited_by': 'as many drawn, counted and written'}


def round(size: int, folder: str) -> dict[str, Any]:
  """Makes rounds, of which the first is not counted."""
  update = np.random.default_rng(0).standard_normal(size, np.float32)
  settings = dict(noise_multiplier=1.0, clip_norm=1.0, report_goal=_UPDATES, folder=folder)
  with dpftrl.PrivateAggregator('blt-b400', template=update, **settings) as aggregator:

    def step() -> None:
      with aggregator.round(range(_UPDATES)) as round_:
        for _ in range(_UPDATES):
          round_.add(update)

    figures = [_timed(step) for _ in range(8)][1:]
  cipher = ciphers.Cipher(algorithms.AES256(bytes(32)), modes.CTR(bytes(16))).encryptor()
  zeros, out = bytes(1 << 17), bytearray((1 << 17) + 16)
  parts = range(-(-8 * size // len(zeros)))
  limit = _timed(lambda: [cipher.update_into(zeros, out) for _ in parts])['seconds']
  medians = {name: statistics.median(each[name] for each in figures) for name in figures[0]}
  return medians | {'limit': limit, 'limited_by': f'{8 * size:,} bytes of AES'}


def _timed(step: Callable[[], Any]) -> dict[str, float]:
  (seconds,), (computed,) = runner.timed(1, lambda t: step)
  return {'seconds': seconds, 'cpu_seconds': computed}


def _read(path: pathlib.Path) -> dict[str, Any]:
  """Returns the seconds of reading a file that was just read, and its bytes."""
  start = time.perf_counter()
  with path.open('rb', buffering=0) as file:
    while file.readinto(bytearray(1 << 20)):
      pass
    return {'limit': time.perf_counter() - start, 'limited_by': f'{file.tell():,} bytes read'}


def _log(size: int) -> replays.Case:
  cohort = size // _ROUNDS
  return replays.Case(500 * cohort, _ROUNDS, cohort)
