"""Factories with defaults, and rounds of their processes."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import made

BLT = made.BLT
SIZE = 30_003
VALUE_TYPE = tff.to_type(
  collections.OrderedDict(
    w=tff.TensorType(np.float32, [SIZE // 100, 100]), b=tff.TensorType(np.float32, [3])
  )
)


def make(strategy=BLT, **kwargs):
  """A factory that keeps its noise in the state, unless said otherwise."""
  kwargs = dict(noise_multiplier=0.5, clip_norm=3.0, report_goal=4, memory='state') | kwargs
  return made.factory(strategy, **kwargs)


def update(*values):
  """An update of VALUE_TYPE that is 0 but for a few coordinates."""
  w, b = np.zeros([SIZE // 100, 100], np.float32), np.zeros(3, np.float32)
  b[: len(values)] = values
  return collections.OrderedDict(w=w, b=b)


def run(process, updates, num_rounds, state=None):
  """Returns the outputs of rounds, from the first state or a given one."""
  state = process.initialize() if state is None else state
  outputs = []
  for _ in range(num_rounds):
    outputs.append(process.next(state, updates))
    state = outputs[-1].state
  return outputs


def flat(values):
  return np.concatenate([np.ravel(part) for part in tf.nest.flatten(values)])
