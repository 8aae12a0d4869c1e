"""Parameters that a noise state is bound to; no other factory continues it."""

from typing import Any, NamedTuple

import tensorflow as tf

from fl_dpftrl.families import base as strategies
from fl_dpftrl.noise import reference
from fl_dpftrl.strategies import document


class Parameters(NamedTuple):
  """All that the guarantee of a noise row rests on, except participation.

  Attributes:
    strategy: the digest of C, shortened (scalar, int64).
    seed: identifier of the seed's origin and of the version of the rows of Z, not of the
      seed's value (scalar, int64).
    noise_multiplier: std(Z) / clip_norm (scalar, float64).
    clip_norm: L2 bound on an update (scalar, float64).
  """

  strategy: Any
  seed: Any
  noise_multiplier: Any
  clip_norm: Any


_TYPES = Parameters(tf.int64, tf.int64, tf.float64, tf.float64)
_SHOWN = ('noise_multiplier', 'clip_norm')
SECRET = ('seed', 'buffers', 'trail')
"""Fields of a noise state that tell noise."""
_REMEDY = (
  'use the factory that made the state, in the version of fl_dpftrl that made it; other noise is'
  ' another run'
)


def of(
  strategy: strategies.Strategy, *, seed: int, noise_multiplier: float, clip_norm: float
) -> Parameters:
  """Returns the parameters of a factory, as Python numbers."""
  return Parameters(
    strategy=document.short_digest(document.strategy_digest(strategy).encode()),
    seed=seed,
    noise_multiplier=noise_multiplier,
    clip_norm=clip_norm,
  )


def bind(stream: reference.NoiseStream, own: Parameters) -> reference.NoiseStream:
  """Returns a stream of the same rows whose state holds its parameters.

  `next` fails with an InvalidArgumentError for a state of other parameters.

  Args:
    stream: stream whose states are named tuples with fields `row_stddev` and `parameters`.
    own: parameters of the factory that the stream is for.
  """

  def init():
    return stream.init()._replace(parameters=_tensors(own))

  return reference.NoiseStream(
    init, lambda noise: stream.next(check(noise, own)), lambda noise: stream.skip(check(noise, own))
  )


def _tensors(own: Parameters) -> Parameters:
  return Parameters(*map(tf.constant, own, _TYPES))


def check(noise: Any, own: Parameters) -> Any:
  """Returns a noise state unchanged if its parameters are these, in a graph."""
  noise = tf.nest.map_structure(tf.convert_to_tensor, noise)
  checks: list[Any] = []
  for name, expected in zip(Parameters._fields, _tensors(own)):
    # Constant words alone: errors of a graph are told without what it computed.
    here = f' (here {getattr(own, name)})' if name in _SHOWN else ''
    words = f'the state of the noise has another {name}{here}: {_REMEDY}'
    with tf.control_dependencies(checks[-1:]):  # The first that differs is told, each time.
      same = tf.equal(getattr(noise.parameters, name), expected)
      checks.append(tf.debugging.Assert(same, [words]))
  with tf.control_dependencies(checks):
    return tf.nest.map_structure(tf.identity, noise)
