"""ε of publishing the best of a secret, random number of runs.

One run, with the score it is chosen by, is μ-GDP. J has a law with the generating function f, and J
times a cell of a fixed grid is drawn and run with fresh coins. Only the best run is published. With

  g(t) = f′(1 − t),   top(t) = Φ(Φ⁻¹(t) + μ),   h(r) = max over t of (g(t) r − e^ε g(top(t)))₊

it has δ(ε) ≤ E h(exp(μx − μ²/2)), x ~ N(0, 1). Proof and checks: docs/decisions/tuning.md.

Cells of t at their worse ends make h the largest of finitely many lines in r. It bends at e^ε y_m,
where y_m depends on no ε, and gets steeper by s_m there. So δ(ε) ≤ Σ s_m δ₁(ε + ln y_m), where δ₁
is the curve of one run: a sum of positive terms, each rounded up.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy

from fl_dpftrl.participation.accounting import guarantees
from fl_dpftrl.support import checks
from fl_dpftrl.support.text import roundings

GEOMETRIC, LOGARITHMIC = LAWS = ('geometric', 'logarithmic')
_MOST_MEAN, _MOST_RUNS, _RUNS_A_MEAN = 1000, 100_000, 6  # The last is the default of `most`.
_ENDS = np.linspace(-9.0, 9.0, 24_001)  # Φ⁻¹ of the ends of cells of t; 0 and 1 are ends too
_SLACK = 1e-11  # relative, of a probability or a sum of them
_LEAST, _LEAST_DELTA = 1e-200, 1e-100  # more than what underflows, and δ
_MOST_EPSILON = 512.0  # of which e^ε times what underflows is nothing
_WITHHELD = (
  'the law and the grid are fixed before any run, and nothing is added to them, repeated or stopped'
  ' because of a result; a run that fails counts as the worst',
  'runs are independent and alike given the data: each draws its cell and all its coins anew, and'
  ' where they share who takes part, no guarantee of theirs comes from that being secret',
  'each run is the Gaussian release of its own noise, and nothing of it is amplified; whether it'
  ' fails depends on data only through what it releases',
  'the score is a part of the run that this guarantee covers, or needs no private data',
  'nothing but the winner is ever known: not the number of runs, other runs, their order, times,'
  ' costs, folders, logs; with a clock in sight, report at a fixed time, enough for the most runs',
)


@dataclasses.dataclass(frozen=True)
class Tuning:
  """Secret number of runs of which the best is published.

  Attributes:
    law: 'geometric' or 'logarithmic', or chances by number of runs, {1: 0.2, 4: 0.8}.
    mean: mean of the law before it is cut off, above 1; 0 for chances.
    most: number of runs at which the law is cut off; 0 for 6 means.

  Raises:
    ValueError: naming the attribute.
  """

  law: str | Mapping[int, float] = GEOMETRIC
  mean: float = 0.0
  most: int = 0

  def __post_init__(self):
    if isinstance(self.law, Mapping):
      if self.mean or self.most:
        raise ValueError('mean and most are not for a law that is given by its chances')
      for number, chance in self.law.items():
        checks.whole(1, _MOST_RUNS, law=number)
        checks.positive(**{f'law[{number}]': chance})
      total = math.fsum(self.law.values())
      if abs(total - 1.0) > 1e-9:
        raise ValueError(f'the chances of law must add up to 1, got {total:g}')
      object.__setattr__(self, 'law', dict(sorted(self.law.items())))
      object.__setattr__(self, 'most', max(self.law))
      return
    if self.law not in LAWS:
      raise ValueError(f'law must be {" or ".join(LAWS)}, or chances, got {self.law!r}')
    checks.positive(mean=self.mean)
    if not 1.0 < self.mean <= _MOST_MEAN:
      raise ValueError(f'mean must be above 1 and at most {_MOST_MEAN}, got {self.mean:g}')
    most = self.most or math.ceil(_RUNS_A_MEAN * self.mean)
    object.__setattr__(self, 'most', checks.whole(1, _MOST_RUNS, most=most))

  @classmethod
  def parse(cls, text: str) -> 'Tuning':
    """Returns the tuning of 'geometric:10' or 'geometric:10:60', law, mean and most.

    Raises:
      ValueError: saying what is expected.
    """
    law, *numbers = text.split(':')
    try:
      mean, most = float(numbers[0]), int(numbers[1]) if numbers[1:] else 0
      if len(numbers) > 2:
        raise ValueError
    except (ValueError, IndexError):
      raise ValueError(f'tuning must be LAW:MEAN or LAW:MEAN:MOST, got {text!r}') from None
    return cls(law, mean, most)

  @functools.cached_property
  def chances(self) -> np.ndarray:
    """Chances of 1, 2, … runs, shape [most]."""
    numbers = np.arange(1, self.most + 1)
    if isinstance(self.law, Mapping):
      weights = np.array([self.law.get(int(number), 0.0) for number in numbers])
    elif self.law == GEOMETRIC:
      weights = (1.0 - 1.0 / self.mean) ** (numbers - 1)
    else:
      mean = lambda ratio: ratio / ((1.0 - ratio) * -math.log1p(-ratio)) - self.mean
      weights = scipy.optimize.brentq(mean, 1e-17, 1.0 - 1e-9) ** numbers / numbers
    return weights / weights.sum()

  @property
  def assumptions(self) -> tuple[str, ...]:
    """Assumptions of the ε of the winner, in words."""
    return _WITHHELD

  def log_delta(self, mu: float, epsilon: float) -> float:
    """Returns the logarithm of a bound on δ at ε ≥ 0 for the winner of runs that are μ-GDP."""
    if epsilon > _MOST_EPSILON:
      return 0.0
    steps, places = _bends_of(self.chances.tobytes(), float(mu))
    return float(np.log(steps @ _curve(float(mu), epsilon + places) + _LEAST) + 2.0 * _SLACK)

  def epsilon(self, run: guarantees.Guarantee, delta: float | None = None) -> float:
    """Returns ε of the winner, rounded up; ∞ where none is proven.

    Args:
      run: guarantee of one run and its score, the weakest of the grid's.
      delta: δ; None for the first of the run's.

    Raises:
      ValueError: for runs with secret draws, which are no single Gaussian release.
    """
    delta, mu = run.delta if delta is None else delta, run.mu
    if not _LEAST_DELTA <= delta < 1.0:
      raise ValueError(f'delta must be at least {_LEAST_DELTA:g} and below 1, got {delta!r}')
    if mu is None:
      raise ValueError(
        'tuning: the ε of the winner is that of runs whose participation has a schema; batches or'
        ' bins that are drawn in secret are not covered'
      )
    if run.epsilon(delta) == math.inf:
      return math.inf
    # Runs in whole numbers are Gaussian but for an event, of which there are as many as runs.
    remaining = lambda epsilon: delta - self.most * run.rounding.delta(epsilon)
    high, mu = 1.0, math.nextafter(mu, math.inf)
    while remaining(high) > 0.0 and self.log_delta(mu, high) > math.log(remaining(high)):
      high *= 2.0
    if remaining(high) <= 0.0:
      return math.inf
    excess = lambda epsilon: self.log_delta(mu, epsilon) - math.log(remaining(high))
    if excess(0.0) <= 0.0:
      return 0.0
    root = scipy.optimize.brentq(excess, 0.0, high, xtol=1e-12, rtol=1e-12)
    return math.nextafter(root * (1.0 + 1e-10) + 1e-11, math.inf)

  def sentence(self, run: guarantees.Guarantee) -> str:
    """Returns what may be said of the winner and of one run, in words."""
    named = f'{self.law}, mean {self.mean:g}' if self.mean else 'by its own law'
    return (
      f'ε = {roundings.up(self.epsilon(run))} at δ = {roundings.exact(run.delta)} for publishing'
      f' the best of a secret random number of runs ({named}, at most {self.most}), chosen by a'
      f' score that is part of each run; one run alone has {roundings.up(run.epsilon())}'
    )

  def to_json(self, run: guarantees.Guarantee) -> dict[str, Any]:
    """Returns law, mean before it is cut off, most and ε of the winner at the first δ."""
    law = {str(k): p for k, p in self.law.items()} if isinstance(self.law, Mapping) else self.law
    epsilon = self.epsilon(run)
    shown = epsilon if math.isfinite(epsilon) else None
    return {'law': law, 'mean': self.mean or None, 'most': self.most, 'epsilon': shown}


@functools.lru_cache(maxsize=64)
def _bends_of(chances: bytes, mu: float) -> tuple[np.ndarray, np.ndarray]:
  """Returns by how much h gets steeper at each bend, and ln y of the bends."""
  terms = np.frombuffer(chances)
  slope = np.polynomial.Polynomial(terms * np.arange(1, len(terms) + 1))  # f′
  # Cells of t, from 1 down to 0: g at the lower end of each, and g(top) at the upper end.
  a = slope(np.append(scipy.special.ndtr(-_ENDS[::-1]), 1.0)) * (1.0 + _SLACK)
  b = slope(np.append(0.0, scipy.special.ndtr(-_ENDS[::-1] - mu))) * (1.0 - _SLACK)
  hull = [(0.0, 0.0)]  # The largest of the lines a r − b is their lower convex hull, as (a, b).
  for point in zip(a.tolist(), b.tolist()):
    while len(hull) > 1 and _is_above(hull[-2], hull[-1], point):
      hull.pop()
    if point[0] > hull[-1][0]:
      hull.append(point)
    elif point[1] < hull[-1][1]:
      hull[-1] = point
  steps = np.diff(np.array(hull), axis=0)
  return steps[:, 0], np.log(np.maximum(steps[:, 1], 1e-300) / steps[:, 0])


def _is_above(first: tuple, middle: tuple, last: tuple) -> bool:
  """Returns whether the middle point is above the line through the others, or on it."""
  return (middle[1] - first[1]) * (last[0] - first[0]) >= (last[1] - first[1]) * (
    middle[0] - first[0]
  )


def _curve(mu: float, epsilon: np.ndarray) -> np.ndarray:
  """Returns δ₁(ε) = Φ(−a) − e^ε Φ(−a − μ) with a = ε/μ − μ/2, for any real ε, rounded up."""
  a = epsilon / mu - 0.5 * mu
  mills = lambda x: scipy.special.erfcx(x / math.sqrt(2.0)) * math.sqrt(0.5 * math.pi)
  near = np.maximum(a, -5.0)
  far = mills(near) - mills(near + mu)
  small = np.exp(-0.5 * near**2) / math.sqrt(2.0 * math.pi) * far * (1.0 + 1e-13 / mu)
  with np.errstate(over='ignore', invalid='ignore'):
    large = scipy.special.ndtr(-a) - np.exp(np.minimum(epsilon, 700.0)) * scipy.special.ndtr(
      -a - mu
    )
  return np.where(a >= -5.0, small, large) * (1.0 + _SLACK)
