"""L-BFGS with a line search that handles points outside the domain."""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

ValueAndGrad = Callable[[np.ndarray], tuple[float, np.ndarray]]
Progress = Callable[[int, float], None]

_SUFFICIENT_DECREASE = 1e-4
_CURVATURE = 0.9
_ROUNDING = 1e-14  # smaller relative decreases are lost in rounding


def counted(progress: Progress | None, loss: Callable[[float], float]) -> Progress:
  """Returns a callback that counts the steps of successive minimisations.

  Args:
    progress: called with the number of steps and the loss; None for nobody.
    loss: maps a minimised value to the loss.
  """
  steps = itertools.count(1)

  def report(_, value):
    if progress is not None:
      progress(next(steps), loss(value))

  return report


class Solution(NamedTuple):
  """Result of a minimisation.

  Attributes:
    point: best point, of the shape of the start.
    value: value of the objective at the point.
    iterations: number of accepted steps.
  """

  point: np.ndarray
  value: float
  iterations: int


def minimize(
  value_and_grad: ValueAndGrad,
  start: np.ndarray,
  *,
  max_iterations: int = 500,
  tolerance: float = 1e-10,
  patience: int = 5,
  memory: int = 20,
  progress: Progress | None = None,
) -> Solution:
  """Minimises a smooth function from a feasible start.

  Args:
    value_and_grad: function that returns value and gradient. A value that is not finite marks a
      point outside the domain; its gradient is not used.
    start: shape [size].
    max_iterations: maximum number of accepted steps.
    tolerance: stops when `patience` steps together improve the value by less than this,
      relative to it.
    patience: see tolerance.
    memory: number of pairs of steps and gradient differences kept.
    progress: called after each step with the number of steps and the value.

  Raises:
    ValueError: if the start is not feasible.

  Source: Nocedal and Wright 2006, algorithm 7.4; the weak Wolfe line search of Lewis and
  Overton 2013, algorithm 2.6.
  """
  point = np.array(start, dtype=np.float64)
  value, grad = value_and_grad(point)
  if not np.isfinite(value):
    raise ValueError(f'the start is not feasible: its value is {value!r}')
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
    new_point, _new_value, new_grad = step_taken
    moved, turned = new_point - point, new_grad - grad
    curvature = float(moved @ turned)
    if curvature > 0.0:
      pairs.append((moved, turned, curvature))
      del pairs[:-memory]
    point, value, grad = step_taken
    iteration += 1
    history.append(value)
    if progress is not None:
      progress(iteration, value)
    if iteration >= patience and history[-1 - patience] - value <= tolerance * abs(value):
      break
  return Solution(point, value, iteration)


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
