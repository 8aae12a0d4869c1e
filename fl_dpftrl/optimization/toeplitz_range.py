"""Banded Toeplitz strategies for a min-sep that is known only as a range.

With more bands than the smallest min-sep, columns of a pattern overlap. Coefficients that are
non-negative and non-increasing keep the sensitivity exact at every min-sep of the range.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from fl_dpftrl.families import banded_toeplitz
from fl_dpftrl.optimization import problem as problem_lib
from fl_dpftrl.optimization import solver, toeplitz, toeplitz_loss
from fl_dpftrl.participation import schemas

# Powers of the losses, or of their ratios to the best, whose mean is minimised: 1 for the mean,
# or increasing powers that approach the maximum.
_POWERS = {
  'mean': (1.0,),
  'worst': (16.0, 256.0, 4096.0, 65536.0),
  'regret': (16.0, 256.0, 4096.0, 65536.0),
}
_ACCURACY = 1e-6  # smaller relative gains are within the accuracy of the search


def soften(coefficients: np.ndarray, least_min_sep: int, greatest_min_sep: int) -> np.ndarray:
  """Scales coefficients c, for the greatest min-sep b, down to 0 from the least, b₀ < b, on.

  Coefficient t ≥ b₀ is scaled by (b − t) / (b − b₀).

  Source: Choquette-Choo et al. 2024 (scaling up banded matrix factorisation), appendix H, a
  heuristic.
  """
  lags = np.arange(len(coefficients))
  share = (greatest_min_sep - lags) / (greatest_min_sep - least_min_sep)
  return coefficients * np.clip(share, 0.0, 1.0)


def optimize_range(
  problems: Sequence[problem_lib.Problem], over: str, num_bands: int | None = None
) -> banded_toeplitz.BandedToeplitz:
  """Returns one strategy for several schemas, of which one will hold.

  It is never worse, beyond a relative 1e-6, than the best strategies for single schemas are
  under all schemas. Its columns are normalised, for the largest n, only if one of those is
  better. Otherwise its sensitivity is exact under all.

  Args:
    problems: a problem for each schema, alike but for that; at least one, whose workload is
      Toeplitz. Schemas may differ in n too. Progress tells the minimised quantity; before that,
      the losses of searches for single schemas.
    over: quantity to minimise: 'mean' of the losses under the schemas; 'worst', mostly the loss
      at the smallest min-sep; 'regret', the largest ratio of a loss to that of the best
      strategy for its schema alone.
    num_bands: number of bands, at most the smallest n; None for `default_bands`.

  Raises:
    ValueError: if there are no schemas, the workload is not Toeplitz, or another argument is
      out of range.
  """
  if not problems:
    raise ValueError('schemas must be at least one, got none')
  if over not in _POWERS:
    raise ValueError(f'over must be one of {", ".join(_POWERS)}, got {over!r}')
  workload, every_schema = problems[0].workload, [problem.schema for problem in problems]
  if not workload.is_toeplitz:
    raise ValueError(
      f'workload must have no warm-up and no cool-down for a range of min-seps, got {workload!r}'
    )
  greatest = max(problems, key=lambda problem: problem.schema.min_sep)
  shortest = min(problems, key=lambda problem: problem.schema.num_rounds)
  toeplitz.check(shortest, num_bands)
  given, num_bands = num_bands, num_bands or default_bands(every_schema)
  report = problems[0].counted(toeplitz.root)
  alone = [_alone(problem, num_bands, given, report) for problem in problems]
  references = np.zeros(len(problems))
  if over == 'regret':
    references = np.array(
      [2.0 * math.log(min(map(problem.loss, best))) for problem, best in zip(problems, alone)]
    )
  num_rounds = {schema.num_rounds for schema in every_schema}

  def search(point, num_terms):
    of_errors = {
      n: toeplitz_loss.response_error(n, problems[0].objective, workload, min(n, num_terms))
      for n in num_rounds
    }
    for power in _POWERS[over]:
      mean = lambda c, power=power: _power_mean(c, every_schema, of_errors, references, power)
      point = solver.minimize_monotone(mean, point, report).point
    return point

  def settled(start):
    point = toeplitz.settle(start, max(num_rounds), workload, search)
    strategy = banded_toeplitz.BandedToeplitz(point / point[0])
    return strategy if given else toeplitz.without_zeros(strategy)

  def figure(strategy):
    losses = np.array([problem.loss(strategy) for problem in problems])
    losses *= np.exp(-0.5 * references)
    return np.mean(losses) if over == 'mean' else np.max(losses)

  start = toeplitz.shifted_harmonic(greatest, num_bands)
  start = start / start[0]
  if num_bands > 1:
    least = min(schema.min_sep for schema in every_schema)
    start = soften(start, min(least, num_bands - 1), num_bands)
  common = settled(start)
  # For one schema, columns may be normalised, or coefficients not monotone.
  others = (_for_all(strategy, max(num_rounds)) for strategies in alone for strategy in strategies)
  other = min(others, key=figure)
  if figure(other) < (1.0 - _ACCURACY) * figure(common):
    return min(other, settled(other.coefficients), key=figure)
  return common


def default_bands(every_schema: Sequence[schemas.MinSep]) -> int:
  """Returns the default number of bands: the greatest min-sep, at most 1024.

  It is n, at most 4096, if participations at one of the min-seps do not fill half of the run.
  """
  shortest = min(schema.num_rounds for schema in every_schema)
  if any(s.num_rounds > 2 * s.min_sep * s.participations for s in every_schema):
    return min(shortest, toeplitz.MOST_MEETING_BANDS)
  greatest = max(schema.min_sep for schema in every_schema)
  return min(greatest, shortest, toeplitz.MOST_DEFAULT_BANDS)


def _alone(
  problem: problem_lib.Problem, num_bands: int, most: int | None, report: problem_lib.Progress
) -> list[banded_toeplitz.BandedToeplitz]:
  """Returns the best strategies for one schema alone.

  They have num_bands and the default numbers of bands for this schema, up to `most`.
  """
  tell = lambda _, loss: report(0, 2.0 * math.log(loss))
  told = dataclasses.replace(problem, progress=tell)
  sizes = {num_bands, *toeplitz.default_bands(problem.schema)}
  return [toeplitz.optimize(told, size) for size in sizes if most is None or size <= most]


def _for_all(
  strategy: banded_toeplitz.BandedToeplitz, num_rounds: int
) -> banded_toeplitz.BandedToeplitz:
  """Returns the strategy with columns that are normalised for num_rounds, if they are."""
  if strategy.normalized_rounds is None:
    return strategy
  return dataclasses.replace(strategy, normalized_rounds=num_rounds)


def _power_mean(
  coefficients: np.ndarray,
  every_schema: Sequence[schemas.MinSep],
  of_errors: Mapping[int, toeplitz_loss.LogSquare],
  references: np.ndarray,
  power: float,
) -> tuple[float, np.ndarray]:
  """Returns ln of the square of the power mean of the losses over references."""
  if not coefficients[0] > 0.0:
    return math.inf, coefficients
  errors = {n: of_error(coefficients) for n, of_error in of_errors.items()}
  values, grads = [], []
  for schema, reference in zip(every_schema, references):
    value, grad = errors[schema.num_rounds]
    own, own_grad = toeplitz_loss.sensitivity(schema)(coefficients)
    values.append(value + own - reference)
    grads.append(grad + own_grad)
  exponents = 0.5 * power * np.array(values)
  largest = exponents.max()
  if not math.isfinite(largest):
    return math.inf, coefficients
  shares = np.exp(exponents - largest)
  value = 2.0 / power * (largest + math.log(np.mean(shares)))
  return value, np.array(grads).T @ (shares / shares.sum())
