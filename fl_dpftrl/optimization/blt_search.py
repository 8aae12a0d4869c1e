"""The search for the best BLT: sizes, starts and stages."""

from typing import Callable, NamedTuple, Sequence

import numpy as np

from fl_dpftrl.optimization import blt_loss
from fl_dpftrl.optimization import many_starts
from fl_dpftrl.optimization import solver

MAX_BUFFERS = 8

_WORTHWHILE = 1e-3  # relative loss for which another buffer is spent
_NO_GAIN = 1e-5  # two buffers in a row that bring less are the last to be tried
_RANDOM_STARTS, _FINALISTS = 16, 4
_TRIAL_STEPS, _MAX_STEPS = 40, 1000
_TOLERANCE, _PATIENCE = 1e-10, 20
_DISTINCT = 1e-7  # of ln loss: solutions nearer than that are the same


class Plan(NamedTuple):
  """What is made small.

  Attributes:
    stages: the first is searched from many starts; each of the others starts
      where the one before ended.
    judge: what tells the best solution of the last stage.
    num_rounds: which set how near to 1 decays may lie.
  """

  stages: Sequence[blt_loss.LogLoss]
  judge: blt_loss.LogLoss
  num_rounds: int


class Found(NamedTuple):
  """A BLT.

  Attributes:
    logits: see `blt_loss.to_gaps`.
    log_loss: by the plan's judge.
  """

  logits: np.ndarray
  log_loss: float


def search(
    plan: Plan, num_buffers: int, progress: solver.Progress | None
) -> Found:
  """The best with so many buffers, or with 0 the smallest that is good enough.

  Sizes grow one by one, since the best of each gives starts for the next.

  Args:
    plan: what is made small.
    num_buffers: 1 to 8; 0 for the fewest within 0.1 % of the best of these.
    progress: called with steps so far and the loss.
  """
  report = _Report(progress)
  found, before, gainless = [], None, 0
  for size in range(1, (num_buffers or MAX_BUFFERS) + 1):
    candidates = _first_stage(plan, size, before, report)
    before = candidates[0]
    if size == num_buffers or not num_buffers:
      found.append(_last_stages(plan, candidates, report))
    if len(found) > 1:
      gain = min(best.log_loss for best in found[:-1]) - found[-1].log_loss
      gainless = gainless + 1 if gain < _NO_GAIN else 0
      if gainless == 2:
        break
  enough = min(best.log_loss for best in found) + np.log1p(_WORTHWHILE)
  return next(best for best in found if best.log_loss <= enough)


def _first_stage(
    plan: Plan,
    num_buffers: int,
    before: np.ndarray | None,
    report: Callable[[int, float], None],
) -> np.ndarray:
  """Logits of solutions that differ, the best first."""

  def run(points, steps):
    return many_starts.minimize(
        plan.stages[0],
        points,
        max_iterations=steps,
        tolerance=_TOLERANCE,
        patience=_PATIENCE,
        progress=report,
    )

  tried = run(starts(num_buffers, plan.num_rounds, before), _TRIAL_STEPS)
  solutions = run(tried.points[:_FINALISTS], _MAX_STEPS)
  differ = np.diff(solutions.values, prepend=-np.inf) > _DISTINCT
  return solutions.points[differ]


def _last_stages(
    plan: Plan, points: np.ndarray, report: Callable[[int, float], None]
) -> Found:
  for stage in plan.stages[1:]:
    points = many_starts.minimize(
        stage,
        points,
        max_iterations=_MAX_STEPS,
        tolerance=_TOLERANCE,
        patience=_PATIENCE,
        progress=report,
    ).points
  values, _ = plan.judge(points)
  best = int(np.argmin(values))
  return Found(points[best], float(values[best]))


def starts(
    num_buffers: int, num_rounds: int, before: np.ndarray | None
) -> np.ndarray:
  """Logits to start from, given the best with one buffer fewer.

  Points spread evenly and at random on a log scale of their distance from 1,
  and the best with two more points put into each of its gaps but the last.

  Returns:
    Shape [starts, 2 · num_buffers].
  """
  generator = np.random.default_rng(num_buffers)
  reach = 100.0 * num_rounds
  distances = [
      np.geomspace(least, 0.5, 2 * num_buffers)
      for least in (1.0 / reach, 0.1 / num_rounds)
  ]
  distances += [
      np.sort(reach ** -generator.random(2 * num_buffers))
      for _ in range(_RANDOM_STARTS)
  ]
  logits = [
      blt_loss.to_logits(0.9 * np.diff(distance, prepend=0.0))
      for distance in distances
  ]
  if before is not None:
    for gap in range(before.size - 1):
      parts = before[gap] + np.log([0.45, 0.1, 0.45])
      logits.append(np.concatenate([before[:gap], parts, before[gap + 1 :]]))
  return np.array(logits)


class _Report:
  """Counts the steps of one minimisation after the other."""

  def __init__(self, progress: solver.Progress | None):
    self._progress = progress
    self._steps = 0

  def __call__(self, step: int, log_loss: float) -> None:
    del step  # of this minimisation alone
    self._steps += 1
    if self._progress is not None:
      self._progress(self._steps, float(np.exp(log_loss)))
