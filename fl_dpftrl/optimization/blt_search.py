"""Search for the best BLT over sizes, starting points and stages."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fl_dpftrl.optimization import blt_loss, many_starts, solver

MAX_BUFFERS = 8

_WORTHWHILE = 1e-3  # relative loss that justifies another buffer
_NO_GAIN = 1e-5  # the search ends after two buffers that each gain less
_RANDOM_STARTS, _FINALISTS, _KEPT = 32, 8, 3
_TRIAL_STEPS, _MAX_STEPS = 60, 1000
_MORE_STARTS, _MORE_STEPS = 16, 50  # if the first stage is another problem
_TOLERANCE, _PATIENCE = 1e-10, 16
_DISTINCT = 1e-7  # solutions whose ln loss differs by less are the same


class Plan(NamedTuple):
  """Stages of a minimisation.

  Attributes:
    stages: losses to minimise. The first is searched from many starts; each of the others
      starts where the previous one ended.
    judge: loss that selects the best solution of the last stage.
    num_rounds: n, which limits how close to 1 decays may be.
    is_first_apart: True if the first stage is another problem than the second. The second then
      has starts of its own too, but only a few, as it is slow.
  """

  stages: Sequence[blt_loss.LogLoss]
  judge: blt_loss.LogLoss
  num_rounds: int
  is_first_apart: bool = False


class Found(NamedTuple):
  """BLT found by a search.

  Attributes:
    logits: variables; see `blt_loss.to_gaps`.
    log_loss: value of the plan's judge.
  """

  logits: np.ndarray
  log_loss: float


def search(plan: Plan, num_buffers: int, progress: solver.Progress | None) -> Found:
  """Returns the best solution of a size, or with 0 the smallest good enough.

  Sizes grow one by one, because the best solution of each provides starts for the next.

  Args:
    plan: stages of the minimisation.
    num_buffers: 1 to 8; 0 for the fewest within 0.1 % of the best of these.
    progress: called with the number of steps and the loss.
  """
  report = solver.counted(progress, lambda log_loss: float(np.exp(log_loss)))
  found: list[Found] = []
  before, gainless = None, 0
  for size in range(1, (num_buffers or MAX_BUFFERS) + 1):
    candidates = _first_stage(plan, size, before, report)
    before = candidates[0]
    if num_buffers in (0, size) or plan.is_first_apart:
      best = found[-1].logits if found else None
      found.append(_last_stages(plan, candidates, best, report))
    if len(found) > 1 and not num_buffers:
      gain = min(best.log_loss for best in found[:-1]) - found[-1].log_loss
      gainless = gainless + 1 if gain < _NO_GAIN else 0
      if gainless == 2:
        break
  if num_buffers:
    return found[-1]
  enough = min(best.log_loss for best in found) + np.log1p(_WORTHWHILE)
  return next(best for best in found if best.log_loss <= enough)


def _first_stage(
  plan: Plan, num_buffers: int, before: np.ndarray | None, report: solver.Progress
) -> np.ndarray:
  """Returns the logits of distinct solutions, the best first."""
  points = starts(num_buffers, plan.num_rounds, before, _RANDOM_STARTS)
  tried = _run(plan.stages[0], points, _TRIAL_STEPS, report)
  solutions = _run(plan.stages[0], tried.points[:_FINALISTS], _MAX_STEPS, report)
  differ = np.diff(solutions.values, prepend=-np.inf) > _DISTINCT
  return solutions.points[differ][:_KEPT]


def _last_stages(
  plan: Plan, points: np.ndarray, before: np.ndarray | None, report: solver.Progress
) -> Found:
  """Returns the best solution after all stages.

  Args:
    plan: stages of the minimisation.
    points: logits of the first stage's solutions, shape [solutions, 2d].
    before: best solution with one buffer fewer; None if unknown.
    report: progress callback of `many_starts.minimize`.
  """
  if plan.is_first_apart:
    more = starts(points.shape[1] // 2, plan.num_rounds, before, _MORE_STARTS)
    points = np.concatenate([points, more])
    points = _run(plan.stages[1], points, _MORE_STEPS, report).points[:_KEPT]
  for stage in plan.stages[1:]:
    points = _run(stage, points, _MAX_STEPS, report).points
  values, _ = plan.judge(points)
  best = int(np.argmin(values))
  return Found(points[best], float(values[best]))


def _run(
  log_loss: blt_loss.LogLoss, points: np.ndarray, max_iterations: int, report: solver.Progress
) -> many_starts.Solutions:
  return many_starts.minimize(
    log_loss,
    points,
    max_iterations=max_iterations,
    tolerance=_TOLERANCE,
    patience=_PATIENCE,
    progress=report,
  )


def starts(
  num_buffers: int, num_rounds: int, before: np.ndarray | None, random_starts: int
) -> np.ndarray:
  """Returns logits to start from, given the best with one buffer fewer.

  Starts are points spread evenly and at random on a log scale of their distance from 1. Further
  starts are the best solution with two more points in each of its gaps but the last.

  Returns:
    Shape [starts, 2 · num_buffers].
  """
  generator = np.random.default_rng(num_buffers)
  reach = 100.0 * num_rounds
  distances = [
    np.geomspace(least, 0.5, 2 * num_buffers) for least in (1.0 / reach, 0.1 / num_rounds)
  ]
  distances += [np.sort(reach ** -generator.random(2 * num_buffers)) for _ in range(random_starts)]
  logits = [blt_loss.to_logits(0.9 * np.diff(distance, prepend=0.0)) for distance in distances]
  if before is not None:
    for gap in range(before.size - 1):
      parts = before[gap] + np.log([0.45, 0.1, 0.45])
      logits.append(np.concatenate([before[:gap], parts, before[gap + 1 :]]))
  return np.array(logits)
