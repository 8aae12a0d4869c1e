"""BFGS from many starts at once, with one evaluation for all of their points."""

from collections.abc import Callable

import numpy as np

from fl_dpftrl.mechanisms.search import search_problem

ValueAndGrad = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

_SUFFICIENT_DECREASE = 1e-4
_CURVATURE = 0.9
_TRIALS = 30
_ROUNDING = 1e-14  # smaller relative decreases are lost in rounding


def minimize(
  value_and_grad: ValueAndGrad,
  starts: np.ndarray,
  *,
  max_iterations: int,
  tolerance: float,
  patience: int,
  progress: search_problem.Progress | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Minimises a smooth function of few variables from feasible starts.

  Args:
    value_and_grad: points, [points, size], → values, not finite outside the domain, and gradients.
    starts: shape [starts, size]; ValueError unless all are feasible.
    tolerance, patience: a search ends when `patience` steps gain less, relative if above 1.
    progress: called with the number of evaluations and the smallest value.

  Returns:
    Points and values, the best first.

  Source: Nocedal and Wright 2006, algorithm 6.1; Lewis and Overton 2013, algorithm 2.6.
  """
  points = np.array(starts, dtype=np.float64)
  values, grads = value_and_grad(points)
  if not np.isfinite(values).all():
    raise ValueError(f'a start is not feasible: values are {values}')
  searches = _Searches(points, values, grads, patience)
  active = np.arange(values.size)
  for iteration in range(max_iterations):
    trials = searches.trials(active)
    with np.errstate(all='ignore'):  # points outside the domain are rejected
      trial_values = value_and_grad(trials)
    searches.advance(active, trials, *trial_values)
    if progress is not None:
      progress(iteration + 1, float(searches.values.min()))
    active = active[~searches.is_done(active, tolerance)]
    if not active.size:
      break
  order = np.argsort(searches.values, kind='stable')
  return searches.points[order], searches.values[order]


class _Searches:
  """State of each search: its point, its model and its line search."""

  def __init__(self, points: np.ndarray, values: np.ndarray, grads: np.ndarray, patience: int):
    count, size = points.shape
    self.points, self.values, self._grads = points, values, grads
    self._past = np.full((count, patience), np.inf)  # values, oldest first
    self._is_stuck = np.zeros(count, dtype=bool)
    self._inverses = np.zeros((count, size, size))  # inverse Hessians
    self._is_fresh = np.ones(count, dtype=bool)  # the model has no data yet
    self._directions = np.zeros((count, size))
    self._slopes, self._steps, self._low = np.zeros((3, count))
    self._high, self._tried = np.full(count, np.inf), np.zeros(count)
    self._forget(np.arange(count))

  def is_done(self, active: np.ndarray, tolerance: float) -> np.ndarray:
    values = self.values[active]
    gained = self._past[active, 0] - values
    return self._is_stuck[active] | (gained <= tolerance * np.maximum(np.abs(values), 1.0))

  def trials(self, active: np.ndarray) -> np.ndarray:
    return self.points[active] + self._steps[active, None] * self._directions[active]

  def advance(
    self, active: np.ndarray, points: np.ndarray, values: np.ndarray, grads: np.ndarray
  ) -> None:
    """Updates the active searches with the results at their trial points."""
    slopes = self._slopes[active]
    descends = np.isfinite(grads).all(axis=1) & (
      values <= self.values[active] + _SUFFICIENT_DECREASE * self._steps[active] * slopes
    )
    flattens = np.sum(grads * self._directions[active], axis=1) >= _CURVATURE * slopes
    self._tried[active] += 1
    tired = self._tried[active] >= _TRIALS
    taken = descends & (flattens | tired)
    self._bracket(active[~taken], descends[~taken])
    self._move(active[taken], points[taken], values[taken], grads[taken])
    lost = active[~taken & tired]
    self._is_stuck[lost] |= self._is_fresh[lost]
    self._forget(lost)

  def _bracket(self, which: np.ndarray, descends: np.ndarray) -> None:
    self._low[which[descends]] = self._steps[which[descends]]
    self._high[which[~descends]] = self._steps[which[~descends]]
    low, high = self._low[which], self._high[which]
    self._steps[which] = np.where(np.isfinite(high), 0.5 * (low + high), 2.0 * low)

  def _move(
    self, which: np.ndarray, points: np.ndarray, values: np.ndarray, grads: np.ndarray
  ) -> None:
    moved, turned = points - self.points[which], grads - self._grads[which]
    self._past[which] = np.append(self._past[which, 1:], self.values[which, None], axis=1)
    self.points[which], self.values[which] = points, values
    self._grads[which] = grads
    curvature = np.sum(moved * turned, axis=1)
    is_convex = curvature > 0.0
    self._learn(which[is_convex], moved[is_convex], turned[is_convex], curvature[is_convex])
    self._aim(which)

  def _learn(
    self, which: np.ndarray, moved: np.ndarray, turned: np.ndarray, curvature: np.ndarray
  ) -> None:
    """Applies the BFGS update."""
    identity = np.eye(moved.shape[1])
    first = self._is_fresh[which]
    scale = curvature / np.sum(turned * turned, axis=1)
    inverse = np.where(first[:, None, None], scale[:, None, None] * identity, self._inverses[which])
    outer = moved[:, :, None] * turned[:, None, :] / curvature[:, None, None]
    projection = identity - outer
    self._inverses[which] = projection @ inverse @ np.swapaxes(projection, 1, 2) + (
      moved[:, :, None] * moved[:, None, :] / curvature[:, None, None]
    )
    self._is_fresh[which] = False

  def _forget(self, which: np.ndarray) -> None:
    """Resets to steepest descent with a first step of size at most 1."""
    size = np.abs(self._grads[which]).sum(axis=1)
    scale = np.minimum(1.0, 1.0 / np.maximum(size, 1e-300))
    self._inverses[which] = scale[:, None, None] * np.eye(self.points.shape[1])
    self._is_fresh[which] = True
    self._aim(which)

  def _aim(self, which: np.ndarray) -> None:
    """Starts a line search along the model's direction."""
    grads = self._grads[which]
    directions = -(self._inverses[which] @ grads[:, :, None])[:, :, 0]
    slopes = np.sum(directions * grads, axis=1)
    flat = ~(-slopes > _ROUNDING * np.abs(self.values[which]))
    self._directions[which], self._slopes[which] = directions, slopes
    self._steps[which], self._tried[which] = 1.0, 0.0
    self._low[which], self._high[which] = 0.0, np.inf
    stale = flat & ~self._is_fresh[which]
    self._is_stuck[which[flat & ~stale]] = True
    if stale.any():
      self._forget(which[stale])
