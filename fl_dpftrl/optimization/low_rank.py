"""Low-memory approximation of a strategy by a low-rank decoder."""

import numpy as np

from fl_dpftrl import workloads
from fl_dpftrl.families import bands, base, low_rank

_MOST_ROUNDS_OF_FITTING = 100
_ENOUGH = 1e-3  # smallest relative decrease of the residual; then fitting ends
_RIDGE = 1e-8  # relative to the trace; keeps factors of opposite signs small


def approximate(
  strategy: base.Strategy,
  num_rounds: int,
  *,
  num_bands: int,
  rank: int,
  workload: workloads.Workload = workloads.Workload(),
) -> low_rank.LowRank:
  """Returns a strategy near another one whose noise needs few vectors.

  The decoder B = A N is kept within its bands and replaced by a matrix of low rank below them,
  which is fitted by alternating least squares. The result is another strategy, C = B⁻¹A, with a
  sensitivity of its own. Its rows of noise are scaled so that its columns have the norms of the
  given strategy's.

  Args:
    strategy: strategy with a square lower-triangular C, such as dense ones.
    num_bands: number of bands of N, at most n. It must exceed the one or two (with momentum)
      rounds that a row of A⁻¹ reaches back.
    rank: rank below the bands, 1 to n.

  Source: Denisov et al. 2022, appendix on structured matrices for B; the rest keeps the
  guarantee that of what is added.
  """
  reach = 2 if workload.momentum else 1
  most = max(num_rounds, reach + 1)
  if not reach < num_bands <= most:
    raise ValueError(
      f'num_bands must be {reach + 1} to {most} for this workload, got {num_bands!r}'
    )
  if not 1 <= rank <= num_rounds:
    raise ValueError(f'rank must be 1 to {num_rounds}, got {rank!r}')
  if strategy.num_noise_rows(num_rounds) != num_rounds:
    raise ValueError(f'strategy must have a square C, but {strategy.family} does not')
  num_bands = min(num_bands, num_rounds)
  decoder = workload.apply(strategy.noising_matrix(num_rounds))
  lag = np.arange(num_rounds)[:, None] - np.arange(num_rounds)
  below = lag >= num_bands - reach
  left, right = _fit(np.where(below, decoder, 0.0), num_bands - reach, rank)
  decoder[below] = (left @ right.T)[below]
  noising, left = _undo(workload, decoder), _undo(workload, left)
  norms = np.linalg.norm(strategy.strategy_matrix(num_rounds), axis=0)
  scale = (np.linalg.norm(base.lower_inverse(noising), axis=0) / norms)[:, None]
  near = bands.of_matrix(noising, num_bands)
  left = left * scale
  balance = np.sqrt(np.abs(left).max(axis=0) / np.abs(right).max(axis=0))
  return low_rank.LowRank(near * scale, left / balance, right * balance)


def _fit(target: np.ndarray, first_lag: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
  """Fits left and right with left rightᵀ near the target from first_lag on.

  The fit alternates between the two factors. Each row of left is a least-squares problem over
  the rows of right that are far enough before it.
  """
  num_rounds = len(target)
  right = np.random.default_rng(0).normal(size=(num_rounds, rank))
  for _ in range(3):  # subspace iteration for the start
    left = np.linalg.qr(target @ right)[0]
    right = target.T @ left
  residual = np.inf
  for _ in range(_MOST_ROUNDS_OF_FITTING):
    left = _solve_rows(target, right, first_lag)
    right = _solve_rows(target.T[::-1, ::-1], left[::-1], first_lag)[::-1]
    before, residual = residual, np.linalg.norm(np.tril(target - left @ right.T, -first_lag))
    if residual >= before * (1.0 - _ENOUGH):
      break
  if not left.any() or not right.any():  # nothing lies below the bands
    return np.zeros_like(left), np.ones_like(right)
  # Columns are scaled alike; every column of right must have an entry.
  scale = np.abs(right).max(axis=0)
  scale[scale == 0.0] = 1.0
  return left * scale, np.where(np.abs(right).max(axis=0), right / scale, 1.0)


def _solve_rows(target: np.ndarray, right: np.ndarray, first_lag: int) -> np.ndarray:
  """Returns per row t the best combination of right's rows to t − first_lag."""
  left = np.zeros_like(right)
  products = np.cumsum(right[:, :, None] * right[:, None, :], axis=0)
  products = products[: len(right) - first_lag]
  if not len(products):
    return left
  ridge = _RIDGE * np.trace(products, axis1=1, axis2=2) + np.finfo(float).tiny
  products = products + ridge[:, None, None] * np.eye(right.shape[1])
  pulls = (target @ right)[first_lag:, :, None]
  left[first_lag:] = np.linalg.solve(products, pulls)[:, :, 0]
  return left


def _undo(workload: workloads.Workload, values: np.ndarray) -> np.ndarray:
  """Returns A⁻¹ @ values, along the first axis."""
  values = np.diff(values, axis=0, prepend=np.zeros((1, values.shape[1])))
  values = values / workload.learning_rates(len(values))[:, None]
  values[1:] -= workload.momentum * values[:-1].copy()
  return values
