"""Time and memory of the guard and of its log, round by round: python -m benchmarks guard.

Each round has 6500 devices of three million, with text as ids. Every cohort is durable before
the next one begins. The claim is that a round costs its own cohort: rounds 1900 to 2000 take at
most 1.2 times as long as rounds 100 to 200 of the same run.
"""

import argparse
import json
import pathlib
import platform
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np

import fl_dpftrl as dpftrl

RESULTS = pathlib.Path(__file__).parents[1] / 'results'
CACHE = pathlib.Path(__file__).parents[1] / '.cache'
COHORT, DEVICES, ROUNDS = 6500, 3_000_000, 2000
MOST = 1.2

# Prepares a round and returns what is timed; ends the log.
Timed = tuple[Callable[[int], Callable[[], object]], Callable[[], None]]


def candidates(round_index: int, count: int) -> list[str]:
  """Returns the ids of the devices that offer themselves in a round."""
  drawn = np.random.default_rng(round_index).choice(DEVICES, count, replace=False)
  return [f'device-{i:09d}' for i in drawn.tolist()]


def log_alone(folder: pathlib.Path) -> Timed:
  """Returns what records a round, and what ends the log."""
  log = dpftrl.LogWriter(folder / 'log.parquet')

  def prepare(t: int) -> Callable[[], object]:
    ids = candidates(t, COHORT)
    return lambda: log.append(t, ids, 1_767_225_600 + t)

  return prepare, log.close


def guarded(folder: pathlib.Path) -> Timed:
  """Returns what admits devices to a round, and what ends the guard's log."""
  schema = dpftrl.MinSep(num_rounds=ROUNDS, min_sep=100, max_participations=20)
  claim = dpftrl.Claim(strategy='blt-b400', noise_multiplier=7.379, participation=schema)
  guard = dpftrl.Guard(claim, delta=1e-10, log=folder / 'log.parquet')

  def prepare(t: int) -> Callable[[], object]:
    ids = candidates(t, 9000)
    return lambda: guard.admit(ids, row=t, at_most=COHORT).device_ids

  return prepare, guard.close


def measure(kind: str, rounds: int) -> dict[str, float]:
  """Returns the figures of one run."""
  CACHE.mkdir(exist_ok=True)
  folder = pathlib.Path(tempfile.mkdtemp(prefix='guard-', dir=CACHE))
  try:
    prepare, close = {'log': log_alone, 'guard': guarded}[kind](folder)
    seconds, waited = [], []
    for t in range(rounds):
      step = prepare(t)
      began, used = time.perf_counter(), time.process_time()
      step()
      seconds.append(time.process_time() - used)
      waited.append(time.perf_counter() - began)
    began = time.perf_counter()
    close()
    closing = time.perf_counter() - began
    size = (folder / 'log.parquet').stat().st_size
  finally:
    shutil.rmtree(folder)
  tenth = rounds // 20
  early, late = seconds[tenth : 2 * tenth], seconds[-tenth:]
  return {
    'rounds': rounds,
    'early_ms': 1e3 * statistics.median(early),
    'late_ms': 1e3 * statistics.median(late),
    'ratio': statistics.median(late) / statistics.median(early),
    'ratio_of_sums': sum(late) / sum(early),
    'clock_ms': 1e3 * statistics.median(waited),
    'longest_ms': 1e3 * max(seconds),
    'closing_seconds': closing,
    'log_mib': size / 2**20,
    'resident_mib': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
  }


def page(found: dict[str, dict[str, float]]) -> str:
  """Returns the results as a table."""
  lines = [
    '# The guard and its log, round by round',
    '',
    f'{COHORT:,} devices a round of {DEVICES:,}, text as ids, each durable before the next one; the'
    f' guard chooses them among 9,000. {platform.machine()}, Python {platform.python_version()}.',
    '',
    '| | rounds | ms a round, early | late | late / early | longest | by the clock |'
    ' ending (s) | log (MiB) | resident (MiB) |',
    '|---|---|---|---|---|---|---|---|---|---|',
  ]
  for name, of in found.items():
    lines.append(
      f'| {name} | {of["rounds"]:,} | {of["early_ms"]:.1f} | {of["late_ms"]:.1f} |'
      f' {of["ratio"]:.2f} | {of["longest_ms"]:.0f} | {of["clock_ms"]:.1f} |'
      f' {of["closing_seconds"]:.1f} | {of["log_mib"]:.0f} | {of["resident_mib"]:.0f} |'
    )
  return '\n'.join(
    [
      *lines,
      '',
      'Early are rounds 5 % to 10 % of the run (100 to 200 of 2,000), late the last 5 %;\n'
      'medians of computing time, to which the clock adds waiting for the disk and other programs.'
      ' The longest round includes growth of the table of devices and the disk.',
      '',
    ]
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--rounds', type=int, default=ROUNDS)
  parser.add_argument('--only', choices=('log', 'guard'), help='one run alone')
  args = parser.parse_args()
  found = {
    name: measure(name, args.rounds) for name in ([args.only] if args.only else ('log', 'guard'))
  }
  print(page(found))
  if args.rounds == ROUNDS and not args.only:
    (RESULTS / 'guard.json').write_text(json.dumps(found, indent=2) + '\n')
    (RESULTS / 'guard.md').write_text(page(found))
  late = [name for name, of in found.items() if of['ratio'] > MOST]
  if late:
    raise SystemExit(f'late rounds of {", ".join(late)} take more than {MOST} times the early ones')


if __name__ == '__main__':
  main()
