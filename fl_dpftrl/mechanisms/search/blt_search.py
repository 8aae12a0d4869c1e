"""Optimal BLTs, for one participation schema or for several at once.

The decays of C and of its inverse interlace. The search variables are the gaps between them on
a logarithmic scale; see `mechanisms.interlaced`. A search goes over sizes, starting points, and
stages of the loss.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fl_dpftrl.mechanisms import blt_sums, interlaced, schemas, workloads
from fl_dpftrl.mechanisms.families import blt
from fl_dpftrl.mechanisms.search import many_starts, search_problem

MAX_BUFFERS = 8

_POWERS = (16.0, 128.0, 1024.0, 8192.0)  # power means that approach a maximum
_MAXIMUM = 1e9  # power that stands for the maximum
_SMALLEST_DECAY, _LARGEST_DECAY = 2.0**-53, 1.0 - 2.0**-53
_ABOVE = 1.0 + 2.0**-50
_LOGIT_BOUND = 33.0  # keeps gaps above e^−33, so that 1 − θ is not rounded to 1

_WORTHWHILE = 1e-3  # relative loss that justifies another buffer
_NO_GAIN = 1e-5  # the search ends after two buffers that each gain less
_RANDOM_STARTS, _FINALISTS, _KEPT = 32, 8, 3
_TRIAL_STEPS, _MAX_STEPS = 60, 1000
_MORE_STARTS, _MORE_STEPS = 16, 50  # if the first stage is another problem
_DISTINCT = 1e-7  # solutions whose ln loss differs by less are the same
_minimize = functools.partial(many_starts.minimize, tolerance=1e-10, patience=16)


def optimize(problem: search_problem.Problem, num_buffers: int = 0) -> blt.BLT:
  """Returns the best BLT found, at a cost independent of the number of rounds.

  With a learning-rate schedule the cost is proportional to it. Arguments and errors are those of
  `optimize_range`.

  Source: McMahan, Xu, Zhang 2024 (BLT-DP-FTRL), section 4, for the problem.
  """
  return optimize_range([problem], num_buffers)


def optimize_range(problems: Sequence[search_problem.Problem], num_buffers: int = 0) -> blt.BLT:
  """Returns the BLT found with the least regret over several schemas.

  The regret is the largest ratio of a loss to that of the best BLT for only its schema.

  It suits a run whose min-sep is only known as a range. The schemas differ in min_sep and
  max_participations, and may differ in num_rounds.

  Args:
    problems: a problem for each schema, alike but for that; at least one.
    num_buffers: 1 to 8, also for single schemas; 0 for the fewest within 0.1 % of the best of
      these.
  """
  if not 0 <= num_buffers <= MAX_BUFFERS:
    raise ValueError(f'num_buffers must be 1 to {MAX_BUFFERS}, or 0 to choose, got {num_buffers!r}')
  if not problems:
    raise ValueError('schemas must be at least one, got none')
  references = 1.0
  if len(problems) > 1:
    searches = (_search(_plan([problem]), num_buffers) for problem in problems)
    references = np.exp([log_loss for log_loss, _ in searches])
  return _strategy(_search(_plan(problems, references), num_buffers)[1])


class LogLoss:
  """Logarithm of the loss for several schemas at once, with its gradient.

  The loss is the power mean of the losses, each divided by its reference. High powers
  approximate the largest of them.
  """

  def __init__(
    self,
    every_schema: Sequence[schemas.Schema],
    objective: str,
    workload: workloads.Workload,
    *,
    budget: tuple[int, int] | None = None,
    references: np.ndarray | float = 1.0,
    power: float = 1.0,
    query_power: float = 64.0,
  ):
    """Creates the loss for schemas of any number of rounds, at least one.

    Args:
      budget: min_sep and max_participations in a run without an end; None for the schemas.
      references: reference losses, shape [schemas], or one for all.
      query_power: power of the mean over the queries that approximates the largest error with a
        learning-rate schedule.
    """
    self._sensitivities: list[Callable[..., blt_sums.Derivatives]]
    self._sensitivities = [blt_sums.SquaredSensitivity(schema) for schema in every_schema]
    if budget is not None:
      square = blt_sums.EndlessSquaredSensitivity(*budget)
      self._sensitivities = [square] * len(every_schema)
    self._rounds = [schema.num_rounds for schema in every_schema]
    self._errors = {
      num_rounds: _squared_error(num_rounds, objective, workload, query_power)
      for num_rounds in dict.fromkeys(self._rounds)
    }
    self._log_references = np.log(np.broadcast_to(references, len(every_schema)))
    self._power = power

  def __call__(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns values, shape [points], and gradients, shape [points, 2d]."""
    gaps, pull_back = to_gaps(logits)
    chain = interlaced.chain(gaps)
    points = chain.complements[..., 0::2], chain.sum_scales
    by_rounds = {n: _to_log(error(*points)) for n, error in self._errors.items()}
    errors = [by_rounds[num_rounds] for num_rounds in self._rounds]
    sensitivities = [_to_log(square(chain.decays, chain.scales)) for square in self._sensitivities]
    logs = np.stack([s[0] + e[0] for s, e in zip(sensitivities, errors)])
    logs -= self._log_references[:, None]
    largest = logs.max(axis=0)
    shares = np.exp(self._power * (logs - largest))
    total = shares.sum(axis=0)
    shares /= total
    value = largest + np.log(total / len(self._rounds)) / self._power
    d_chain = [
      sum(share[:, None] * gradients[which] for share, gradients in zip(shares, parts))
      for parts in (sensitivities, errors)
      for which in (1, 2)
    ]
    return value, pull_back(interlaced.gradient(chain, *d_chain))


def _squared_error(
  num_rounds: int, objective: str, workload: workloads.Workload, query_power: float
) -> Callable[..., blt_sums.Derivatives]:
  if workload.is_toeplitz:
    return blt_sums.SquaredError(num_rounds, objective, workload.momentum)
  workloads.check_round_by_round(num_rounds)
  return blt_sums.ScheduleSquaredError(
    workload.learning_rates(num_rounds), objective, workload.momentum, power=query_power
  )


def _to_log(derivatives: blt_sums.Derivatives) -> tuple[np.ndarray, ...]:
  """Maps a square and its gradients to ln of its root and its gradients."""
  square, *gradients = derivatives
  return (0.5 * np.log(square), *(0.5 * gradient / square[:, None] for gradient in gradients))


def to_gaps(logits: np.ndarray) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
  """Returns the gaps from 1 down the chain for unconstrained variables.

  All gaps but the last share out 1 with θ_d, which keeps every θ between 0 and 1. The last is
  at most what is left of 1 after the other θ − θ̂, which keeps Σ ω = Σ (θ − θ̂) below 1.

  Logits and gaps have shape [points, 2d]. The pull-back maps gradients in gaps to logits.
  """
  clipped = np.clip(logits, -_LOGIT_BOUND, _LOGIT_BOUND)
  inside = clipped == logits
  shares = np.append(clipped[:, :-1], np.zeros((len(logits), 1)), axis=1)
  shares = np.exp(shares - shares.max(axis=1, keepdims=True))
  shares /= shares.sum(axis=1, keepdims=True)
  # Remainder of 1 after the other θ − θ̂: the other gaps, and θ_d.
  room = shares[:, 0::2].sum(axis=1) + shares[:, -1]
  shares = np.maximum(shares[:, :-1], np.exp(-_LOGIT_BOUND))
  part = 1.0 / (1.0 + np.exp(-clipped[:, -1]))
  gaps = np.append(shares, (room * part)[:, None], axis=1)

  def pull_back(d_gaps: np.ndarray) -> np.ndarray:
    d_shares = d_gaps[:, :-1].copy()
    d_shares[:, 1::2] -= (d_gaps[:, -1] * part)[:, None]
    along = np.sum(shares * d_shares, axis=1, keepdims=True)
    last = d_gaps[:, -1] * room * part * (1.0 - part)
    return inside * np.append(shares * (d_shares - along), last[:, None], axis=1)

  return gaps, pull_back


def to_logits(gaps: np.ndarray) -> np.ndarray:
  """Inverts `to_gaps` as far as possible; shape [2d]."""
  shares = np.log(gaps[:-1]) - np.log1p(-gaps[:-1].sum())
  part = gaps[-1] / (1.0 - gaps[1:-1:2].sum())
  return np.append(shares, np.log(part) - np.log1p(-part))


def _strategy(logits: np.ndarray) -> blt.BLT:
  gaps, _ = to_gaps(logits[None])
  chain = interlaced.chain(gaps[0])
  scale = chain.scales
  # Rounding may give a decay of 0 or 1, or a sum of scales above 1.
  decay = np.clip(1.0 - chain.decays, _SMALLEST_DECAY, _LARGEST_DECAY)
  return blt.BLT(
    buffer_decay=decay.tolist(), output_scale=(scale / max(1.0, math.fsum(scale) * _ABOVE)).tolist()
  )


class _Plan(NamedTuple):
  """Stages of a minimisation.

  Attributes:
    stages: losses to minimise. The first is searched from many starts; each of the others
      starts where the previous one ended.
    judge: loss that selects the best solution of the last stage.
    num_rounds: n, which limits how close to 1 decays may be.
    is_first_apart: True if the first stage is another problem than the second. The second then
      has starts of its own too, but only a few, as it is slow.
    report: told the steps of all minimisations.
  """

  stages: Sequence[LogLoss]
  judge: LogLoss
  num_rounds: int
  is_first_apart: bool
  report: search_problem.Progress


def _plan(
  problems: Sequence[search_problem.Problem], references: np.ndarray | float = 1.0
) -> _Plan:
  """Returns the stages; constant rates and low powers first, as they are fast."""
  is_largest = len(problems) > 1
  every_schema, first = [problem.schema for problem in problems], problems[0]
  has_schedule = not first.workload.is_toeplitz

  def log_loss(power, workload=first.workload):
    return LogLoss(
      every_schema,
      first.objective,
      workload,
      budget=first.budget,
      references=references,
      power=power if is_largest else 1.0,
      query_power=power,
    )

  stages = [log_loss(_POWERS[0], workloads.Workload(first.workload.momentum))]
  if is_largest or (has_schedule and first.objective == 'max'):
    stages += [log_loss(power) for power in _POWERS[not has_schedule :]]
  elif has_schedule:
    stages.append(log_loss(1.0))
  return _Plan(
    stages=stages,
    judge=log_loss(_MAXIMUM),
    num_rounds=max(schema.num_rounds for schema in every_schema),
    is_first_apart=has_schedule,
    report=first.counted(lambda log_loss: float(np.exp(log_loss))),
  )


def _search(plan: _Plan, num_buffers: int) -> tuple[float, np.ndarray]:
  """Returns ln loss and logits of the best of a size, or with 0 of the smallest good enough."""
  every: list[tuple[float, np.ndarray]] = []
  smaller, gainless = None, 0
  for size in range(1, (num_buffers or MAX_BUFFERS) + 1):
    candidates = _first_stage(plan, size, smaller)
    smaller = candidates[0]
    if num_buffers in (0, size) or plan.is_first_apart:
      every.append(_last_stages(plan, candidates, every[-1][1] if every else None))
    if len(every) > 1 and not num_buffers:
      gain = min(log_loss for log_loss, _ in every[:-1]) - every[-1][0]
      gainless = gainless + 1 if gain < _NO_GAIN else 0
      if gainless == 2:
        break
  if num_buffers:
    return every[-1]
  enough = min(log_loss for log_loss, _ in every) + np.log1p(_WORTHWHILE)
  return next(best for best in every if best[0] <= enough)


def _first_stage(plan: _Plan, num_buffers: int, smaller: np.ndarray | None) -> np.ndarray:
  """Returns the logits of distinct solutions, the best first."""
  run = functools.partial(_minimize, plan.stages[0], progress=plan.report)
  begin = starts(num_buffers, plan.num_rounds, smaller, _RANDOM_STARTS)
  tried, _ = run(begin, max_iterations=_TRIAL_STEPS)
  points, values = run(tried[:_FINALISTS], max_iterations=_MAX_STEPS)
  return points[np.diff(values, prepend=-np.inf) > _DISTINCT][:_KEPT]


def _last_stages(
  plan: _Plan, points: np.ndarray, smaller: np.ndarray | None
) -> tuple[float, np.ndarray]:
  """Returns ln loss and logits of the best after all stages, from those of the first stage."""
  run = functools.partial(_minimize, progress=plan.report)
  if plan.is_first_apart:
    more = starts(points.shape[1] // 2, plan.num_rounds, smaller, _MORE_STARTS)
    points = np.concatenate([points, more])
    points = run(plan.stages[1], points, max_iterations=_MORE_STEPS)[0][:_KEPT]
  for stage in plan.stages[1:]:
    points, _ = run(stage, points, max_iterations=_MAX_STEPS)
  values, _ = plan.judge(points)
  best = int(np.argmin(values))
  return float(values[best]), points[best]


def starts(
  num_buffers: int, num_rounds: int, smaller: np.ndarray | None, random_starts: int
) -> np.ndarray:
  """Returns logits to start from, given the best with one buffer fewer.

  Starts are points spread evenly and at random on a log scale of their distance from 1. Further
  starts are the best solution with two more points in each of its gaps but the last. Their shape
  is [starts, 2 · num_buffers].
  """
  generator = np.random.default_rng(num_buffers)
  reach = 100.0 * num_rounds
  distances = [
    np.geomspace(least, 0.5, 2 * num_buffers) for least in (1.0 / reach, 0.1 / num_rounds)
  ]
  distances += [np.sort(reach ** -generator.random(2 * num_buffers)) for _ in range(random_starts)]
  logits = [to_logits(0.9 * np.diff(distance, prepend=0.0)) for distance in distances]
  if smaller is not None:
    for gap in range(smaller.size - 1):
      parts = smaller[gap] + np.log([0.45, 0.1, 0.45])
      logits.append(np.concatenate([smaller[:gap], parts, smaller[gap + 1 :]]))
  return np.array(logits)
