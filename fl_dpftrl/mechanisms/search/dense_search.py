"""Optimal dense strategies: for one participation and at fixed intervals, with certificates."""

import dataclasses
import itertools

import numpy as np
import scipy

from fl_dpftrl.mechanisms import base, schemas
from fl_dpftrl.mechanisms.search import factorization, search_problem

MAX_ROUNDS = 4096  # certificates of larger matrices take minutes
_GAIN = 1e-9  # smallest relative gain of a bound for which it is raised further
_MOST_STEPS = 25
_MOST_ALTERNATIONS = 50


def solve(problem: search_problem.Problem, *, tolerance: float = 2e-7) -> factorization.Solution:
  """Finds the strategy with the smallest loss for one participation, over all strategies.

  Args:
    problem: its workload has full column rank; participations beyond one do not count.
    tolerance: stops when the squared loss is proven this close, relatively, to the optimum.

  Source: Denisov et al. 2022, section 3.
  """
  once = schemas.Schema(num_rounds=problem.schema.num_rounds, max_participations=1)
  return solve_multi_epoch(dataclasses.replace(problem, schema=once), tolerance=tolerance)


def solve_multi_epoch(
  problem: search_problem.Problem, *, equal_norms: bool = False, tolerance: float = 1e-6
) -> factorization.Solution:
  """Finds the best strategy under (k, b)-participation, with sensitivity 1.

  If a device may return until the end (k = ⌈n / b⌉), or participates once, it is the best of
  all strategies, whatever the signs of X. Otherwise it is the best of those with equal column
  norms and orthogonal columns in every pattern.

  Args:
    problem: the loss to minimise, its schema interpreted as `FixedSeparation`. Under min-sep
      patterns the strategy is valid but not optimal.
    equal_norms: True if all columns must have the same norm.
    tolerance: see `solve`.

  Source: Choquette-Choo et al. 2023 (multi-epoch matrix factorization), for the problem;
  `factorization` for the proof that its sign constraints hold by themselves.
  """
  groups = factorization.chains(problem.schema)
  alike = equal_norms or groups.reach < groups.rounds.shape[1]
  matrix = problem.workload.matrix(groups.num_rounds)
  dual = factorization.Dual(
    matrix,
    groups,
    equal_norms=1.0 / problem.schema.participations if alike else None,
    worst_query=problem.objective == 'max',
  )
  tolerance = max(tolerance, 2.0 * problem.least_gain)  # The gap is one of squares.
  return factorization.solve(matrix, dual, tolerance=tolerance, progress=problem.progress)


def optimality_gap(strategy: base.Strategy, problem: search_problem.Problem) -> float | None:
  """Returns an upper bound on the relative excess of loss² over the optimum.

  The optimum is over all matrices C. The bound uses patterns that share no round. Under
  `FixedSeparation` with as many participations as fit, or with one, these are all relevant
  patterns. Otherwise even the best strategy may have a gap.

  Returns:
    loss² / bound − 1; None beyond `MAX_ROUNDS` rounds, or if C or the workload has less than
    full column rank.

  Source: see `factorization`.
  """
  num_rounds = problem.schema.num_rounds
  if num_rounds > MAX_ROUNDS:
    return None
  loss = problem.loss(strategy)
  matrix = problem.workload.matrix(num_rounds)
  groups = factorization.tiles(problem.schema)
  try:
    dual = factorization.Dual(matrix, groups, worst_query=problem.objective == 'max')
    point = _point(strategy.gram_matrix(num_rounds), matrix, dual)
  except (ValueError, np.linalg.LinAlgError):
    return None
  best = 0.0
  for bound in itertools.islice(factorization.ascend(dual, point), _MOST_STEPS):
    gained = bound.value - best
    best = max(best, bound.value)
    if gained <= _GAIN * best or loss**2 <= best * (1.0 + _GAIN):
      break
  return max(loss**2 / best - 1.0, 0.0)


def _point(gram: np.ndarray, workload: np.ndarray, dual: factorization.Dual) -> factorization.Point:
  """Returns L and the weights of the queries P as if X were optimal.

  Then X⁻¹ AᵀPA X⁻¹ is H, all in the blocks; and, where A is square, P is A⁻ᵀ X H X A⁻¹, all in
  the diagonal. A fixed-point iteration alternates between the two.
  """
  factor = scipy.linalg.cho_factor(gram)
  half = scipy.linalg.cho_solve(factor, workload.T)
  rounds, inside = dual.groups.rounds, dual.groups.inside
  within_pattern = lambda rows: rows[np.where(inside, rounds, 0)] * inside[:, :, None]
  rows, start = within_pattern(half), dual.start()
  blocks, weights = rows @ rows.transpose(0, 2, 1), start.weights
  queries, num_rounds = workload.shape
  if dual.worst_query and queries == num_rounds:
    back = within_pattern(np.linalg.solve(workload.T, gram).T)
    for _ in range(_MOST_ALTERNATIONS):
      shares = np.einsum('gij,giq,gjq->q', blocks, back, back, optimize=True)
      weights = np.sqrt(shares / shares.sum())
      blocks = (rows * weights**2) @ rows.transpose(0, 2, 1)
  blocks = blocks + np.eye(rounds.shape[1]) * ~inside[:, :, None]
  root = np.linalg.cholesky(blocks) * inside[:, :, None]
  return factorization.Point(root, weights)
