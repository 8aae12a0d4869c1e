"""Optimisers that flags name."""

import dataclasses

import pytest
import tensorflow as tf

from experiments.stackoverflow import configuration, training

pytestmark = pytest.mark.tff

HPARAMS = configuration.Hparams(
  noise_multiplier=1.0, report_goal=2, num_rounds=3, server_learning_rate=0.5, server_momentum=0.8
)


def step(optimizer, gradient=2.0):
  spec = tf.TensorSpec([1], tf.float32)
  state = optimizer.initialize(spec)
  found = []
  weight = tf.zeros([1])
  for _ in range(2):
    state, weight = optimizer.next(state, weight, tf.constant([gradient]))
    found.append(float(weight[0]))
  return found


def of_client(name):
  changed = dataclasses.replace(HPARAMS, client_optimizer=name, client_learning_rate=0.1)
  return training.client_optimizer(changed)


def of_server(name):
  return training.server_optimizer(dataclasses.replace(HPARAMS, server_optimizer=name))


def test_every_name_is_its_optimiser():
  assert step(of_client('sgd')) == pytest.approx([-0.2, -0.4])
  assert step(of_client('sgdm')) == pytest.approx([-0.2, -0.2 - 0.2 * 1.9])
  assert step(of_client('adam')) == pytest.approx([-0.1, -0.2], rel=1e-3)
  assert step(of_client('adamw'))[1] > step(of_client('adam'))[1]  # Weights decay.
  assert step(of_server('sgdm')) == pytest.approx([-1.0, -1.0 - 1.8])
  assert step(of_server('adam')) == pytest.approx([-0.5, -1.0], rel=2e-2)
  assert step(of_server('yogi'))[0] == pytest.approx(-0.5, rel=2e-2)
