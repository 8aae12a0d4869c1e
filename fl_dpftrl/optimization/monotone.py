"""Minimisation over non-negative, non-increasing sequences."""

import numpy as np

from fl_dpftrl.optimization import solver

_SUFFICIENT_DECREASE = 1e-4
_REMEMBERED = 10  # a step must undercut the largest of so many recent values
_PATIENCE = 60
_SHORTEST, _LONGEST = 1e-10, 1e10


def project(values: np.ndarray) -> np.ndarray:
  """Returns the nearest non-negative, non-increasing sequence.

  Neighbours in the wrong order are pooled into their mean until none are left. Negative values
  then become 0.

  Source: Ayer et al. 1955, pool adjacent violators.
  """
  sums: list[float] = []
  sizes: list[int] = []
  for value in values.tolist():
    size = 1
    while sums and sums[-1] * size <= value * sizes[-1]:
      value += sums.pop()
      size += sizes.pop()
    sums.append(value)
    sizes.append(size)
  return np.maximum(np.repeat(np.divide(sums, sizes), sizes), 0.0)


def minimize(
  value_and_grad: solver.ValueAndGrad,
  start: np.ndarray,
  *,
  max_iterations: int = 1000,
  tolerance: float = 1e-10,
  progress: solver.Progress | None = None,
) -> solver.Solution:
  """Minimises a smooth function over non-negative, non-increasing sequences.

  Args:
    value_and_grad: function that returns value and gradient; a value that is not finite marks a
      point outside the domain.
    start: shape [size]; it is projected first.
    max_iterations: maximum number of steps.
    tolerance: stops when 60 steps together improve the best value by less.
    progress: called after each step with the number of steps and the best value.

  Returns:
    The best point seen.

  Raises:
    ValueError: if the start is not feasible.

  Source: Birgin, Martínez and Raydan 2000, algorithm SPG2: steps of Barzilai and Borwein's
  length, projected, with a line search that lets values rise now and then.
  """
  point = project(np.asarray(start, dtype=np.float64))
  value, grad = value_and_grad(point)
  if not np.isfinite(value):
    raise ValueError(f'the start is not feasible: its value is {value!r}')
  values, bests, best = [value], [value], (point, value)
  length = 1.0 / max(float(np.abs(grad).max()), _SHORTEST)
  iteration = 0
  while iteration < max_iterations:
    direction = project(point - length * grad) - point
    slope = float(direction @ grad)
    if not slope < -1e-15:
      break
    step_taken = _line_search(value_and_grad, point, max(values[-_REMEMBERED:]), direction, slope)
    if step_taken is None:
      break
    new_point, value, new_grad = step_taken
    moved, turned = new_point - point, new_grad - grad
    curvature = float(moved @ turned)
    length = _LONGEST
    if curvature > 0.0:
      length = min(max(float(moved @ moved) / curvature, _SHORTEST), _LONGEST)
    point, grad = new_point, new_grad
    iteration += 1
    if value < best[1]:
      best = point, value
    values.append(value)
    bests.append(best[1])
    if progress is not None:
      progress(iteration, best[1])
    if iteration >= _PATIENCE and bests[-1 - _PATIENCE] - best[1] < tolerance:
      break
  return solver.Solution(*best, iteration)


def _line_search(
  value_and_grad: solver.ValueAndGrad,
  point: np.ndarray,
  value: float,
  direction: np.ndarray,
  slope: float,
) -> tuple[np.ndarray, float, np.ndarray] | None:
  step = 1.0
  for _ in range(40):
    trial = point + step * direction
    trial_value, trial_grad = value_and_grad(trial)
    if trial_value <= value + _SUFFICIENT_DECREASE * step * slope:
      return trial, trial_value, trial_grad
    step *= 0.5
  return None
