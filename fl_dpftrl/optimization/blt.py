"""Optimal BLTs for a schema, an objective and a number of buffers.

C and its inverse are Π(1 − θ̂ x) / Π(1 − θ x) and its reciprocal. Where
1 > θ₁ > θ̂₁ > θ₂ > … > θ̂_d, every ω is positive, and so is every coefficient.
The search is over the gaps between these numbers, on a logarithmic scale: every
difference is a sum of gaps, so nothing cancels where two decays nearly meet.
"""

import math
from typing import Callable, NamedTuple

import numpy as np
from scipy import signal

from fl_dpftrl import participation
from fl_dpftrl import workloads
from fl_dpftrl.optimization import solver
from fl_dpftrl.sensitivity import patterns
from fl_dpftrl.strategies import blt

MAX_BUFFERS = 8

_WORTHWHILE = 1e-3  # relative gain in loss that one more buffer must bring
_RANDOM_STARTS, _FINALISTS = 16, 3
_TRIAL_STEPS, _MAX_STEPS = 40, 1000
_LOGIT_BOUND = 28.0  # keeps gaps apart: their ratios stay below e^28
_LARGEST_DECAY = 1.0 - 2.0**-50
_ABOVE = 1.0 + 2.0**-50

LogLoss = Callable[
    [np.ndarray, np.ndarray], tuple[float, np.ndarray, np.ndarray]
]


class _Chain(NamedTuple):
  """θ₁, θ̂₁, θ₂, θ̂₂, … and the parts of C and its inverse at them.

  Attributes:
    points: shape [2d], descending.
    distances: between any two of them, shape [2d, 2d].
    scales: ω and ω̂ in turns: coefficient i is Σ ω θ^(i−1) of C, and −Σ ω̂ θ̂^(i−1)
      of its inverse.
  """

  points: np.ndarray
  distances: np.ndarray
  scales: np.ndarray


def optimize(
    schema: participation.MinSep,
    *,
    objective: str,
    num_buffers: int = 0,
    workload: workloads.Workload = workloads.Workload(),
    progress: solver.Progress | None = None,
) -> blt.BLT:
  """The BLT of least loss that was found.

  Args:
    schema: n, b and k.
    objective: 'rms' or 'max'.
    num_buffers: 1 to 8; 0 for as many as each bring a gain of 0.1 %.
    workload: what the noise is to be small in.
    progress: called with the steps so far and the loss.

  Raises:
    ValueError: where num_buffers or the objective is outside its range.

  Source: McMahan, Xu, Zhang 2024 (BLT-DP-FTRL), section 4, for the problem.
  """
  if not 0 <= num_buffers <= MAX_BUFFERS:
    raise ValueError(
        f'num_buffers must be 1 to {MAX_BUFFERS}, or 0 to choose, got'
        f' {num_buffers!r}'
    )
  log_loss = _log_loss(schema, objective, workload)
  steps, best = 0, None

  def report(_, value):
    nonlocal steps
    steps += 1
    if progress is not None:
      progress(steps, float(np.exp(0.5 * value)))

  def run(start, max_iterations):
    return solver.minimize(
        lambda x: _value_and_grad(x, schema.num_rounds, log_loss),
        start,
        max_iterations=max_iterations,
        tolerance=1e-9,
        patience=20,
        progress=report,
    )

  for size in range(1, (num_buffers or MAX_BUFFERS) + 1):
    starts = _starts(
        size, schema.num_rounds, None if best is None else best.point
    )
    tried = [run(start, _TRIAL_STEPS) for start in starts]
    tried.sort(key=lambda solution: solution.value)
    found = min(
        (run(solution.point, _MAX_STEPS) for solution in tried[:_FINALISTS]),
        key=lambda solution: solution.value,
    )
    if best is not None:
      gain = 1.0 - float(np.exp(0.5 * (found.value - best.value)))
      if num_buffers == 0 and gain < _WORTHWHILE:
        break
    best = found
  return _strategy(best.point)


def _strategy(logits: np.ndarray) -> blt.BLT:
  chain = _chain(_gaps(logits)[0])
  decay, scale = chain.points[0::2], chain.scales[0::2]
  # Rounding may put the first decay on 1, or the sum of scales above it.
  return blt.BLT(
      buffer_decay=np.minimum(decay, _LARGEST_DECAY).tolist(),
      output_scale=(scale / max(1.0, math.fsum(scale) * _ABOVE)).tolist(),
  )


def _log_loss(
    schema: participation.MinSep, objective: str, workload: workloads.Workload
) -> LogLoss:
  """ln loss² and its gradients, of the coefficients of C and its inverse."""
  if objective not in ('rms', 'max'):
    raise ValueError(f'objective must be rms or max, got {objective!r}')
  num_rounds = schema.num_rounds
  weights = np.ones(num_rounds)
  if objective == 'rms':
    weights = np.arange(num_rounds, 0.0, -1.0) / num_rounds

  def repeat(values):
    return patterns.repeated(
        values, schema.min_sep, schema.participations
    )

  def decode(values):  # the first column of A C⁻¹ from that of C⁻¹
    values = np.cumsum(values)
    if workload.momentum:
      values = signal.lfilter([1.0], [1.0, -workload.momentum], values)
    return values

  def log_loss(coefficients, inverse):
    column = repeat(coefficients)
    decoded = decode(inverse)
    square_sensitivity = float(column @ column)
    weighted = weights * decoded
    square_error = float(weighted @ decoded)
    return (
        float(np.log(square_sensitivity) + np.log(square_error)),
        repeat(column[::-1])[::-1] * (2.0 / square_sensitivity),
        decode(weighted[::-1])[::-1] * (2.0 / square_error),
    )

  return log_loss


def _value_and_grad(
    logits: np.ndarray, num_rounds: int, log_loss: LogLoss
) -> tuple[float, np.ndarray]:
  gaps, pull_back = _gaps(logits)
  chain = _chain(gaps)
  powers = _powers(chain.points, num_rounds - 1)
  signs = (1.0, -1.0)
  columns = [
      np.append(1.0, signs[part] * (chain.scales[part::2] @ powers[part]))
      for part in range(2)
  ]
  value, *of_columns = log_loss(*columns)
  # Back through the powers …
  exponents = np.arange(1.0, num_rounds - 1)
  of_scales, of_points = np.empty(gaps.size), np.empty(gaps.size)
  for part in range(2):
    of_column = signs[part] * of_columns[part][1:]
    of_scales[part::2] = powers[part] @ of_column
    of_points[part::2] = chain.scales[part::2] * (
        powers[part, :, :-1] @ (exponents * of_column[1:])
    )
  # … and through the scales and points, to the gaps.
  of_distances = (
      (of_scales * chain.scales)[:, None] * _exponents(gaps.size)
  ) / (chain.distances + np.eye(gaps.size))
  of_gaps = np.einsum('lm,lmg->g', of_distances, _between(gaps.size))
  of_gaps -= np.cumsum(of_points[::-1])[::-1]
  return value, pull_back(of_gaps)


def _gaps(
    logits: np.ndarray,
) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
  """Gaps from 1 down the chain, from numbers free to be anything.

  All gaps but the last share out 1 with θ_d, which keeps every θ between 0 and
  1. The last is at most what is left of 1 after the other θ − θ̂, which keeps
  Σ ω = Σ (θ − θ̂) below 1.

  Returns:
    The gaps, shape [2d], and what takes a gradient from gaps to logits.
  """
  clipped = np.clip(logits, -_LOGIT_BOUND, _LOGIT_BOUND)
  inside = clipped == logits
  shares = np.exp(np.append(clipped[:-1], 0.0) - max(clipped[:-1].max(), 0.0))
  shares /= shares.sum()
  shares = shares[:-1]
  room = 1.0 - shares[1::2].sum()
  part = 1.0 / (1.0 + np.exp(-clipped[-1]))
  gaps = np.append(shares, room * part)

  def pull_back(of_gaps: np.ndarray) -> np.ndarray:
    of_shares = of_gaps[:-1].copy()
    of_shares[1::2] -= of_gaps[-1] * part
    of_logits = shares * (of_shares - shares @ of_shares)
    last = of_gaps[-1] * room * part * (1.0 - part)
    return np.append(of_logits, last) * inside

  return gaps, pull_back


def _between(size: int) -> np.ndarray:
  """[l, m, g]: 1 where gap g lies between points l and m."""
  index = np.arange(size)
  low = np.minimum.outer(index, index)[:, :, None]
  high = np.maximum.outer(index, index)[:, :, None]
  return ((low < index) & (index <= high)).astype(np.float64)


def _exponents(size: int) -> np.ndarray:
  """[l, m]: the power of |point l − point m| in the scale at point l."""
  parity = np.arange(size) % 2
  return np.where(parity[:, None] == parity, -1.0, 1.0) + np.eye(size)


def _chain(gaps: np.ndarray) -> _Chain:
  """Scales are the residues of C and its inverse, products of distances."""
  distances = _between(gaps.size) @ gaps
  logs = np.log(distances + np.eye(gaps.size))
  return _Chain(
      points=1.0 - np.cumsum(gaps),
      distances=distances,
      scales=np.exp((_exponents(gaps.size) * logs).sum(axis=1)),
  )


def _powers(points: np.ndarray, count: int) -> np.ndarray:
  """Powers 0 … count − 1 of θ and of θ̂, shape [2, d, count], by doubling."""
  factor = np.stack([points[0::2], points[1::2]])[:, :, None]
  powers = np.ones(factor.shape[:2] + (count,))
  done = 1
  while done < count:
    size = min(done, count - done)
    np.multiply(
        powers[:, :, :size], factor, out=powers[:, :, done : done + size]
    )
    done, factor = done + size, factor * factor
  return powers


def _starts(
    num_buffers: int, num_rounds: int, best: np.ndarray | None
) -> list[np.ndarray]:
  """Starts for a number of buffers, given the best with one fewer.

  Points spread evenly and at random on a log scale of their distance from 1,
  and the best with two more points put into each of its gaps but the last.
  """
  generator = np.random.default_rng(num_buffers)
  reach = 100.0 * num_rounds
  starts = [
      _from_distances(np.geomspace(least, 0.5, 2 * num_buffers))
      for least in (1.0 / reach, 0.1 / num_rounds)
  ]
  starts += [
      _from_distances(np.sort(reach ** -generator.random(2 * num_buffers)))
      for _ in range(_RANDOM_STARTS)
  ]
  if best is not None:
    for gap in range(best.size - 1):
      parts = best[gap] + np.log([0.45, 0.1, 0.45])
      starts.append(np.concatenate([best[:gap], parts, best[gap + 1 :]]))
  return starts


def _from_distances(distances: np.ndarray) -> np.ndarray:
  """Logits of points at these distances from 1, ascending."""
  distances = 0.9 * distances
  gaps = np.diff(distances, prepend=0.0)
  shares = np.log(gaps[:-1] / (1.0 - distances[-2]))
  return np.append(shares, np.log(gaps[-1]))
