"""`PrivateAggregator` beside bare NumPy, and many small rounds: python -m benchmarks loop.

A round of 100 updates of 4,050,748 parameters is compared with a bare loop in NumPy that clips and
sums the same updates, and with that loop plus the row of noise. The claim is at most 1.3 times the
loop, plus the row. Small rounds are of 10 parameters and 10 devices, each round durable: the claim
is that their time stays the same.
"""

import argparse
import json
import pathlib
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

import fl_dpftrl as dpftrl

RESULTS = pathlib.Path(__file__).parents[1] / 'results'
CACHE = pathlib.Path(__file__).parents[1] / '.cache'
SIZE, UPDATES, KINDS = 4_050_748, 100, 4
CLIP_NORM, MOST = 1.0, 1.3
SIDES = ('bare', 'row', 'aggregator')
RESERVE = 64
SMALL = {'small': 0, 'reserved': RESERVE}


def updates() -> list[list[np.ndarray]]:
  """Returns updates of different norms, half of them above the clip norm."""
  rng = np.random.default_rng(0)
  scales = np.geomspace(0.5, 2.0, KINDS) / np.sqrt(SIZE)
  return [[rng.standard_normal(SIZE, np.float32) * np.float32(scale)] for scale in scales]


def bare(given: list[list[np.ndarray]]) -> np.ndarray:
  """Clips and sums as one does in a few lines."""
  total = np.zeros(SIZE, np.float32)
  for index in range(UPDATES):
    (update,) = given[index % KINDS]
    norm = np.linalg.norm(update)
    total += update * np.float32(min(1.0, CLIP_NORM / norm))
  return total / UPDATES


def measure(side: str, rounds: int) -> dict[str, float]:
  """Returns the seconds of rounds, and the memory beyond the updates."""
  given = updates()
  strategy = dpftrl.load_strategy('blt-b400')
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  CACHE.mkdir(exist_ok=True)
  folder = pathlib.Path(tempfile.mkdtemp(prefix='loop-', dir=CACHE))
  seconds = []
  try:
    if side == 'bare':
      step = lambda t: bare(given)
    elif side == 'row':
      rows = dpftrl.NoiseRows(strategy, SIZE, folder=folder)
      step = rows.integers
    else:
      aggregator = dpftrl.PrivateAggregator(
        strategy,
        template=given[0],
        noise_multiplier=1.0,
        clip_norm=CLIP_NORM,
        report_goal=UPDATES,
        folder=folder,
      )

      def step(t):
        with aggregator.round(range(UPDATES)) as round_:
          for index in range(UPDATES):
            round_.add(given[index % KINDS])
        return round_.mean

    for t in range(rounds):
      began = time.perf_counter()
      step(t)
      seconds.append(time.perf_counter() - began)
  finally:
    shutil.rmtree(folder)
  more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
  return {'seconds': statistics.median(seconds[1:]), 'mib': more / 2**10}


def small(rounds: int, reserve: int) -> dict[str, float]:
  """Returns the time of small rounds, early and late.

  Args:
    rounds: how many.
    reserve: rounds that are recorded at a time; 0 for each on its own.
  """
  CACHE.mkdir(exist_ok=True)
  folder = pathlib.Path(tempfile.mkdtemp(prefix='loop-', dir=CACHE))
  waited, used = [], []
  try:
    with dpftrl.PrivateAggregator(
      dpftrl.BLT((0.9, 0.5), (0.3, 0.2)),
      template=np.zeros(10, np.float32),
      noise_multiplier=1.0,
      clip_norm=1.0,
      report_goal=10,
      folder=folder,
    ) as aggregator:
      update = np.full(10, 0.1, np.float32)
      cohorts = (range(10 * t, 10 * t + 10) for t in range(rounds))
      each = (
        aggregator.rounds(cohorts, reserve=reserve) if reserve else map(aggregator.round, cohorts)
      )
      for _ in range(rounds):
        began, busy = time.perf_counter(), time.process_time()
        with next(each) as round_:
          for _ in range(10):
            round_.add(update)
        waited.append(time.perf_counter() - began)
        used.append(time.process_time() - busy)
  finally:
    shutil.rmtree(folder)
  tenth = rounds // 10
  return {
    'rounds': rounds,
    'early_ms': 1e3 * statistics.mean(waited[tenth : 2 * tenth]),
    'late_ms': 1e3 * statistics.mean(waited[-tenth:]),
    'cpu_ms': 1e3 * statistics.mean(used),
    'resident_mib': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
  }


def page(found: dict[str, dict[str, float]]) -> str:
  """Returns the results as tables."""
  own, plain, row = (found[side]['seconds'] for side in ('aggregator', 'bare', 'row'))
  rounds, reserved = found['small'], found['reserved']
  return '\n'.join(
    [
      '# PrivateAggregator beside bare NumPy',
      '',
      f'{UPDATES} updates of {SIZE:,} parameters a round, BLT noise, medians of rounds in processes'
      f' of their own. {platform.machine()}, Python {platform.python_version()}, NumPy'
      f' {np.__version__}.',
      '',
      '| | ms a round | memory beside the updates (MiB) |',
      '|---|---|---|',
      f'| clip and sum in NumPy | {1e3 * plain:.0f} | {found["bare"]["mib"]:.0f} |',
      f'| the row of noise alone | {1e3 * row:.0f} | {found["row"]["mib"]:.0f} |',
      f'| `PrivateAggregator` | {1e3 * own:.0f} | {found["aggregator"]["mib"]:.0f} |',
      '',
      f'The aggregator takes {own / plain:.2f} times the loop, and {own / (plain + row):.2f} times'
      f' the loop and a row; the claim is at most {MOST} times the loop, plus the row:'
      f' {"holds" if own <= MOST * plain + row else "does not hold"}.',
      '',
      '## Small rounds',
      '',
      f'{rounds["rounds"]:,.0f} rounds of 10 parameters and 10 devices, each on disk before its'
      f' mean is there: {rounds["early_ms"]:.2f} ms a round early in the run,'
      f' {rounds["late_ms"]:.2f} ms late, {rounds["cpu_ms"]:.2f} ms of processor time,'
      f' {rounds["resident_mib"]:.0f} MiB. Where {RESERVE} are recorded at a time:'
      f' {reserved["early_ms"]:.2f} ms early, {reserved["late_ms"]:.2f} ms late,'
      f' {reserved["cpu_ms"]:.2f} ms of processor time. Means.',
      '',
      'Again: `python -m benchmarks loop`',
      '',
    ]
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--side', choices=(*SIDES, *SMALL), help='measure one side, in JSON')
  parser.add_argument('--rounds', type=int, help='rounds of that side')
  args = parser.parse_args()
  if args.side:
    if args.side in SMALL:
      found = small(args.rounds, SMALL[args.side])
    else:
      found = measure(args.side, args.rounds)
    print(json.dumps(found))
    return
  found = {}
  for side, rounds in (*((side, 6) for side in SIDES), *((side, 20_000) for side in SMALL)):
    command = [sys.executable, '-m', 'benchmarks.loop.run', f'--side={side}', f'--rounds={rounds}']
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found[side] = json.loads(done.stdout)
    print(side, found[side], file=sys.stderr)
  RESULTS.joinpath('loop.json').write_text(json.dumps(found, indent=2) + '\n')
  RESULTS.joinpath('loop.md').write_text(page(found))
  print(page(found))


if __name__ == '__main__':
  main()
