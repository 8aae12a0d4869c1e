"""Compiles the loops of rounds into their cache, so that no first round waits for that."""

import numpy as np

from fl_dpftrl.claims import lattice_units
from fl_dpftrl.mechanisms.families import banded_toeplitz, blt, identity, tree_online
from fl_dpftrl.noise import integer_rows
from fl_dpftrl.participation.counts import seen
from fl_dpftrl.run import sums

SIZE, ROUNDS = 1000, 4  # Of so many normals, some need further bits.


def main() -> None:
  """Makes rows of each kind, and adds updates of each type and some devices."""
  for strategy in (
    identity.Identity(),
    blt.BLT((0.9,), (0.1,)),
    tree_online.TreeOnline(),
    banded_toeplitz.BandedToeplitz(np.array([1.0, 0.5, 0.25]), None),
  ):
    maker = integer_rows.RowMaker(
      strategy, size=SIZE, num_rounds=ROUNDS, seed=bytes(32), num_threads=1
    )
    for _ in range(ROUNDS):
      maker.make(np.empty(SIZE, np.int64))
  for kind in (np.float32, np.float64):
    total = sums.Sum(SIZE, unit=lattice_units.Unit.of(1.0))
    total.begin(1.0)
    total.add([np.ones((1, SIZE), kind)])
  devices = seen.Seen()
  devices.add(['a'])
  devices.of(['a'])


if __name__ == '__main__':
  main()
