"""Brute force for small runs: sensitivities by enumeration, errors from matrices."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
from scipy import stats

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import base, sensitivities, workloads
from fl_dpftrl.mechanisms.sensitivities import patterns as sensitivity_patterns


class AnyMatrix(base.Strategy):
  """A strategy with any C, square or not, of which no more is known."""

  family = 'any'

  def __init__(self, matrix):
    self.matrix = np.asarray(matrix, dtype=np.float64)

  def strategy_matrix(self, num_rounds):
    return self.matrix[:, :num_rounds]

  def noising_matrix(self, num_rounds):
    raise NotImplementedError


def schema_of(rounds, device_ids, num_rounds: int) -> dpftrl.MinSep:
  """Returns the tightest schema of participations, pair by pair of each device."""
  by_device: dict[object, list[int]] = {}
  for t, device in zip(rounds, device_ids, strict=True):
    by_device.setdefault(device, []).append(int(t))
  apart = [abs(j - i) for own in by_device.values() for i, j in itertools.combinations(own, 2)]
  most = max(map(len, by_device.values()), default=1)
  return dpftrl.MinSep(num_rounds, min(apart, default=num_rounds), most)


def patterns(schema: dpftrl.MinSep) -> list[tuple[int, ...]]:
  """Returns every non-empty set of rounds that one device may take part in."""
  fixed = isinstance(schema, dpftrl.FixedSeparation)
  most = schema.max_participations or schema.num_rounds

  def extended(pattern: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if pattern:
      yield pattern
    if len(pattern) == most:
      return
    start = pattern[-1] + schema.min_sep if pattern else 0
    end = min(schema.num_rounds, start + 1) if fixed and pattern else schema.num_rounds
    for t in range(start, end):
      yield from extended((*pattern, t))

  return list(extended(()))


def worst(matrix: np.ndarray, schema: dpftrl.MinSep) -> float:
  """Returns the largest norm of a sum of columns: the sensitivity if CᵀC ≥ 0."""
  indicators = np.zeros((len(every := patterns(schema)), matrix.shape[1]))
  for indicator, pattern in zip(indicators, every):
    indicator[list(pattern)] = 1.0
  return float(np.linalg.norm(indicators @ matrix.T, axis=1).max())


def ascent(grams: np.ndarray, starts: int = 2) -> np.ndarray:
  """Returns the largest Σ X[i, j] ⟨uᵢ, uⱼ⟩ that ascent over unit vectors finds."""
  blocks = grams.reshape(-1, *grams.shape[-2:])
  best = blocks.sum(axis=(1, 2))  # Equal vectors, the best if X ≥ 0.
  signed = np.flatnonzero((blocks < 0.0).any(axis=(1, 2)))
  for start in range(starts):
    generator = np.random.default_rng(start)
    updates = _unit(generator.normal(size=(len(signed), *blocks.shape[1:])))
    left = signed
    for step in range(5000):
      before = updates.copy()
      for i in range(blocks.shape[1]):
        rows = blocks[left, i]
        pull = np.einsum('pj,pjd->pd', rows, updates) - rows[:, i, None] * updates[:, i]
        updates[:, i] = _unit(pull, otherwise=updates[:, i])
      moving = np.abs(updates - before).max(axis=(1, 2), initial=0.0) >= 1e-6
      if step % 16 == 15 or not moving.any():
        reached = np.einsum('pij,pid,pjd->p', blocks[left], updates, updates)
        best[left] = np.maximum(best[left], reached)
        left, updates = left[moving], updates[moving]
      if not left.size:
        break
  return best.reshape(grams.shape[:-2])


def _unit(vectors: np.ndarray, otherwise: np.ndarray | float = 0.0) -> np.ndarray:
  lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
  return np.where(lengths > 0.0, vectors / np.where(lengths > 0.0, lengths, 1.0), otherwise)


def worst_of_vectors(matrix: np.ndarray, schema: dpftrl.MinSep) -> float:
  """Returns the largest ‖C u‖ that ascent finds for updates of norm 1."""
  gram, best = matrix.T @ matrix, 0.0
  by_size: dict[int, list[tuple[int, ...]]] = {}
  for pattern in patterns(schema):
    by_size.setdefault(len(pattern), []).append(pattern)
  for _, same in sorted(by_size.items(), reverse=True):
    rounds = np.array(same)
    blocks = gram[rounds[:, :, None], rounds[:, None, :]]
    bounds = np.abs(blocks).sum(axis=(1, 2))
    for chunk in np.array_split(np.argsort(-bounds), -(-len(same) // 16)):
      chunk = chunk[bounds[chunk] > best]
      if chunk.size:
        best = max(best, float(ascent(blocks[chunk]).max()))
  return math.sqrt(best)


def exact_delta(shift: float, epsilon: float) -> float:
  """Returns δ of a Gaussian of standard deviation 1 that is shifted so far."""
  upper = stats.norm.cdf(shift / 2 - epsilon / shift)
  return upper - math.exp(epsilon) * stats.norm.cdf(-shift / 2 - epsilon / shift)


def per_query_error(strategy, num_rounds: int, workload=workloads.Workload()) -> np.ndarray:
  """Returns the row norms of A·N, both written out."""
  decoder = workload.matrix(num_rounds) @ strategy.noising_matrix(num_rounds)
  return np.linalg.norm(decoder, axis=1)


def rows(stream, num_rounds: int) -> np.ndarray:
  """The first rows of a noise stream, shape [num_rounds, d]."""
  state, made = stream.init(), []
  for _ in range(num_rounds):
    row, state = stream.next(state)
    made.append(row)
  return np.stack(made)


def pattern_sensitivity(strategy, num_rounds: int, patterns) -> tuple[np.ndarray, str]:
  """Returns the sensitivity of each pattern of rounds, and their kind, by `pattern_squares`."""
  sizes = np.array([len(pattern) for pattern in patterns])
  rounds = np.concatenate([np.asarray(pattern, np.int64) for pattern in patterns])
  entries = strategy.gram_entries(num_rounds)
  squares, exact = sensitivity_patterns.pattern_squares(entries, rounds, sizes)
  return np.sqrt(squares), sensitivities.EXACT if exact else sensitivities.UPPER_BOUND
