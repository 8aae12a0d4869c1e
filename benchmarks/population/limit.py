"""Lower limit of the cost of a simulated log: random devices, counted, written.

    python -m benchmarks.population.limit DEVICES GOAL ROUNDS FILE.parquet

Every round draws its devices at random, without timers, availability or
dropout, and drops duplicates.
"""

import sys

import numpy as np

from fl_dpftrl.logs import schema
from fl_dpftrl.participation import schemas
from fl_dpftrl.simulation import attendance as attendance_lib


def main(num_devices: int, goal: int, num_rounds: int, path: str) -> None:
  rng = np.random.default_rng(0)
  attendance = attendance_lib.Attendance()
  with schema.round_by_round(path, num_rounds=num_rounds) as append:
    for t in range(num_rounds):
      ids = np.unique(rng.integers(num_devices, size=goal))
      append(t, ids, t)
      attendance.add_cohort(schemas.Cohort(t, ids, t, t))
  print(attendance.num_participations)


if __name__ == '__main__':
  main(*map(int, sys.argv[1:4]), sys.argv[4])
