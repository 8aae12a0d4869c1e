"""How far a strategy may be from the best of all strategies."""

import itertools

import numpy as np
import scipy.linalg

from fl_dpftrl import error as error_lib
from fl_dpftrl import participation
from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl import workloads
from fl_dpftrl.optimization import factorization
from fl_dpftrl.strategies import base

MAX_ROUNDS = 4096  # beyond, matrices of this size take minutes
_MOST_STEPS = 25


def optimality_gap(
    strategy: base.Strategy,
    schema: participation.MinSep,
    workload: workloads.Queries = workloads.Workload(),
    *,
    objective: str = 'rms',
    tolerance: float = 1e-9,
) -> float | None:
  """By how much loss² may exceed that of the best strategy, at the most.

  The loss is sensitivity × error; the best is over all matrices C whatever. The
  bound uses patterns that share no round, which under `FixedSeparation` with as
  many participations as fit, or with one, are all that matter; otherwise even
  the best strategy may have a gap.

  Args:
    strategy: C, with its own noising matrix.
    schema: where the sensitivity is.
    workload: where the error is.
    objective: 'rms' or 'max', the error that counts.
    tolerance: the bound is not raised further where a step gains less.

  Returns:
    loss² / bound − 1; None beyond `MAX_ROUNDS` rounds, for a C or a workload
    of less than full column rank.

  Raises:
    ValueError: where the strategy cannot run so many rounds, or the objective
      is unknown.

  Source: see `factorization`.
  """
  if objective not in ('rms', 'max'):
    raise ValueError(f'objective must be rms or max, got {objective!r}')
  if schema.num_rounds > MAX_ROUNDS:
    return None
  sensitivity = sensitivity_lib.sensitivity(strategy, schema).value
  error = error_lib.error(strategy, schema.num_rounds, workload)
  loss = sensitivity * (error.rms if objective == 'rms' else error.max)
  matrix = workload.matrix(schema.num_rounds)
  groups = factorization.tiles(schema)
  try:
    dual = factorization.Dual(
        matrix, groups, worst_query=objective == 'max'
    )
    gram = sensitivity_lib.gram_matrix(strategy, schema.num_rounds)
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


def _point(
    gram: np.ndarray, workload: np.ndarray, dual: factorization.Dual
) -> factorization.Point:
  """H as X itself suggests: the blocks of X⁻¹ AᵀA X⁻¹, its solution."""
  factor = scipy.linalg.cho_factor(gram)
  half = scipy.linalg.cho_solve(factor, workload.T)
  rounds, inside = dual.groups.rounds, dual.groups.inside
  rows = half[np.where(inside, rounds, 0)] * inside[:, :, None]
  blocks = rows @ rows.transpose(0, 2, 1)
  blocks += np.eye(rounds.shape[1]) * ~inside[:, :, None]
  start = dual.start()
  return start._replace(
      factor=np.linalg.cholesky(blocks) * inside[:, :, None]
  )
