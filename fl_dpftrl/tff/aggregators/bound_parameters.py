"""Parameters that a noise state is bound to, as a digest; no other factory continues it."""

import json
from typing import Any

import tensorflow as tf

from fl_dpftrl.mechanisms import base as strategies
from fl_dpftrl.mechanisms.files import documents
from fl_dpftrl.noise import stream as streams
from tff_inprocess import failures

SECRET = ('seed', 'buffers', 'trail')
"""Fields of a noise state that tell noise."""
# Only constant words: errors of a graph are told without what it computed.
_REFUSED = (
  'the state of the noise has another strategy, seed, noise_multiplier or clip_norm: use the'
  ' factory that made it, in the version of fl_dpftrl that made it; other noise is another run'
)


def digest(
  strategy: strategies.Strategy, *, seed: int, noise_multiplier: float, clip_norm: float
) -> int:
  """Returns a digest of what a row's guarantee rests on; `seed` is its origin, not its value."""
  content = [documents.strategy_digest(strategy), seed, noise_multiplier, clip_norm]
  return documents.short_digest(json.dumps(content).encode())


def bind(stream: streams.NoiseStream, digest_number: int) -> streams.NoiseStream:
  """Returns a stream whose state holds the digest, and whose `next` fails for another one."""

  def init():
    return stream.init()._replace(parameters=tf.constant(digest_number, tf.int64))

  return streams.NoiseStream(
    init,
    lambda noise: stream.next(check(noise, digest_number)),
    lambda noise: stream.skip(check(noise, digest_number)),
  )


def check(noise: Any, digest_number: int) -> Any:
  """Returns a noise state unchanged if its parameters are these, in a graph."""
  noise = tf.nest.map_structure(tf.convert_to_tensor, noise)
  same = tf.equal(noise.parameters, tf.constant(digest_number, tf.int64))
  with tf.control_dependencies([tf.debugging.Assert(same, [failures.told(_REFUSED)])]):
    return tf.nest.map_structure(tf.identity, noise)
