"""The log-bilinear network of the training script, and its gradients for a cohort, in NumPy.

All clients of a round start from the same weights and take one step. So their gradients are a few
products of matrices for the whole cohort, and a round takes a hundredth of the time of one that
trains clients one after another.
"""

from collections.abc import Sequence

import numpy as np
from scipy import sparse

CONTEXT = 3
"""Words that are looked at."""

_ROWS = 512  # sentences that are evaluated at a time

Weights = Sequence[np.ndarray]


def initial_weights(num_tokens: int, embedding: int, seed: int) -> tuple[np.ndarray, ...]:
  """Returns embeddings [num_tokens, embedding], mixing matrices one below the other, and bias."""
  generator = np.random.default_rng(seed)
  limit = np.sqrt(6 / ((CONTEXT + 1) * embedding))
  return (
    generator.uniform(-0.1, 0.1, (num_tokens, embedding)).astype(np.float32),
    generator.uniform(-limit, limit, (CONTEXT * embedding, embedding)).astype(np.float32),
    np.zeros(num_tokens, np.float32),
  )


def gradients(weights: Weights, sentences: np.ndarray) -> tuple[np.ndarray, ...]:
  """Returns gradients of each client's mean loss by weight, with an axis of clients in front."""
  embeddings, mixing, _ = weights
  num_clients, num_tokens, size = len(sentences), *embeddings.shape
  context, words, predicted, errors = _forward(weights, sentences)
  targets = sentences[:, :, 1:].ravel()
  errors -= errors.max(axis=1, keepdims=True)
  np.exp(errors, out=errors)
  errors /= errors.sum(axis=1, keepdims=True)
  errors[np.arange(len(targets)), targets] -= 1
  errors /= len(targets) // num_clients
  of_predicted = errors @ embeddings
  by_client = lambda array: array.reshape(num_clients, -1, array.shape[-1])
  transposed = lambda array: by_client(array).transpose(0, 2, 1)
  of_words = (of_predicted @ mixing.T).reshape(-1, size)
  # Row c · num_tokens + w sums what client c has where it reads word w.
  clients = np.repeat(np.arange(num_clients), context.size // num_clients)
  read = sparse.csc_matrix(
    (
      np.ones(context.size, np.float32),
      clients * num_tokens + context.ravel(),
      np.arange(context.size + 1),
    ),
    shape=(num_clients * num_tokens, context.size),
  )
  return (
    transposed(errors) @ by_client(predicted)
    + (read @ of_words).reshape(num_clients, num_tokens, size),
    transposed(words) @ by_client(of_predicted),
    by_client(errors).sum(axis=1),
  )


def accuracy(weights: Weights, sentences: np.ndarray) -> float:
  """Returns the share of words that are predicted, of sentences [sentences, length + 1]."""
  hits = 0
  for start in range(0, len(sentences), _ROWS):
    rows = sentences[start : start + _ROWS]
    scores = _forward(weights, rows[None])[-1]
    hits += (scores.argmax(axis=1) == rows[:, 1:].ravel()).sum()
  return float(hits / sentences[:, 1:].size)


def _forward(weights: Weights, sentences: np.ndarray) -> tuple[np.ndarray, ...]:
  """Returns context ids, their words, predicted embeddings and scores, a row for each target."""
  embeddings, mixing, bias = weights
  length = sentences.shape[2] - 1
  padded = np.pad(sentences[:, :, :-1], ((0, 0), (0, 0), (CONTEXT - 1, 0)))
  context = np.stack([padded[:, :, i : i + length] for i in range(CONTEXT)], axis=3)
  words = embeddings[context].reshape(-1, mixing.shape[0])
  predicted = words @ mixing
  return context, words, predicted, predicted @ embeddings.T + bias
