"""Networks that predict the next word, as pure functions of their weights."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from experiments.stackoverflow import configuration, lstm
from fl_dpftrl.support.files import array_files
from fl_dpftrl.support.text import messages

Weights = Sequence[tf.Tensor]


class Network(Protocol):
  """Weights, and logits of the next token at each position."""

  def initial_weights(self, seed: int) -> tuple[np.ndarray, ...]:
    """Float32 arrays, the same for the same seed."""
    ...

  def logits(self, weights: Weights, tokens: tf.Tensor) -> tf.Tensor:
    """Maps tokens [batch, length] to float32 [batch, length, num_tokens]."""
    ...


def num_parameters(network: Network) -> int:
  return sum(weight.size for weight in network.initial_weights(0))


def _check_positive(network: Network) -> None:
  for field in dataclasses.fields(network):
    value = getattr(network, field.name)
    if value < 1:
      raise ValueError(f'{field.name} must be at least 1, got {value}')


def _uniform(generator: np.random.Generator, limit: float, *shape: int) -> np.ndarray:
  return generator.uniform(-limit, limit, shape).astype(np.float32)


def _glorot(generator: np.random.Generator, *shape: int) -> np.ndarray:
  return _uniform(generator, np.sqrt(6 / sum(shape)), *shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogBilinear:
  """Predicts the next word's embedding from those of the last few words.

  The prediction is the sum of the context words' embeddings, each through a matrix of its distance;
  logits are its products with the same embeddings, plus a bias. It learns in a tenth of an LSTM's
  time, as each client's round is a handful of matrix products.

  Attributes:
    num_tokens: token ids, special ones included.
    embedding: size of an embedding.
    context: how many words are looked at; positions before the sentence count as padding.

  Source: Mnih and Hinton 2007, "Three new graphical models for statistical
  language modelling", section 4; tied embeddings as in Press and Wolf 2017.
  """

  num_tokens: int
  embedding: int = 64
  context: int = 3

  def __post_init__(self):
    _check_positive(self)

  def initial_weights(self, seed: int) -> tuple[np.ndarray, ...]:
    generator = np.random.default_rng(seed)
    return (
      _uniform(generator, 0.1, self.num_tokens, self.embedding),
      _glorot(generator, self.context * self.embedding, self.embedding),
      np.zeros(self.num_tokens, np.float32),
    )

  def logits(self, weights: Weights, tokens: tf.Tensor) -> tf.Tensor:
    embeddings, mixing, bias = weights
    length = tokens.shape[1]
    padded = tf.pad(tokens, [[0, 0], [self.context - 1, 0]])
    context = tf.stack([padded[:, i : i + length] for i in range(self.context)], axis=2)
    words = tf.reshape(tf.gather(embeddings, context), [-1, self.context * self.embedding])
    predicted = tf.matmul(words, mixing)
    scores = tf.matmul(predicted, embeddings, transpose_b=True) + bias
    return tf.reshape(scores, [-1, length, self.num_tokens])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lstm:
  """The papers' network: embedding, one LSTM layer, projection, output layer.

  Attributes:
    num_tokens: token ids, special ones included.
    embedding: size of an embedding, and of the projection.
    units: cells of the LSTM. With 10 004 tokens, 96 and 670 there are 4 050 748 parameters.

  Source: Reddi et al. 2020, "Adaptive federated optimization", appendix C.4.
  """

  num_tokens: int
  embedding: int = 96
  units: int = 670

  def __post_init__(self):
    _check_positive(self)

  def initial_weights(self, seed: int) -> tuple[np.ndarray, ...]:
    generator = np.random.default_rng(seed)
    recurrent = np.linalg.qr(generator.standard_normal((4 * self.units, self.units)))[0].T
    # Gates are ordered input, cell, forget, output; forget gates start open.
    bias = np.zeros(4 * self.units, np.float32)
    bias[2 * self.units : 3 * self.units] = 1
    return (
      _uniform(generator, 0.05, self.num_tokens, self.embedding),
      _glorot(generator, self.embedding, 4 * self.units),
      recurrent.astype(np.float32),
      bias,
      _glorot(generator, self.units, self.embedding),
      np.zeros(self.embedding, np.float32),
      _glorot(generator, self.embedding, self.num_tokens),
      np.zeros(self.num_tokens, np.float32),
    )

  def logits(self, weights: Weights, tokens: tf.Tensor) -> tf.Tensor:
    (embeddings, kernel, recurrent, bias, projection, projection_bias, output, output_bias) = (
      weights  # pyformat: disable
    )
    words = tf.gather(embeddings, tf.transpose(tokens))
    states = lstm.states(words, kernel, recurrent, bias)
    hidden = tf.reshape(tf.transpose(states, [1, 0, 2]), [-1, self.units])
    projected = tf.matmul(hidden, projection) + projection_bias
    scores = tf.matmul(projected, output) + output_bias
    return tf.reshape(scores, [-1, tokens.shape[1], self.num_tokens])


_NETWORKS = {'log_bilinear': LogBilinear, 'lstm': Lstm}


def chosen(hparams: configuration.Hparams, num_tokens: int) -> Network:
  """Returns the run's network, for as many token ids as the vocabulary has."""
  papers = hparams.dataset == 'stackoverflow'
  name = hparams.model or ('lstm' if papers else 'log_bilinear')
  if hparams.lstm_units is not None and name != 'lstm':
    raise ValueError(f'--lstm_units={hparams.lstm_units} is for --model=lstm, not {name}')
  given = {'embedding': hparams.embedding, 'units': hparams.lstm_units}
  sizes = {size: value for size, value in given.items() if value is not None}
  return _NETWORKS[name](num_tokens=num_tokens, **sizes)


def read_weights(
  path: str | os.PathLike[str], network: Network, *, flag: str
) -> tuple[np.ndarray, ...]:
  """Returns the weights of a file, which must fit a network.

  Raises:
    OSError: if the file cannot be read.
    ValueError: naming the file, if it does not have the network's weights.
  """
  weights = []
  for i, expected in enumerate(network.initial_weights(0)):
    name = f'weight{i}'
    shown = f'--{flag}={messages.quoted(os.fspath(path))}'
    try:
      weight = array_files.read(path, name)
    except ValueError as problem:
      raise ValueError(f'{shown}: {problem}') from None
    if weight.shape != expected.shape:
      raise ValueError(
        f'{shown}: {name} must have shape {expected.shape} for this network and'
        f' vocabulary, has {weight.shape}'
      )
    if not np.isfinite(weight).all():
      raise ValueError(f'{shown}: {name} has numbers that are not finite')
    weights.append(weight.astype(np.float32))
  return tuple(weights)
