"""Audits of TFF aggregators in process: sound ones pass, broken ones are caught."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms.families import banded_toeplitz, tree_online
from fl_dpftrl.prove import auditing
from fl_dpftrl.tff.aggregators import factories, update_bounds
from tests import made

pytestmark = pytest.mark.tff

# More rounds than bands, and than a tree has levels; each probe of the clipping has two of them.
SCHEMA = dpftrl.MinSep(num_rounds=8, min_sep=4)
BANDED = banded_toeplitz.BandedToeplitz([1.0, 0.5, 0.3], None)
CLIP, MULTIPLIER, DRAWS, GOAL = 0.5, 1.0, 1600, 10
SMALL = tff.to_type([(np.float32, [2400]), (np.float32, [1])])


# What a sum of float32 numbers, clipped by their squares, fails, however sound its noise is.
FLOAT = {'low_bits', 'releases_finite'}


def audit(aggregator, strategy=BANDED, **options):
  return auditing.audit(
    strategy,
    SCHEMA,
    noise_multiplier=MULTIPLIER,
    clip_norm=CLIP,
    delta=1e-6,
    aggregator=aggregator,
    divisor=GOAL,
    num_draws=DRAWS,
    **{'seed': 4, **options},
  )


def failed(found):
  return {check.name for check in found.checks if not check.passed}


def judged(subject, expected, *others):
  """Returns an audit with such failed checks: noise from no seed fails one more in 1 of 1,000."""
  for _ in range(2):
    if failed(found := audit(subject, *others)) == expected:
      break
  assert failed(found) == expected
  return found


def correlated(cls=factories.CorrelatedNoiseFactory, **options):
  plain = {'noise_multiplier': MULTIPLIER, 'clip_norm': CLIP, 'report_goal': GOAL}
  return cls(BANDED, **{**plain, **options})


class OfEachTensor(factories.CorrelatedNoiseFactory):
  """It clips each tensor by itself."""

  def bound(self, update):
    parts = [super(OfEachTensor, self).bound(part) for part in tf.nest.flatten(update)]
    bounded = tf.nest.pack_sequence_as(update, [part.update for part in parts])
    counts = [tf.add_n(list(count)) for count in zip(*(part[1:] for part in parts))]
    return update_bounds.BoundedUpdate(bounded, *counts)


class Table(tff.aggregators.UnweightedAggregationFactory):
  """It adds row t of a table N·Z in round t, but to silent tensors."""

  def __init__(self, mean=False, silent=()):
    self.mean, self.silent = mean, silent

  def create(self, value_type):
    specs = tff.types.type_to_tf_tensor_specs(value_type)
    sizes = [spec.shape.num_elements() for spec in specs]

    @tff.tensorflow.computation
    def start():
      bound = tf.int32.max
      return tf.random.uniform([2], -bound, bound, tf.int32), tf.constant(0)

    @tff.tensorflow.computation(value_type)
    def bound(update):
      return tf.clip_by_global_norm(update, CLIP)[0]

    @tff.tensorflow.computation(value_type, start.type_signature.result, tf.float32)
    def release(total, state, clients):
      seed, t = state
      noising = tf.constant(BANDED.noising_matrix(8), tf.float32)
      z = tf.random.stateless_normal([8, sum(sizes)], seed, stddev=MULTIPLIER * CLIP)
      row = tf.split(tf.linalg.matvec(z, noising[t], transpose_a=True), sizes)
      divisor = clients if self.mean else float(GOAL)
      noise = [tf.reshape(part, spec.shape) for part, spec in zip(row, specs)]
      for tensor in self.silent:
        noise[tensor] = tf.zeros_like(noise[tensor])
      return [a / divisor + b / GOAL for a, b in zip(total, noise)], (seed, t + 1)

    @tff.federated_computation
    def init_fn():
      return tff.federated_eval(start, tff.SERVER)

    @tff.federated_computation(
      init_fn.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
    )
    def next_fn(state, updates):
      total = tff.federated_sum(tff.federated_map(bound, updates))
      clients = tff.federated_sum(tff.federated_value(1.0, tff.CLIENTS))
      result, state = tff.federated_map(release, (total, state, clients))
      nothing = tff.federated_value((), tff.SERVER)
      return tff.templates.MeasuredProcessOutput(state, result, nothing)

    return tff.templates.AggregationProcess(init_fn, next_fn)


@pytest.mark.slow
def test_our_aggregator_passes():
  found = judged(correlated(zeroing_norm=0.2), set())
  statistics = {check.name: check.statistic for check in found.checks}
  assert statistics['clipping'] == pytest.approx(1.0, abs=0.05)
  assert found.subject == 'CorrelatedNoiseFactory, in process'


@pytest.mark.slow
def test_tree_aggregation_of_tff_has_the_noise_of_a_tree():
  specs = [tf.TensorSpec(shape, tf.float32) for shape in ([900, 2], [200])]
  tree = tff.aggregators.DifferentiallyPrivateFactory.tree_aggregation
  made = tree(MULTIPLIER, float(GOAL), CLIP, specs)
  value_type = tff.to_type([tff.TensorType(np.float32, spec.shape) for spec in specs])
  judged(made.create(value_type), FLOAT, tree_online.TreeOnline())


@pytest.mark.slow
@made.cases(
  'made, check',
  (lambda: correlated(OfEachTensor), 'clipping'),
  (lambda: Table(mean=True), 'small_updates'),
  (lambda: Table(silent=[1]).create(SMALL), 'coordinates_noised'),
  ids=['clipping of each tensor', 'a mean', 'a small tensor without noise'],
)
def test_broken_aggregators_are_caught(made, check):
  found = audit(made())
  assert check in failed(found)
  assert not found.passed


@made.cases(
  'aggregator, words',
  (tff.aggregators.MeanFactory(), 'factory without weights, got MeanFactory'),
  (tff.aggregators.SumFactory, 'factory without weights, got '),
  (tff.aggregators.SumFactory().create(tff.to_type(np.float32)), 'at least 16 coordinates, got 1'),
  (tff.aggregators.SumFactory().create(tff.to_type((np.int32, [99]))), 'must take float32'),
  (
    tff.aggregators.MeanFactory().create(tff.to_type((np.float32, [99])), tff.to_type(np.float32)),
    'without weights',
  ),
)
def test_other_aggregators_are_refused(aggregator, words):
  with pytest.raises(ValueError, match=words):
    audit(aggregator)


@pytest.mark.slow
def test_a_small_tensor_with_noise_passes():
  judged(Table().create(SMALL), FLOAT)
