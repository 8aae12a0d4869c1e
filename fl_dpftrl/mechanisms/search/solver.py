"""Minimisers of smooth functions: L-BFGS, and projected gradients over monotone sequences.

Both handle points outside the domain. The value there is not finite, and the gradient not used.
"""

from collections.abc import Callable

import numpy as np
import scipy

from fl_dpftrl.mechanisms.search import search_problem

ValueAndGrad = Callable[[np.ndarray], tuple[float, np.ndarray]]

_SUFFICIENT_DECREASE = 1e-4
_CURVATURE = 0.9
_ROUNDING = 1e-14  # smaller relative decreases are lost in rounding
# Of searches over monotone sequences: most steps; the least that _PATIENCE steps together must
# improve the best value by; a step must undercut the largest of so many recent values; lengths.
_MOST_STEPS, _TOLERANCE, _PATIENCE = 1000, 1e-10, 60
_REMEMBERED = 10
_SHORTEST, _LONGEST = 1e-10, 1e10


Solution = tuple[np.ndarray, float]
"""Best point of a minimisation, of the shape of the start, and its value."""


def minimize(
  value_and_grad: ValueAndGrad,
  start: np.ndarray,
  *,
  max_iterations: int = 500,
  tolerance: float = 1e-10,
  patience: int = 5,
  memory: int = 20,
  progress: Callable[[int, float], object] | None = None,
) -> Solution:
  """Minimises a smooth function from a feasible start; ValueError unless its value is finite.

  Args:
    tolerance, patience: stops when `patience` steps together gain less, relative to the value.
    memory: number of pairs of steps and gradient differences kept.
    progress: called after each step with the number of steps and the value; True ends the search.

  Source: Nocedal and Wright 2006, algorithm 7.4; Lewis and Overton 2013, algorithm 2.6.
  """
  point, value, grad = _begun(value_and_grad, np.array(start, dtype=np.float64))
  pairs: list[tuple[np.ndarray, np.ndarray, float]] = []
  history, iteration = [value], 0
  while iteration < max_iterations:
    direction = -_inverse_hessian_product(pairs, grad)
    slope = float(direction @ grad)
    if not -slope > _ROUNDING * abs(value):
      if not pairs:
        break
      pairs.clear()  # the curvature model is outdated
      continue
    step = 1.0 if pairs else min(1.0, 1.0 / float(np.abs(grad).sum()))
    step_taken = _line_search(value_and_grad, point, value, direction, slope, step)
    if step_taken is None:
      if not pairs:
        break
      pairs.clear()
      continue
    previous_point, previous_grad = point, grad
    point, value, grad = step_taken
    moved, turned = point - previous_point, grad - previous_grad
    curvature = float(moved @ turned)
    if curvature > 0.0:
      pairs.append((moved, turned, curvature))
      del pairs[:-memory]
    iteration += 1
    history.append(value)
    if progress is not None and progress(iteration, value) is True:
      break
    if iteration >= patience and history[-1 - patience] - value <= tolerance * abs(value):
      break
  return point, value


def _begun(value_and_grad: ValueAndGrad, point: np.ndarray) -> tuple[np.ndarray, float, np.ndarray]:
  value, grad = value_and_grad(point)
  if not np.isfinite(value):
    raise ValueError(f'the start is not feasible: its value is {value!r}')
  return point, value, grad


def _inverse_hessian_product(
  pairs: list[tuple[np.ndarray, np.ndarray, float]], grad: np.ndarray
) -> np.ndarray:
  """Applies the two-loop recursion."""
  result, weights = grad.copy(), []
  for moved, turned, curvature in reversed(pairs):
    weight = float(moved @ result) / curvature
    result -= weight * turned
    weights.append(weight)
  if pairs:
    _, turned, curvature = pairs[-1]
    result *= curvature / float(turned @ turned)
  for (moved, turned, curvature), weight in zip(pairs, reversed(weights)):
    result += moved * (weight - float(turned @ result) / curvature)
  return result


def _line_search(
  value_and_grad: ValueAndGrad,
  point: np.ndarray,
  value: float,
  direction: np.ndarray,
  slope: float,
  step: float,
) -> tuple[np.ndarray, float, np.ndarray] | None:
  """Finds a step of sufficient decrease, and curvature if 30 trials allow."""
  low, high, best = 0.0, np.inf, None
  for _ in range(30):
    trial = point + step * direction
    trial_value, trial_grad = value_and_grad(trial)
    if not trial_value <= value + _SUFFICIENT_DECREASE * step * slope:
      high = step
    else:
      if not np.isfinite(trial_grad).all():
        return best
      best = trial, trial_value, trial_grad
      if float(trial_grad @ direction) >= _CURVATURE * slope:
        return best
      low = step
    step = 0.5 * (low + high) if high < np.inf else 2.0 * low
  return best


def project(values: np.ndarray) -> np.ndarray:
  """Returns the nearest non-negative, non-increasing sequence.

  Source: Ayer et al. 1955, pool adjacent violators, by SciPy; negative values then become 0.
  """
  return np.maximum(scipy.optimize.isotonic_regression(values, increasing=False).x, 0.0)


def minimize_monotone(
  value_and_grad: ValueAndGrad, start: np.ndarray, progress: search_problem.Progress | None = None
) -> Solution:
  """Minimises a smooth function over non-negative, non-increasing sequences.

  Arguments and errors are those of `minimize`; the start is projected first. The result is the
  best point seen, and progress tells the best value.

  Source: Birgin, Martínez and Raydan 2000, algorithm SPG2: steps of Barzilai and Borwein's
  length, projected, with a line search that lets values rise now and then.
  """
  point, value, grad = _begun(value_and_grad, project(np.asarray(start, dtype=np.float64)))
  values, bests, best = [value], [value], (point, value)
  length = 1.0 / max(float(np.abs(grad).max()), _SHORTEST)
  iteration = 0
  while iteration < _MOST_STEPS:
    direction = project(point - length * grad) - point
    slope = float(direction @ grad)
    if not slope < -1e-15:
      break
    highest, previous_point, previous_grad, step = max(values[-_REMEMBERED:]), point, grad, 1.0
    for _ in range(40):
      point = previous_point + step * direction
      value, grad = value_and_grad(point)
      if value <= highest + _SUFFICIENT_DECREASE * step * slope:
        break
      step *= 0.5
    else:
      break
    moved, turned = point - previous_point, grad - previous_grad
    curvature = float(moved @ turned)
    length = _LONGEST
    if curvature > 0.0:
      length = min(max(float(moved @ moved) / curvature, _SHORTEST), _LONGEST)
    iteration += 1
    if value < best[1]:
      best = point, value
    values.append(value)
    bests.append(best[1])
    if progress is not None and progress(iteration, best[1]) is True:
      break
    if iteration >= _PATIENCE and bests[-1 - _PATIENCE] - best[1] < _TOLERANCE:
      break
  return best
