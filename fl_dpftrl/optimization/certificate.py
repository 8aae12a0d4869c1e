"""Certificate of how close a strategy is to the optimum over all strategies."""

import itertools

import numpy as np
import scipy.linalg

from fl_dpftrl import error as error_lib
from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl import workloads
from fl_dpftrl.families import base
from fl_dpftrl.optimization import factorization
from fl_dpftrl.participation import schemas

MAX_ROUNDS = 4096  # larger matrices within_pattern minutes
_MOST_STEPS = 25
_MOST_ALTERNATIONS = 50


def optimality_gap(
  strategy: base.Strategy,
  schema: schemas.MinSep,
  workload: workloads.Queries = workloads.Workload(),
  *,
  objective: str = 'rms',
  tolerance: float = 1e-9,
) -> float | None:
  """Returns an upper bound on the relative excess of loss² over the optimum.

  The loss is sensitivity × error, and the optimum is over all matrices C. The bound uses
  patterns that share no round. Under `FixedSeparation` with as many participations as fit, or
  with one, these are all relevant patterns. Otherwise even the best strategy may have a gap.

  Args:
    strategy: C, with its own noising matrix.
    schema: schema of the sensitivity.
    workload: workload of the error.
    objective: 'rms' or 'max', the error in the loss.
    tolerance: smallest gain per step; the bound is not raised further below it.

  Returns:
    loss² / bound − 1; None beyond `MAX_ROUNDS` rounds, or if C or the workload has less than
    full column rank.

  Raises:
    ValueError: if the strategy does not support so many rounds, or the objective is unknown.

  Source: see `factorization`.
  """
  error_lib.check_objective(objective)
  if schema.num_rounds > MAX_ROUNDS:
    return None
  sensitivity = sensitivity_lib.sensitivity(strategy, schema).value
  error = error_lib.error(strategy, schema.num_rounds, workload)
  loss = sensitivity * (error.rms if objective == 'rms' else error.max)
  matrix = workload.matrix(schema.num_rounds)
  groups = factorization.tiles(schema)
  try:
    dual = factorization.Dual(matrix, groups, worst_query=objective == 'max')
    gram = strategy.gram_matrix(schema.num_rounds)
    point = _point(gram, matrix, dual)
  except (ValueError, np.linalg.LinAlgError):
    return None
  best = 0.0
  bounds = factorization.ascend(dual, point)
  for bound in itertools.islice(bounds, _MOST_STEPS):
    gained = bound.value - best
    best = max(best, bound.value)
    if gained <= tolerance * best or loss**2 <= best * (1.0 + tolerance):
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
