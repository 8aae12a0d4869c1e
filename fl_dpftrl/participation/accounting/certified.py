"""ε of secret participation by Monte Carlo, with a proof: a bet against each claim.

See `bound` for G, L and the two directions. A sample of h from a proposal of density W under
N(0, G) gives v ≥ 0 whose mean is δ(ε), and v ≤ B(ε), which is known. A claim δ(ε) ≤ d is accepted
if Σ ln(1 + λ(d − v)) ≥ ln 1/β with 0 ≤ λ ≤ 1/(B − d). If it is false, the product has a mean of 1
at most, and by Markov's inequality it is accepted with probability β at most. Claims go down a grid
of ε and end with the first that is not accepted, so only the first false one matters. Proposal,
grid and λ come from a pilot with coins of its own.

`present` is proposed by a fair coin between two families. The first, Σ q_i exp(s h_i − s²G_ii/2)
with q_i ∝ p_i e^{(s−1)G_ii/2}, bounds v: by Hölder's inequality it is at least (L/Z)^s with Z the
sum of these weights, so B = 2 Z^s e^{−(s−1)ε} (s−1)^{s−1} / s^s. The second, shifts s′Gw with w the
belief of an adversary there, keeps the variance small. `absent` is proposed by one shift −s′Gp, and
by Jensen's inequality v ≤ exp(s′(ḡ/2 − ε) + s′²pᵀGp/2) with ḡ = Σ p_i G_ii.

Coins are those of the operating system. ε is too small with probability β at most, a share of δ
that all tries have together. As d is δ less this share, the mean of δ at the ε that comes out is at
most δ.
"""

import hashlib
import math
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy

from fl_dpftrl.support import checks
from fl_dpftrl.support.files import json_files

_SHARE = 1e-3  # β over δ
_PILOT, _CHUNK = 20_000, 4096  # samples
_BETS = np.append(np.geomspace(1e-4, 0.99, 20), 0.0)  # λ over its largest value
_STEPS = np.geomspace(1.15, 0.985, 120)  # the grid of ε, over the pilot's estimate
_SLACK = 1e-9  # relative, of a value
_ENLARGED = 1e-10  # of entries of G, so that what is sampled is no smaller


class Proposal(NamedTuple):
  """A law to sample h from.

  Attributes:
    draw: function from a generator and a number to the logarithms of L and W of as many samples.
    log_bound: function from ε to ln B.
    sign: 1 for `present`, −1 for `absent`.
  """

  draw: Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
  log_bound: Callable[[float], float]
  sign: int

  def values(self, logs: tuple[np.ndarray, np.ndarray], epsilon: float) -> np.ndarray:
    """Returns v of samples at ε, rounded up."""
    loss, density = logs
    high, low = (loss, epsilon) if self.sign > 0 else (np.zeros_like(loss), epsilon + loss)
    with np.errstate(over='ignore'):
      positive = -np.expm1(np.minimum(low - high, 0.0))
      return np.exp(high - density) * positive * (1.0 + _SLACK)


def certificate(
  gram: np.ndarray, delta: float, *, most: float, num_samples: int = 10**6, tries: int = 1
) -> tuple[float, json_files.Object]:
  """Returns the certified ε of uniform bins with this G, and what it rests on.

  ε is too small with probability at most β, a part of δ / 1000, over all tries together. With it
  come β of this try, samples of each direction, tries, and SHA-256 of the coins.

  Args:
    most: ε that is proven otherwise, which is the result at most.
    tries: number of this certificate among those that are made for a run. β is shared out among all
      tries, so that the best of them may be taken.
  """
  checks.whole(num_samples=num_samples)
  beta = _SHARE * delta / (checks.whole(tries=tries) * (tries + 1))
  coins = os.urandom(32)
  words = np.random.SeedSequence(int.from_bytes(coins, 'big')).spawn(2)
  pilot, fresh = (np.random.Generator(np.random.PCG64(word)) for word in words)
  chances = np.full(len(gram), 1.0 / len(gram))
  target = delta * (1.0 - _SHARE)
  epsilon = certified(gram, chances, target, beta, most, num_samples, pilot, fresh)
  digest = hashlib.sha256(coins).hexdigest()
  return epsilon, {'beta': beta, 'num_samples': num_samples, 'tries': tries, 'coins': digest}


def certified(
  gram: np.ndarray,
  chances: np.ndarray,
  delta: float,
  beta: float,
  most: float,
  num_samples: int,
  pilot: np.random.Generator,
  fresh: np.random.Generator,
) -> float:
  """Returns ε at δ, the larger of both directions; too small with probability β at most."""
  result = 0.0
  for proposal in proposals(enlarged(gram), chances, delta, most, pilot):
    if proposal is None:
      return most
    result = max(result, _descend(proposal, delta, beta, most, num_samples, pilot, fresh))
  return result


def proposals(
  gram: np.ndarray, chances: np.ndarray, delta: float, most: float, pilot: np.random.Generator
) -> Iterator[Proposal | None]:
  """Yields a proposal for each direction, near the ε that it is for; None if there is none."""
  near = most
  for make in (present, absent):
    proposal = better = make(gram, chances, near)
    for _ in range(2):
      if better is not None:
        proposal, near = better, estimate(better, better.draw(pilot, _PILOT), delta, most)
        better = make(gram, chances, near)
    yield better or proposal


def approximate(gram: np.ndarray, delta: float, most: float) -> float:
  """Returns ε at δ only by a pilot, which proves nothing."""
  rng, chances = np.random.default_rng(), np.full(len(gram), 1.0 / len(gram))
  found = [
    most if each is None else estimate(each, each.draw(rng, _PILOT), delta, most)
    for each in proposals(enlarged(gram), chances, delta, most, rng)
  ]
  return max(found)


def _descend(
  proposal: Proposal,
  delta: float,
  beta: float,
  most: float,
  num_samples: int,
  pilot: np.random.Generator,
  fresh: np.random.Generator,
) -> float:
  """Returns the last ε of the grid that is accepted; `most` without one."""
  drawn = proposal.draw(pilot, _PILOT)
  grid = estimate(proposal, drawn, delta, most) * _STEPS
  counts = (min(_CHUNK, num_samples - start) for start in range(0, num_samples, _CHUNK))
  samples = [proposal.draw(fresh, count) for count in counts]
  first, second = (np.concatenate(each) for each in zip(*samples, strict=True))
  last = most
  for epsilon in map(float, grid[grid < most]):
    bet = _bet(proposal, drawn, epsilon, delta)
    if not accepted(proposal.values((first, second), epsilon), delta, beta, bet):
      break
    last = epsilon
  return last


def accepted(values: np.ndarray, delta: float, beta: float, bet: float) -> bool:
  """Returns True if the claim that the mean is at most δ wins the bet."""
  return float(np.log1p(bet * (delta - values)).sum()) >= -math.log(beta)


def _bet(proposal: Proposal, logs: Any, epsilon: float, delta: float) -> float:
  """Returns the λ that grows fastest on a pilot."""
  log_bound = proposal.log_bound(epsilon)
  if log_bound > 700.0:
    return 0.0
  most = (1.0 - 1e-9) / max(math.exp(log_bound) * (1.0 + 2.0 * _SLACK) - delta, delta)
  gaps = delta - proposal.values(logs, epsilon)
  growth = [np.log1p(share * most * gaps).sum() for share in _BETS]
  return most * float(_BETS[int(np.argmax(growth))])


def estimate(proposal: Proposal, logs: Any, delta: float, most: float) -> float:
  """Returns ε at which samples have a mean of δ, up to most."""
  excess = lambda epsilon: float(proposal.values(logs, epsilon).mean()) - delta
  if excess(most) >= 0.0 or excess(0.0) <= 0.0:
    return most if excess(0.0) > 0.0 else 1e-3 * most
  return max(scipy.optimize.brentq(excess, 0.0, most), 1e-3 * most)


def enlarged(gram: np.ndarray) -> np.ndarray:
  """Returns a G that is larger by more than its root is rounded."""
  extra = _ENLARGED * float(gram.diagonal().max())
  return gram * (1.0 + _ENLARGED) + extra * (1.0 + np.eye(len(gram)))


def present(gram: np.ndarray, chances: np.ndarray, epsilon: float) -> Proposal:
  """Returns the proposal for E(L − e^ε)⁺, made for one ε and valid for any."""
  root, diagonal, logs = np.linalg.cholesky(gram), gram.diagonal(), np.log(chances)

  def log_sum(s: float) -> float:
    return float(scipy.special.logsumexp(logs + 0.5 * (s - 1.0) * diagonal))

  def log_bound(s: float, at: float) -> float:
    edge = scipy.special.xlogy(s - 1.0, s - 1.0) - s * math.log(s)
    return math.log(2.0) + s * log_sum(s) - (s - 1.0) * at + edge

  s = float(scipy.optimize.minimize_scalar(
    lambda u: log_bound(1.0 + math.exp(u), epsilon), bounds=(-7.0, 7.0), method='bounded'
  ).x)  # fmt: skip
  s = 1.0 + math.exp(s)
  first = np.exp(logs + 0.5 * (s - 1.0) * diagonal - log_sum(s))
  scale, beliefs, shares = _beliefs(gram, logs, epsilon)
  shifts = np.concatenate([s * gram, scale * beliefs @ gram])
  picks = np.concatenate([0.5 * first, 0.5 * shares])
  weights = np.concatenate([s * np.eye(len(gram)), scale * beliefs])
  squares = np.einsum('ij,ij->i', weights, shifts)
  offsets = np.log(np.maximum(picks, 1e-300)) - 0.5 * squares

  def draw(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    which = rng.choice(len(picks), count, p=picks / picks.sum())
    h = rng.standard_normal((count, len(gram))) @ root.T + shifts[which]
    loss = _log_mean(h + (logs - 0.5 * diagonal))
    one = s * h + offsets[: len(gram)]
    two = h @ weights[len(gram) :].T + offsets[len(gram) :]
    return loss, np.logaddexp(_log_mean(one), _log_mean(two))

  return Proposal(draw, lambda at: log_bound(s, at), 1)


def _beliefs(
  gram: np.ndarray, logs: np.ndarray, epsilon: float
) -> tuple[float, np.ndarray, np.ndarray]:
  """Returns a scale, beliefs that are fixed points there, and the share of each."""
  half, scale = 0.5 * gram.diagonal(), 1.0
  for _ in range(4):
    weights = np.eye(len(gram))
    for _ in range(12):
      weights = scipy.special.softmax(logs + scale * weights @ gram - half, axis=1)
    _, index, members = np.unique(
      np.round(weights, 3), axis=0, return_inverse=True, return_counts=True
    )[:3]
    kept, first = np.unique(index.ravel(), return_index=True)
    beliefs, shares = weights[first], members[kept] / len(gram)
    means = beliefs @ gram

    def loss(scale: float, means: np.ndarray = means) -> float:
      return float(np.median(scipy.special.logsumexp(logs + scale * means - half, axis=1)))

    high = 1.0
    while loss(high) < epsilon and high < 1e6:
      high *= 2.0
    scale = (
      scipy.optimize.brentq(lambda x: loss(x) - epsilon, 0.0, high) if loss(0.0) < epsilon else 0.0
    )
  return scale, beliefs, shares


def absent(gram: np.ndarray, chances: np.ndarray, epsilon: float) -> Proposal | None:
  """Returns the proposal for E(1 − e^ε L)⁺; None where v has no bound below 1 at this ε."""
  root, diagonal, logs = np.linalg.cholesky(gram), gram.diagonal(), np.log(chances)
  mean, square = gram @ chances, float(chances @ gram @ chances)
  middle = 0.5 * float(chances @ diagonal)
  if epsilon <= middle:
    return None
  scale = (epsilon - middle) / square

  def draw(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    h = rng.standard_normal((count, len(gram))) @ root.T - scale * mean
    return _log_mean(h + (logs - 0.5 * diagonal)), -scale * (h @ chances) - 0.5 * scale**2 * square

  return Proposal(draw, lambda at: scale * (middle - at) + 0.5 * scale**2 * square, -1)


def _log_mean(terms: np.ndarray) -> np.ndarray:
  """Returns the logarithm of the sum of exponentials along rows; the terms are overwritten."""
  largest = terms.max(axis=1)
  terms -= largest[:, None]
  return np.log(np.exp(terms, out=terms).sum(axis=1)) + largest
