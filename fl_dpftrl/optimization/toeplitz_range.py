"""Banded Toeplitz strategies for a min-sep that is known only as a range.

With more bands than the smallest min-sep, columns of a pattern overlap. Coefficients that are
non-negative and non-increasing keep the sensitivity exact at every min-sep of the range.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fl_dpftrl import workloads
from fl_dpftrl.families import banded_toeplitz
from fl_dpftrl.optimization import monotone, solver, toeplitz_loss
from fl_dpftrl.optimization import toeplitz as optimization
from fl_dpftrl.participation import schemas as participation

# Powers of the losses, or of their ratios to the best, whose mean is minimised: 1 for the mean,
# or increasing powers that approach the maximum.
_POWERS = {
  'mean': (1.0,),
  'worst': (16.0, 256.0, 4096.0, 65536.0),
  'regret': (16.0, 256.0, 4096.0, 65536.0),
}
_ACCURACY = 1e-6  # smaller relative gains are within the accuracy of the search


def soften(coefficients: np.ndarray, least_min_sep: int, greatest_min_sep: int) -> np.ndarray:
  """Scales coefficients down to 0 from least_min_sep on.

  Coefficient t ≥ b₀ is scaled by (b − t) / (b − b₀).

  Args:
    coefficients: c, for the greatest min-sep.
    least_min_sep: b₀, at least 1.
    greatest_min_sep: b, more than b₀.

  Raises:
    ValueError: if the min-seps are not in this order.

  Source: Choquette-Choo et al. 2024 (scaling up banded matrix factorisation), appendix H, a
  heuristic.
  """
  if not 1 <= least_min_sep < greatest_min_sep:
    raise ValueError(
      'least_min_sep must be at least 1 and below greatest_min_sep, got'
      f' {least_min_sep!r} and {greatest_min_sep!r}'
    )
  lags = np.arange(len(coefficients))
  share = (greatest_min_sep - lags) / (greatest_min_sep - least_min_sep)
  return coefficients * np.clip(share, 0.0, 1.0)


def optimize_range(
  schemas: Sequence[participation.MinSep],
  *,
  objective: str,
  over: str,
  num_bands: int | None = None,
  workload: workloads.Workload = workloads.Workload(),
  progress: solver.Progress | None = None,
) -> banded_toeplitz.BandedToeplitz:
  """Returns one strategy for several schemas, of which one will hold.

  It is never worse, beyond a relative 1e-6, than the best strategies for single schemas are
  under all schemas. Its columns are normalised, for the largest n, only if one of those is
  better. Otherwise its sensitivity is exact under all.

  Args:
    schemas: schemas, at least one; they may differ in n too.
    objective: 'rms' or 'max'.
    over: quantity to minimise: 'mean' of the losses under the schemas; 'worst', mostly the loss
      at the smallest min-sep; 'regret', the largest ratio of a loss to that of the best
      strategy for its schema alone.
    num_bands: number of bands, at most the smallest n; None for `default_bands`.
    workload: linear workload whose error is minimised; Toeplitz.
    progress: called with the number of steps and the minimised quantity; before that, called
      with the losses of searches for single schemas.

  Raises:
    ValueError: if there are no schemas, the workload is not Toeplitz, or another argument is
      out of range.
  """
  if not schemas:
    raise ValueError('schemas must be at least one, got none')
  if over not in _POWERS:
    raise ValueError(f'over must be one of {", ".join(_POWERS)}, got {over!r}')
  if not workload.is_toeplitz:
    raise ValueError(
      f'workload must have no warm-up and no cool-down for a range of min-seps, got {workload!r}'
    )
  greatest = max(schemas, key=lambda schema: schema.min_sep)
  shortest = min(schemas, key=lambda schema: schema.num_rounds)
  optimization.check(optimization.Problem(shortest, objective, workload), num_bands)
  given, num_bands = num_bands, num_bands or default_bands(schemas)
  options: dict[str, Any] = {'objective': objective, 'num_bands': num_bands, 'workload': workload}
  report = solver.counted(progress, optimization.root)
  problems = [optimization.Problem(schema, objective, workload) for schema in schemas]
  alone = [_alone(problem, num_bands, given, report) for problem in problems]
  references = np.zeros(len(schemas))
  if over == 'regret':
    references = np.array(
      [
        2.0 * math.log(min(problem.loss(strategy) for strategy in found))
        for problem, found in zip(problems, alone)
      ]
    )
  num_rounds = {schema.num_rounds for schema in schemas}

  def search(point, num_terms):
    of_errors = {
      n: toeplitz_loss.response_error(n, objective, workload, min(n, num_terms)) for n in num_rounds
    }
    for power in _POWERS[over]:
      mean = lambda c, power=power: _power_mean(c, schemas, of_errors, references, power)
      point = monotone.minimize(mean, point, progress=report).point
    return point

  def settled(start):
    found = optimization.settle(start, max(num_rounds), workload, search)
    strategy = banded_toeplitz.BandedToeplitz(found / found[0])
    return strategy if given else optimization.without_zeros(strategy)

  def figure(strategy):
    losses = np.array([problem.loss(strategy) for problem in problems])
    losses *= np.exp(-0.5 * references)
    return np.mean(losses) if over == 'mean' else np.max(losses)

  start = optimization.one_parameter(greatest, **options).coefficients
  if num_bands > 1:
    least = min(schema.min_sep for schema in schemas)
    start = soften(start, min(least, num_bands - 1), num_bands)
  found = settled(start)
  # For one schema, columns may be normalised, or coefficients not monotone.
  others = (_for_all(strategy, max(num_rounds)) for strategies in alone for strategy in strategies)
  other = min(others, key=figure)
  if figure(other) < (1.0 - _ACCURACY) * figure(found):
    return min(other, settled(other.coefficients), key=figure)
  return found


def default_bands(schemas: Sequence[participation.MinSep]) -> int:
  """Returns the default number of bands: the greatest min-sep, at most 1024.

  It is n, at most 4096, if participations at one of the min-seps do not fill half of the run.
  """
  shortest = min(schema.num_rounds for schema in schemas)
  if any(s.num_rounds > 2 * s.min_sep * s.participations for s in schemas):
    return min(shortest, optimization.MOST_MEETING_BANDS)
  greatest = max(schema.min_sep for schema in schemas)
  return min(greatest, shortest, optimization.MOST_DEFAULT_BANDS)


def _alone(
  problem: optimization.Problem, num_bands: int, most: int | None, report: solver.Progress
) -> list[banded_toeplitz.BandedToeplitz]:
  """Returns the best strategies for one schema alone.

  They have num_bands and the default numbers of bands for this schema, up to `most`.
  """
  schema, objective, workload = problem
  sizes = {num_bands, *optimization.default_bands(schema)}
  return [
    optimization.optimize(
      schema,
      objective=objective,
      num_bands=size,
      workload=workload,
      progress=lambda _, loss: report(0, 2.0 * math.log(loss)),
    )
    for size in sizes
    if most is None or size <= most
  ]


def _for_all(
  strategy: banded_toeplitz.BandedToeplitz, num_rounds: int
) -> banded_toeplitz.BandedToeplitz:
  """Returns the strategy with columns that are normalised for num_rounds, if they are."""
  if strategy.normalized_rounds is None:
    return strategy
  return dataclasses.replace(strategy, normalized_rounds=num_rounds)


def _power_mean(
  coefficients: np.ndarray,
  schemas: Sequence[participation.MinSep],
  of_errors: Mapping[int, toeplitz_loss.LogSquare],
  references: np.ndarray,
  power: float,
) -> tuple[float, np.ndarray]:
  """Returns ln of the square of the power mean of the losses over references."""
  if not coefficients[0] > 0.0:
    return math.inf, coefficients
  errors = {n: of_error(coefficients) for n, of_error in of_errors.items()}
  values, grads = [], []
  for schema, reference in zip(schemas, references):
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
