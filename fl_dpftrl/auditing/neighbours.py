"""Participation patterns that make one device as visible as possible."""

import numpy as np

from fl_dpftrl import participation

_SWEEPS = 20
_MOST_STARTS = 256


def worst_pattern(information: np.ndarray, schema: participation.MinSep) -> np.ndarray:
  """Returns signs p with a large pᵀ X p among the patterns that a schema allows.

  It tries regular patterns and improves them round by round. The result is a
  pattern that the schema allows, not always the worst one: an audit needs a
  good one only.

  Args:
    information: X, the inverse of the covariance of the noise, shape
      [num_rounds, num_rounds].
    schema: schema whose num_rounds is that of X.

  Returns:
    Shape [num_rounds]: 1 or −1 in the rounds of the device, otherwise 0.
  """
  size, step, most = schema.num_rounds, schema.min_sep, schema.participations
  fixed = isinstance(schema, participation.FixedSeparation)
  weights = np.abs(information)
  last_start = size - (most - 1) * step if fixed else size
  starts = np.unique(np.linspace(0, last_start - 1, min(last_start, _MOST_STARTS)).astype(int))
  patterns = [np.arange(start, size, step)[:most] for start in starts]
  if not fixed:
    patterns.append(np.arange(size)[:: max(step, size // most)][:most])
  patterns.sort(key=lambda rounds: -weights[np.ix_(rounds, rounds)].sum())
  best, best_value = np.zeros(size), -1.0
  for rounds in patterns[:8]:
    for signs in (np.ones(rounds.size), np.sign(information[rounds[0], rounds])):
      found = np.zeros(size)
      found[rounds] = np.where(signs == 0.0, 1.0, signs)
      found = _improved(information, found, schema, move=not fixed)
      value = float(found @ information @ found)
      if value > best_value:
        best, best_value = found, value
  return best


def _improved(
  information: np.ndarray, pattern: np.ndarray, schema: participation.MinSep, *, move: bool
) -> np.ndarray:
  """Chooses each round and sign anew, given the others, until nothing changes."""
  size, step = schema.num_rounds, schema.min_sep
  diagonal = np.diagonal(information)
  for _ in range(_SWEEPS):
    before = pattern.copy()
    for t in np.flatnonzero(pattern):
      pattern[t] = 0.0
      cross = information @ pattern
      allowed = np.zeros(size, bool)
      if move:
        allowed[:] = True
        for other in np.flatnonzero(pattern):
          allowed[max(0, other - step + 1) : other + step] = False
      else:
        allowed[t] = True
      gains = np.where(allowed, diagonal + 2.0 * np.abs(cross), -np.inf)
      chosen = int(np.argmax(gains))
      if gains[chosen] <= gains[t] * (1.0 + 1e-12):
        chosen = int(t)
      pattern[chosen] = -1.0 if cross[chosen] < 0.0 else 1.0
    if (pattern == before).all():
      break
  return pattern
