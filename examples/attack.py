"""One released round tells who took part, if it is a sum of floats.

    python examples/attack.py

Twenty devices send updates, nineteen of them zeros. The twentieth, the target, sends one of norm
0.999 or takes no part. A float32 row of noise is added to the float32 sum. Next to 0, float32
numbers are closer together than those of the target's update, about 1e-3 in each coordinate. So a
sum that holds the target comes near 0 only in coarse steps, and noise without it in finer ones. The
attack counts released coordinates next to 0 that are not on the coarse grid. In integers there is
one grid for everything, and the same count says nothing. See docs/decisions/arithmetic.md.
"""

import numpy as np

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import lattice
from fl_dpftrl.noise import normals

SIZE, ROUNDS, BITS = 1 << 20, 10, 34
NOISE_MULTIPLIER = 7.379
NEAR, GRID = 2.0**-11, 2.0**-34


def float_rounds(target: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """Released rounds as a sum of float32 numbers: the first, in which no buffer holds anything."""
  noise = rng.standard_normal((ROUNDS, SIZE)).astype(np.float32) * np.float32(NOISE_MULTIPLIER)
  return target.astype(np.float32) + noise


def integer_rounds(target: np.ndarray, made: normals.Normals) -> np.ndarray:
  """The same in integers, as multiples of a unit of 2⁻³⁴ of the noise's standard deviation."""
  row = next(lattice.rows(dpftrl.load_strategy('blt-b400'), ROUNDS))
  unit = NOISE_MULTIPLIER * 2.0**-BITS
  update = np.trunc(target / (2**10 * unit)).astype(np.int64) * 2**10  # Towards zero.
  noise = np.empty((ROUNDS, SIZE), np.int64)
  for number, part in enumerate(noise):
    made.fill(number, 0, row.spread * 2.0**BITS, part)
  return (update + noise) * unit


def off_the_grid(released: np.ndarray) -> list[int]:
  """Counts, round by round, coordinates next to 0 that are not multiples of 2⁻³⁴."""
  near = np.abs(released) < NEAR
  steps = released.astype(np.float64) / GRID
  return [int(count) for count in (near & (steps != np.rint(steps))).sum(axis=1)]


def main() -> None:
  target, nothing = np.full(SIZE, 0.999 / np.sqrt(SIZE)), np.zeros(SIZE)
  rng, made = np.random.default_rng(0), normals.Normals(normals.system_seed())
  print('Coordinates off the grid, by round')
  for name, target_is_there in (('with the target', target), ('without', nothing)):
    print(f'  float32,  {name:16}', off_the_grid(float_rounds(target_is_there, rng)))
  for name, target_is_there in (('with the target', target), ('without', nothing)):
    print(f'  integers, {name:16}', off_the_grid(integer_rounds(target_is_there, made)))


if __name__ == '__main__':
  main()
