"""What is secret about a state stays out of messages, whatever the state is given to."""

import functools
import logging
import pprint
import reprlib
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow_federated as tff

from fl_dpftrl.claims import adaptive_clipping
from fl_dpftrl.noise import graph
from fl_dpftrl.noise import stream as streams
from fl_dpftrl.tff.aggregators import adaptive, dp_query, factories, fixed, placement
from fl_dpftrl.tff.training import checkpoints
from tests import every_family, leaks

pytestmark = pytest.mark.tff

VALUE_TYPE = tff.to_type([(np.float32, [3]), (np.float32, [])])
NUM_ROUNDS, CLIP_NORM = 6, 0.5
CLIP_NORMS = {'fixed': CLIP_NORM, 'adaptive': adaptive_clipping.AdaptiveClipping(initial=CLIP_NORM)}
# Fields of a state that are no secret, and whose values have few digits.
PUBLIC = ('row', 'row_stddev', 'parameters', 'clip_norm')


class Made(NamedTuple):
  """All computations of one factory, a state of it, and the digits that are secret."""

  computations: dict[str, tff.Computation]
  state: Any
  secrets: leaks.Secrets

  @classmethod
  def of(cls, **computations: tff.Computation) -> 'Made':
    state = filled(computations['initialize']())
    return cls(computations, state, secret_digits(state))


class Factory(factories.CorrelatedNoiseFactory):
  """Builds its process once, for all its computations."""

  create = functools.cache(factories.CorrelatedNoiseFactory.create)


def factory_of(family: str, memory: str, clip_norm: str) -> factories.CorrelatedNoiseFactory:
  return Factory(
    every_family.example(family, NUM_ROUNDS),
    noise_multiplier=2.0,
    clip_norm=CLIP_NORMS[clip_norm],
    report_goal=2,
    memory=memory,
  )


@functools.cache
def made(family: str, memory: str, clip_norm: str) -> Made:
  aggregator = factory_of(family, memory, clip_norm)
  process = aggregator.create(VALUE_TYPE)
  return Made.of(
    initialize=process.initialize, next=process.next, skip_row=aggregator.skip_row(VALUE_TYPE)
  )


@functools.cache
def made_as_query() -> Made:
  """The aggregator as a query within TensorFlow Federated's own."""
  specs = tff.types.type_to_tf_tensor_specs(VALUE_TYPE)
  query = dp_query.CorrelatedNoiseQuery(factory_of('blt', placement.STATE, 'fixed'), specs)
  process = tff.aggregators.DifferentiallyPrivateFactory(query).create(VALUE_TYPE)
  return Made.of(initialize=process.initialize, next=process.next)


def filled(value: Any, rng: np.random.Generator | None = None) -> Any:
  """Returns a state with other secrets in place of its own, each of many digits."""
  rng = rng or np.random.default_rng(3)
  if hasattr(value, '_fields'):
    own = {n: part for n, part in zip(value._fields, value) if n not in PUBLIC}
    return value._replace(**{name: filled(part, rng) for name, part in own.items()})
  if isinstance(value, (list, tuple)):
    return type(value)(filled(part, rng) for part in value)
  array = np.asarray(value)
  shape = (array.shape[0] or 2, *array.shape[1:]) if array.ndim else ()  # An empty stack grows.
  if array.dtype == np.int64:
    return rng.integers(10**17, 2**63, shape, np.int64)
  return rng.uniform(0.1, 1.0, shape).astype(array.dtype)


def secrets_of(value: Any) -> list[Any]:
  if hasattr(value, '_fields'):
    value = [part for name, part in zip(value._fields, value) if name not in PUBLIC]
  if isinstance(value, (list, tuple)):
    return [leaf for part in value for leaf in secrets_of(part)]
  return [value]


def updates() -> list[Any]:
  rng = np.random.default_rng(4)
  return [
    (rng.uniform(0.1, 0.2, 3).astype(np.float32), np.float32(rng.uniform(0.1, 0.2)))
    for _ in range(2)
  ]


def learning_state(aggregator: Any) -> Any:
  return tff.learning.templates.LearningAlgorithmState(
    global_model_weights=(), distributor=(), client_work=(), aggregator=aggregator, finalizer=()
  )


def wrong_arguments(name: str, state: Any) -> list[tuple[Any, ...]]:
  """Arguments that no computation of this name takes, of whichever state."""
  given = updates()
  if name == 'initialize':
    return [(state,)]
  parts = [(part,) for part in (*state, *secrets_of(state)[:2])]
  alone = [({'state': state},), ([state],), (learning_state(state),), (state, state), *parts]
  if name != 'next':
    return [*alone, (state, given)]
  return [(given, state), (state, [state]), (state, secrets_of(state)), (state,), *alone]


def secret_digits(state: Any) -> leaks.Secrets:
  return leaks.Secrets([*secrets_of(state), *secrets_of(updates())])


def check_wrong_state(of: Made, other: Made) -> None:
  with leaks.refused(other.secrets):
    of.computations['next'](other.state, updates())
  if 'skip_row' in of.computations:
    with leaks.refused(other.secrets):
      of.computations['skip_row'](other.state)


def check_misuse(of: Made) -> None:
  for name, computation in of.computations.items():
    for arguments in wrong_arguments(name, of.state):
      with leaks.refused(of.secrets):
        computation(*arguments)


def hand_made_state(adaptive_too: bool) -> Any:
  noise = streams.StreamState(
    seed=np.int64([8154468547356303393, -4267709036427907120]),
    row=np.int64(3),
    row_stddev=np.float64(1.0),
    buffers=graph.Buffers(
      vectors=[np.array([8388608.4881350, 7151893.25])], square=np.float64(7894561.5)
    ),
    trail=np.int64(5488135039273247),
  )
  if adaptive_too:
    return adaptive.AdaptiveState(inner=(), noise=noise, clip_norm=np.float32(0.5))
  return fixed.AggregatorState(inner=(), noise=noise)


@pytest.mark.parametrize('adaptive_too', [False, True])
def test_nothing_that_shows_a_state_shows_its_secrets(adaptive_too, caplog):
  state = hand_made_state(adaptive_too)
  secret = secret_digits(state)
  learning = learning_state(state)
  checkpoint = checkpoints.Checkpoint(num_rounds=3, state=learning, measurements={})
  shown = []
  for value in (state, state.noise, state.noise.buffers, learning, checkpoint):
    shown += [repr(value), str(value), f'{value}', '%s' % [value], pprint.pformat(value)]
    shown += [reprlib.repr(value), repr({'state': value})]
    logging.getLogger().error('the state is %r', value)
  for text in (*shown, caplog.text):
    assert not secret.found_in(text), text
  assert 'seed=<int64, (2,)>' in repr(learning)


def test_a_noise_seed_is_not_shown():
  seed = 8154468547356303393
  secret = leaks.Secrets([np.int64(seed)])
  made = dict(noise_multiplier=1.0, clip_norm=1.0, report_goal=2)
  seeded = factories.CorrelatedNoiseFactory(
    every_family.example('identity', 4), **made, noise_seed=seed
  )
  assert not secret.found_in(f'{seeded!r} {seeded}')
  with leaks.refused(secret, ValueError):
    factories.CorrelatedNoiseFactory(
      every_family.example('identity', 4), **made, noise_seed=str(seed)
    )


@pytest.mark.slow
def test_a_state_of_another_kind():
  of = made('blt', placement.STATE, 'fixed')
  for other in (
    made('banded', placement.STATE, 'fixed'),
    made('blt', placement.ENGINE, 'fixed'),
    made('blt', placement.STATE, 'adaptive'),
    made_as_query(),
  ):
    check_wrong_state(of, other)
  check_misuse(of)


@pytest.mark.slow
def test_a_state_of_another_kind_in_tffs_own_aggregator():
  of = made_as_query()
  check_wrong_state(of, made('blt', placement.STATE, 'fixed'))
  check_misuse(of)
