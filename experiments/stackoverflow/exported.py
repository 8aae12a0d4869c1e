"""A run's model as a Keras file or a SavedModel, only from its weights.

The Keras model has standard layers only, so that it loads without this package.
It maps token ids [batch, length] to logits [batch, length, num_tokens].
"""

import contextlib
import dataclasses
import io
import os
import pathlib
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from experiments.stackoverflow import networks
from fl_dpftrl.support.text import messages

KERAS, SAVED_MODEL = 'keras', 'savedmodel'
NAMES = {KERAS: 'model.keras', SAVED_MODEL: 'saved_model'}
"""File or folder of each format in a run's folder."""

_layers = tf.keras.layers


def keras_model(
  network: networks.Network, weights: Sequence[np.ndarray], length: int
) -> tf.keras.Model:
  """Returns a Keras model with the logits of a network."""
  build = _BUILDERS.get(type(network))
  if build is None:
    raise ValueError(f'{type(network).__name__} has no Keras model')
  tokens = tf.keras.Input([length], dtype=tf.int32, name='tokens')
  return build(network, tokens, length, *weights)


def _log_bilinear(
  network: networks.LogBilinear, tokens: Any, length: int, embeddings, mixing, bias
) -> tf.keras.Model:
  size, num_tokens = network.embedding, network.num_tokens
  # Earlier positions hold padding, token 0, which has an embedding too.
  column = _layers.Reshape([length, 1])(tokens)
  padded = _layers.ZeroPadding1D((network.context - 1, 0))(column)
  padded = _layers.Reshape([length + network.context - 1])(padded)
  embed = _layers.Embedding(num_tokens, size)
  # A matrix for each distance is a convolution over the last few words.
  mix = _layers.Conv1D(size, network.context, use_bias=False)
  score = _layers.Dense(num_tokens, name='logits')
  model = tf.keras.Model(tokens, score(mix(embed(padded))))
  embed.set_weights([embeddings])
  mix.set_weights([mixing.reshape(network.context, size, size)])
  score.set_weights([embeddings.T, bias])
  return model


def _lstm(
  network: networks.Lstm,
  tokens: Any,
  length: int,
  embeddings,
  kernel,
  recurrent,
  bias,
  projection,
  projection_bias,
  output,
  output_bias,
) -> tf.keras.Model:
  del length
  embed = _layers.Embedding(network.num_tokens, network.embedding)
  cells = _layers.LSTM(network.units, return_sequences=True)
  project = _layers.Dense(network.embedding)
  score = _layers.Dense(network.num_tokens, name='logits')
  model = tf.keras.Model(tokens, score(project(cells(embed(tokens)))))
  embed.set_weights([embeddings])
  cells.set_weights([_keras_gates(weight) for weight in (kernel, recurrent, bias)])
  project.set_weights([projection, projection_bias])
  score.set_weights([output, output_bias])
  return model


def _keras_gates(weight: np.ndarray) -> np.ndarray:
  """Returns gates input, cell, forget, output in Keras's order: input, forget, cell, output."""
  entered, cell, forgotten, output = np.split(weight, 4, axis=-1)
  return np.concatenate([entered, forgotten, cell, output], axis=-1)


_BUILDERS: dict[type, Callable[..., tf.keras.Model]] = {
  networks.LogBilinear: _log_bilinear,
  networks.Lstm: _lstm,
}


def write(model: tf.keras.Model, path: pathlib.Path, format: str) -> None:
  """Writes a model; a reader sees all of it or nothing."""
  shown = messages.quoted(os.fspath(path))
  if path.exists():
    raise ValueError(f'--output={shown} exists; name another path')
  if format == KERAS and path.suffix != '.keras':
    raise ValueError(f'--output={shown} must be a file NAME.keras')
  path.parent.mkdir(parents=True, exist_ok=True)
  temporary = path.with_name(f'.unfinished-{path.name}')
  _remove(temporary)  # Of an export that was killed.
  try:
    if format == KERAS:
      model.save(temporary, save_format='keras')
    else:
      with contextlib.redirect_stdout(io.StringIO()):  # Keras names the temporary folder.
        model.export(temporary)
    os.rename(temporary, path)
  finally:
    _remove(temporary)


def _remove(path: pathlib.Path) -> None:
  shutil.rmtree(path, ignore_errors=True)
  with contextlib.suppress(OSError):
    path.unlink()


@dataclasses.dataclass(frozen=True, eq=False)
class Loaded:
  """An exported model as a network, which holds its own weights.

  Attributes:
    call: maps int32 tokens to logits.
    held: what has the weights, which live as long as it is held.
  """

  call: Callable[[tf.Tensor], tf.Tensor]
  held: Any

  def initial_weights(self, seed: int) -> tuple[np.ndarray, ...]:
    del seed
    return ()

  def logits(self, weights: networks.Weights, tokens: tf.Tensor) -> tf.Tensor:
    del weights
    return self.call(tokens)


def read(path: pathlib.Path, num_tokens: int, length: int) -> Loaded:
  """Returns an exported model as a network."""
  shown = f'--model={messages.quoted(os.fspath(path))}'
  if not path.exists():
    raise ValueError(f'{shown} does not exist')
  try:
    if path.is_dir():
      held = tf.saved_model.load(os.fspath(path))
      call = held.serve
    else:
      held = call = tf.keras.models.load_model(path, compile=False)
    shape = call(tf.zeros([1, length], tf.int32)).shape
  except Exception as problem:  # Of many kinds, for what is no model.
    raise ValueError(f'{shown} is no exported model: {messages.one_line(str(problem))}') from None
  if tuple(shape) != (1, length, num_tokens):
    raise ValueError(
      f'{shown} gives logits of shape {tuple(shape)[1:]}; {length} tokens and this vocabulary'
      f' need ({length}, {num_tokens})'
    )
  return Loaded(call, held)
