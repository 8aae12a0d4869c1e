"""A linear noise in integers: which normals a row takes, and what its rounding costs.

A row of noise in integers is R = A + F. F is the fresh part: one normal for all rows of Z that a
round draws first, scaled and rounded. A is what earlier rounds contribute, computed in float64
and rounded. The buffers of the noise follow R, not the row before rounding. With F in units of
its own standard deviation, and all rounds together,

    R = B·F + a·(earlier R) + ρ,

where B holds the weights of the normals that later rounds read again as such, and ρ the roundings
of A, each at most ½ + f. Both are properties of a noise and of how it is made, not of C.

Source: the argument of docs/decisions/arithmetic.md.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import scipy

from fl_dpftrl.mechanisms import base, linear_noise

# p: a unit of the lattice is 2⁻³⁴ of the standard deviation of Z.
BITS = 34
# Rounds up to which B is inverted as a whole.
MAX_DENSE_ROUNDS = 4096
# No normal is farther from 0, but with this probability for each.
FARTHEST_NORMAL, FARTHER_CHANCE = 37.0, 1.2e-299
_UNIT_ROUNDING = 2.0**-53
_PARALLEL = 1e-9
_SLACK = 1e-6  # of norms that are computed in float64
_MAX_EXACT_ROUNDS = 1024
_MOST_ONE_BY_ONE = 2**14  # rows, where all are made alike


class LatticeRow(NamedTuple):
  """How one row of noise follows from normals and buffers.

  Attributes:
    round_index: t.
    step: the step of its linear noise.
    spread: what the row gains for one unit of its own normal; its sign may be negative.
    reads: (earlier round, weight) of each normal that is read again, before `factor`.
    oldest: (round, sign) of the normal that the buffers gain by `Add.draw_gains`; None if they
      gain none.
  """

  round_index: int
  step: linear_noise.Step
  spread: float
  reads: tuple[tuple[int, float], ...]
  oldest: tuple[int, float] | None

  @property
  def factor(self) -> float:
    """The gain of the row for one unit of the sum of draws and buffers."""
    return float(self.step.scale / self.step.diagonal)


def rows(strategy: base.Strategy, num_rounds: int) -> Iterator[LatticeRow]:
  """Yields the rows of the first num_rounds rounds."""
  noise = strategy.noise(num_rounds)
  entered: list[np.ndarray] = []  # Weights of the rows of Z that each round draws first.
  round_of: list[tuple[int, int]] = []  # (round, place within it) of each row of Z.
  for t in range(num_rounds):
    step = noise.at(t)
    first = strategy.num_noise_rows(t) - step.earlier
    fresh = np.asarray(step.draws, np.float64)[step.earlier :]
    read: dict[int, np.ndarray] = {}
    for weight, (group, place) in zip(step.draws, round_of[first : first + step.earlier]):
      read.setdefault(group, np.zeros(entered[group].size))[place] = weight
    reads = [(group, _proportion(strategy, t, read[group], entered[group])) for group in read]
    round_of.extend((t, place) for place in range(fresh.size))
    entered.append(fresh)
    oldest = None
    if isinstance(step.update, linear_noise.Add) and np.any(step.update.draw_gains):
      group, _ = round_of[first]
      oldest = (group, float(np.sign(entered[group][0])))
      if entered[group].size > 1:
        raise ValueError(f'buffers of {strategy.family} gain one of several rows of Z')
    weighted_reads = tuple(each for each in reads if each[1])
    yield LatticeRow(t, step, _spread(strategy, t, step), weighted_reads, oldest)


def dyadic_row(strategy: base.Strategy, height: int) -> LatticeRow:
  """Returns the row of round 2^height − 1 of a dyadic noise, which reads no row of Z again."""
  t = (1 << height) - 1
  step = strategy.noise(None).at(t)
  if step.earlier or (isinstance(step.update, linear_noise.Add) and np.any(step.update.draw_gains)):
    raise ValueError(
      f'row {t} of {strategy.family} reads rows of Z again, and its steps are dyadic'
    )
  return LatticeRow(t, step, _spread(strategy, t, step), (), None)


def _spread(strategy: base.Strategy, t: int, step: linear_noise.Step) -> float:
  fresh_norm = float(np.linalg.norm(np.asarray(step.draws, np.float64)[step.earlier :]))
  if not fresh_norm:
    raise ValueError(f'row {t} of {strategy.family} has no normal of its own')
  return float(step.scale / step.diagonal * fresh_norm)


def _proportion(strategy: base.Strategy, t: int, read: np.ndarray, entered: np.ndarray) -> float:
  """The weight of the normal of a round, of whose rows of Z some are read again."""
  norm = float(np.linalg.norm(entered))
  weight = float(read @ entered) / norm
  if np.abs(read - weight / norm * entered).max() > _PARALLEL * np.abs(read).max():
    raise ValueError(f'row {t} of {strategy.family} reads rows of Z again in other proportions')
  return weight


def _weights(noise: linear_noise.LinearNoise, block: Sequence[LatticeRow]) -> np.ndarray:
  """B of successive rows that read no normal of the rounds before them."""
  first, size = block[0].round_index, len(block)
  matrix, buffers = np.zeros((size, size)), linear_noise.start(noise, size)
  for t, row in enumerate(block):
    if row.step.restart:
      buffers = linear_noise.start(noise, size)
    below = np.asarray(row.step.below)[: len(buffers)]
    matrix[t] = -row.factor * (below @ buffers[: below.size])
    for group, weight in row.reads:
      matrix[t, group - first] += row.factor * weight
    matrix[t, t] += row.spread
    oldest = np.zeros(size)
    if row.oldest is not None:
      oldest[row.oldest[0] - first] = row.oldest[1]
    buffers = linear_noise.entered(noise, row.step, np.zeros(size), oldest, buffers)
  return matrix


def rounding_norm(strategy: base.Strategy, num_rounds: int) -> float:
  """Returns ‖B⁻¹‖₂, or an upper bound: how far the roundings of A move the normals.

  Where no normal is read again it is one over the smallest spread. Otherwise B is made of blocks
  between restarts. The norm of a block is bounded by √(‖B⁻¹‖₁·‖B⁻¹‖∞), beyond 1024 rounds.
  """
  noise, blocks = strategy.noise(num_rounds), list[list[LatticeRow]]()
  if all_alike(strategy, num_rounds):
    return (1.0 + _SLACK) / abs(next(rows(strategy, 1)).spread)
  for row in rows(strategy, num_rounds):
    if row.step.restart or not blocks:
      blocks.append([])
    blocks[-1].append(row)
  if noise.period is not None:  # Of blocks that recur, one of each length.
    blocks = list({len(block): block for block in blocks}.values())
  return (1.0 + _SLACK) * max(_norm(strategy, noise, block) for block in blocks)


def _norm(
  strategy: base.Strategy, noise: linear_noise.LinearNoise, block: list[LatticeRow]
) -> float:
  if not any(row.reads or row.oldest for row in block):
    return 1.0 / min(abs(row.spread) for row in block)
  if len(block) > MAX_DENSE_ROUNDS:
    if noise.period != 1 or noise.num_buffers:
      raise ValueError(
        f'the rounding of {strategy.family} is bounded up to {MAX_DENSE_ROUNDS} rounds,'
        f' got {len(block)}'
      )
    return float(np.abs(_first_column(block[noise.settles], len(block))).sum())
  inverse = base.lower_inverse(_weights(noise, block))
  if len(block) <= _MAX_EXACT_ROUNDS:
    return float(np.linalg.norm(inverse, 2))
  return math.sqrt(np.abs(inverse).sum(axis=0).max() * np.abs(inverse).sum(axis=1).max())


def _first_column(row: LatticeRow, size: int) -> np.ndarray:
  """The first column of the inverse of a Toeplitz B, all of whose rows are like this one."""
  weights = {row.round_index - group: row.factor * weight for group, weight in row.reads}
  column = np.zeros(size)
  column[0] = 1.0 / row.spread
  for t in range(1, size):
    reached = sum(weight * column[t - lag] for lag, weight in weights.items() if lag <= t)
    column[t] = -reached / row.spread
  return column


def carried_error(strategy: base.Strategy, num_rounds: int, bits: int = BITS) -> float:
  """Returns f: how far float64 may move the carried part A before its rounding.

  In units of 2^−bits of the standard deviation of Z, and as long as no normal, row or buffer is
  farther than 37 of its own standard deviations from 0. Each value that is computed is off by 2⁻⁵³
  of its size for every operation, and by what its operands are off:
  - a buffer of a stack is y = R/scale, or a sum of such, an operation each; where every scale is
    1, these are whole numbers, and exact below 2⁵³;
  - a running sum loses part of itself, gains y and a normal: at most 4 operations a round, and
    it keeps 1 − loss of its error;
  - A is a sum of k products with buffers, or with normals F/spread, times a factor, a quotient: at
    most k + 4 operations for each.
  """
  noise, farthest = strategy.noise(num_rounds), 1.02 * FARTHEST_NORMAL * 2.0**bits
  if num_rounds > _MOST_ONE_BY_ONE and all_alike(strategy, num_rounds):
    return _carried_alike(strategy, noise, num_rounds, farthest)
  rounds = list(rows(strategy, num_rounds))
  are_whole = all(row.step.scale == 1.0 for row in rounds)
  errors, largest = linear_noise.start(noise, 1), 0.0
  sizes = errors
  for row, (y_deviation, buffer_deviations) in zip(rounds, _deviations(noise, rounds)):
    step = row.step
    if step.restart:
      sizes = errors = linear_noise.start(noise, 1)
    below = np.abs(np.asarray(step.below)[: len(sizes)])
    rounding = (below.size + len(row.reads) + 4) * _UNIT_ROUNDING
    off = below @ (errors + rounding * sizes)[: below.size, 0]
    off += rounding * farthest * sum(abs(weight) for _, weight in row.reads)
    largest = max(largest, abs(row.factor) * float(off))
    sizes = farthest * buffer_deviations[:, None]
    y = np.full(1, _UNIT_ROUNDING * farthest * y_deviation)
    oldest = np.full(1, 2.0 * _UNIT_ROUNDING * farthest)
    errors = linear_noise.entered(noise, _absolute(step), y, oldest, errors)
    if isinstance(step.update, linear_noise.Push):
      errors = errors + step.update.merged * _UNIT_ROUNDING * sizes
      if are_whole and sizes.max() < 2.0**53:
        errors = np.zeros_like(sizes)
    else:
      errors = errors + 4 * _UNIT_ROUNDING * sizes
  return largest


def all_alike(strategy: base.Strategy, num_rounds: int) -> bool:
  """Returns whether each row is made alike: from its own row of Z and buffers of earlier ones."""
  if strategy.max_rounds is not None:
    return False
  noise = strategy.noise(num_rounds)
  step = noise.at(0)
  alone = noise.period == 1 and not noise.settles and len(step.draws) == 1 and not step.restart
  match step.update:
    case linear_noise.Add(_, row_gains, draw_gains):
      plain = not np.any(draw_gains) and np.all(np.asarray(row_gains) == 1.0)
      return bool(alone and plain and hasattr(strategy, 'noising_column'))
    case linear_noise.Push(merged):
      return bool(alone and not merged and step.scale == 1.0)
  return bool(alone)


def _carried_alike(
  strategy: base.Strategy, noise: linear_noise.LinearNoise, num_rounds: int, farthest: float
) -> float:
  """Returns f of `carried_error` for rows that are all made alike, from their responses to Z."""
  step, factor = noise.at(0), abs(next(rows(strategy, 1)).factor)
  if step.update is None:
    return 0.0
  below = np.abs(np.asarray(step.below))
  rounding = (below.size + 4) * _UNIT_ROUNDING
  if isinstance(step.update, linear_noise.Push):
    impulse = np.eye(1, num_rounds)[0]
    response = scipy.signal.lfilter([1.0], [step.diagonal, *step.below], impulse)
    size = farthest * float(np.linalg.norm(response))
    if size >= 2.0**53:
      raise ValueError(f'noise of {strategy.family} grows too large for {num_rounds} rounds')
    return factor * rounding * size * float(below.sum())
  response = strategy.noising_column(num_rounds)  # type: ignore[attr-defined]
  norms, off = np.sqrt(np.cumsum(np.square(response))), np.zeros(num_rounds)
  for weight, loss in zip(below, np.asarray(step.update.losses)):
    decay = [1.0, -(1.0 - float(loss))]
    buffer = scipy.signal.lfilter([1.0], decay, response)
    sizes = farthest * np.sqrt(np.cumsum(np.square(buffer)))
    errors = scipy.signal.lfilter(
      [1.0], decay, _UNIT_ROUNDING * farthest * norms + 4 * _UNIT_ROUNDING * sizes
    )
    # Buffers before a round are those after the one before it.
    off[1:] += weight * (errors + rounding * sizes)[:-1]
  return factor * float(off.max())


def _deviations(
  noise: linear_noise.LinearNoise, rounds: Sequence[LatticeRow]
) -> Iterator[tuple[float, np.ndarray]]:
  """Yields the standard deviations of y, and of the buffers after it, of each round.

  Where rows are only pushed and nothing is read again, buffers are the last rows, whose norms are
  known. Otherwise the deviations follow from the covariance of the buffers, and of the normals that
  later rows may read.
  """
  y_deviations = [n / abs(row.step.scale) for row, n in zip(rounds, linear_noise.row_norms(noise))]
  lags = [row.round_index - group for row in rounds for group, _ in row.reads]
  lags += [row.round_index - row.oldest[0] for row in rounds if row.oldest is not None]
  updates = [row.step.update for row in rounds]
  merges = any(not isinstance(each, linear_noise.Push) or each.merged for each in updates)
  if not noise.num_buffers or not (lags or merges):
    stack = np.zeros(0)
    for row, y_deviation in zip(rounds, y_deviations):
      stack = np.append(y_deviation, () if row.step.restart else stack)[: noise.num_buffers]
      yield y_deviation, stack
    return
  window = max(lags, default=0)
  count = len(linear_noise.start(noise, 1))
  covariance = np.zeros((count + window, count + window))
  for row, y_deviation in zip(rounds, y_deviations):
    step = row.step
    if step.restart:
      initial = len(linear_noise.start(noise, 1))
      covariance = scipy.linalg.block_diag(np.zeros((initial, initial)), covariance[count:, count:])
      count = initial
    size = count + window + 1
    basis = np.eye(size)  # Buffers, the latest normals from the newest on, and the round's own.
    drawn = row.spread / row.factor * basis[-1]
    for group, weight in row.reads:
      drawn = drawn + weight * basis[count + row.round_index - group - 1]
    oldest = np.zeros(size)
    if row.oldest is not None:
      group, sign = row.oldest
      oldest = sign * basis[-1 if group == row.round_index else count + row.round_index - group - 1]
    unrestarted = step._replace(restart=False)
    _, buffers = linear_noise.advance(noise, unrestarted, drawn, oldest, basis[:count])
    following = np.vstack([buffers, basis[-1:], basis[count : count + window]])
    following = following[: len(buffers) + window]
    covariance = scipy.linalg.block_diag(covariance, np.eye(1))
    covariance = following @ covariance @ following.T
    count = len(buffers)
    yield y_deviation, np.sqrt(np.maximum(np.diagonal(covariance)[:count], 0.0))


def _absolute(step: linear_noise.Step) -> linear_noise.Step:
  """The step whose buffers bound the absolute values of a step's."""
  match step.update:
    case linear_noise.Add(losses, row_gains, draw_gains):
      decays = np.abs(1.0 - np.asarray(losses))
      gains = linear_noise.Add(1.0 - decays, np.abs(row_gains), np.abs(draw_gains))
      return step._replace(update=gains)
  return step
