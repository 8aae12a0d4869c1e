"""An adversary of secret participation, by dynamic programming over every choice it has.

It picks the update of each round after it has seen the rows before, and knows the pattern. A row of
C is one number here. The last row is integrated in closed form, the others by quadrature.
"""

import functools
import itertools

import numpy as np
from scipy import special

UPDATES = (-1.0, 0.0, 1.0)
_NEWTON_STEPS = 40


def best(c, patterns, chances, epsilon, *, absent=False, updates=UPDATES, nodes=40, fixed=None):
  """δ at ε of the best adversary against noise of standard deviation 1.

  Args:
    c: rows by rounds.
    patterns: for each pattern its rounds.
    absent: for the release without the device against the one with it.
    nodes: of the quadrature of a row.
    fixed: means of each row by pattern, where there is no choice.
  """
  c, chances = np.asarray(c, float), np.asarray(chances, float)
  first = np.argmax(c != 0.0, axis=0)
  own = [
    [(i, s) for i, rounds in enumerate(patterns) for s in rounds if first[s] == t]
    for t in range(len(c))
  ]

  def means(t, chosen):
    if fixed is not None:
      return fixed[t]
    return np.array(
      [sum(c[t, s] * chosen.get((i, s), 0.0) for s in rounds) for i, rounds in enumerate(patterns)]
    )

  def value(t, logs, chosen):
    most = None
    for picks in itertools.product(updates, repeat=len(own[t])):
      now = {**chosen, **dict(zip(own[t], picks))}
      mu = means(t, now)
      if t == len(c) - 1:
        found = _last(logs, mu, chances, epsilon, absent)
      else:
        y, weights = _quadrature(nodes)
        after = logs[..., None] + (mu[:, None] * y - mu[:, None] ** 2 / 2)[:, None, :]
        after = value(t + 1, after.reshape(len(mu), -1), now)
        found = after.reshape(-1, nodes) @ weights
      most = found if most is None else np.maximum(most, found)
    return most

  return float(value(0, np.zeros((len(patterns), 1)), {})[0])


def bound(gram, chances, epsilon, *, absent=False, nodes=80):
  """δ at ε of the mixture that the theorem compares with, for a few patterns."""
  eigenvalues, vectors = np.linalg.eigh(gram)
  rows = (vectors * np.sqrt(np.maximum(eigenvalues, 0.0))).T
  return best(rows, [()] * len(gram), chances, epsilon, absent=absent, nodes=nodes, fixed=rows)


def gram(c, patterns, *, sign=False):
  """The Gram matrix of |C| over patterns; that of C itself if `sign`."""
  sums = np.stack([(c if sign else np.abs(c))[:, list(rounds)].sum(axis=1) for rounds in patterns])
  return sums @ sums.T


@functools.cache
def _quadrature(nodes):
  y, w = np.polynomial.hermite_e.hermegauss(nodes)
  return y, w / w.sum()


def _last(logs, mu, chances, epsilon, absent):
  """E (L − e^ε)_+ or E (1 − e^ε L)_+ over one more row, for each column of logs of likelihoods."""
  logs = logs + np.log(chances)[:, None]
  if absent:  # (1 − e^ε L)_+ = 1 − e^ε L + e^ε (L − e^−ε)_+
    rest = _last(logs - np.log(chances)[:, None], mu, chances, -epsilon, False)
    return 1.0 - np.exp(epsilon) * (np.exp(logs).sum(axis=0) - rest)
  level = logs - mu[:, None] ** 2 / 2 - epsilon
  total = np.zeros(logs.shape[1])
  inside = np.zeros(logs.shape[1], bool)
  for side in (1.0, -1.0):
    slopes = side * mu
    if not (slopes > 0.0).any():
      continue
    rises = slopes > 0.0
    x = np.min(-level[rises] / slopes[rises, None], axis=0)  # at or beyond the root
    for _ in range(_NEWTON_STEPS):
      terms = level + slopes[:, None] * x
      height = special.logsumexp(terms, axis=0)
      slope = (special.softmax(terms, axis=0) * slopes[:, None]).sum(axis=0)
      x = np.where(slope > 1e-12, x - height / np.maximum(slope, 1e-12), x)
    none = special.logsumexp(level + slopes[:, None] * x, axis=0) > 1e-7  # always above the level
    inside |= none
    tails = np.exp(logs) * special.ndtr(slopes[:, None] - x)
    total += np.where(none, 0.0, tails.sum(axis=0) - np.exp(epsilon) * special.ndtr(-x))
  whole = np.exp(logs).sum(axis=0) - np.exp(epsilon)
  if not np.any(mu):
    return np.maximum(whole, 0.0)
  return np.where(inside, whole, total)
