"""Central training on sampled batches: examples/central.py, and jax-privacy's execution plan."""

import importlib.util
import pathlib
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import flatten_util

import fl_dpftrl as dpftrl
from benchmarks import runner
from benchmarks.sides import aggregator
from fl_dpftrl.participation import accountant
from fl_dpftrl.participation.rules import sampling

BATCH, NUM_BANDS = 256, 16
CLIP_NORM, LEARNING_RATE, MOMENTUM = 1.0, 0.5, 0.9
MULTIPLE = 64  # Batches of either side are filled up to a multiple of it.
BLOCK, WARM, BLOCKS = 50, 2, 5  # Batches of most sizes were compiled after two blocks of steps.
PIXELS, HIDDEN, CLASSES, IMAGES = 784, 32, 10, 20_000
NO_TARGET = {'epsilon': None, 'delta': None}


class Model(NamedTuple):
  """A model: examples/central.py, which trains it, its examples, and the loss of one of these."""

  trainer: ModuleType
  data: Any
  loss: Callable[..., jax.Array]

  def scheme(self, num_rounds: int, num_bands: int) -> sampling.Sampled:
    """Returns how batches are drawn."""
    sizes = dict(num_examples=len(self.data.y), batch_size=BATCH, num_parts=num_bands)
    return sampling.CyclicPoisson(num_rounds=num_rounds, **sizes)


def build(name: str) -> Model:
  """Returns the text model of the example, or a network on random images: only its time matters."""
  path = runner.HERE.parent / 'examples' / 'central.py'
  spec = importlib.util.spec_from_file_location('central_example', path)
  trainer = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(trainer)
  if name == 'text':
    return Model(trainer, trainer.text()['train'], trainer.loss)
  rng = np.random.default_rng(0)

  def initial(seed: int):
    first, second = jax.random.split(jax.random.PRNGKey(seed))
    return {
      'hidden': jax.random.normal(first, (PIXELS, HIDDEN)) / PIXELS**0.5,
      'hidden_bias': jnp.zeros(HIDDEN),
      'output': jax.random.normal(second, (HIDDEN, CLASSES)) / HIDDEN**0.5,
      'output_bias': jnp.zeros(CLASSES),
    }

  def loss(weights, x, y):
    hidden = jnp.tanh(x @ weights['hidden'] + weights['hidden_bias'])
    return -jax.nn.log_softmax(hidden @ weights['output'] + weights['output_bias'])[y]

  trainer.initial, trainer.gradients = initial, trainer.of_each_example(loss)
  x = rng.normal(size=(IMAGES, PIXELS)).astype(np.float32)
  return Model(trainer, trainer.Examples(x, rng.integers(CLASSES, size=IMAGES)), loss)


def strategy(num_rounds: int, num_bands: int) -> dpftrl.Strategy:
  """Returns our banded strategy."""
  once = dpftrl.MinSep(num_rounds=num_rounds, max_participations=1)
  return dpftrl.optimize('banded_toeplitz', once, objective='rms', num_bands=num_bands)


def ours(
  model: Model, made, scheme, noise_multiplier: float, seed: int, tell: Callable[[], None]
) -> Any:
  """Returns the weights that examples/central.py trains; tells each round."""
  with aggregator.folder() as place:
    setting = model.trainer.Setting(
      folder=pathlib.Path(place) / 'run',
      scheme=scheme,
      strategy=made,
      noise_multiplier=noise_multiplier,
      clip_norm=CLIP_NORM,
      learning_rate=LEARNING_RATE,
      momentum=MOMENTUM,
      seed=seed,
      block=8 * MULTIPLE,
      save_every=BLOCK,
    )
    return model.trainer.train(setting, model.data, lambda *state: tell())


def plan(model: Model, num_rounds: int, num_bands: int, **noise: float | None):
  """Returns jax-privacy's plan."""
  from jax_privacy.experimental import execution_plan

  return execution_plan.BandMFExecutionPlanConfig.default(
    num_bands=num_bands,
    iterations=num_rounds,
    l2_clip_norm=CLIP_NORM,
    normalize_by=float(BATCH),
    sampling_prob=BATCH / (len(model.data.y) // num_bands),
    noise_seed=None,
    **noise,
  ).plan


def steps(model: Model, plan, seed: int) -> Iterator[tuple[Any, Any]]:
  """Yields weights and momentum after each step of jax-privacy's plan."""
  from jax_privacy import batch_selection

  optimizer = optax.sgd(LEARNING_RATE, MOMENTUM)
  clipped = plan.clipped_grad(model.loss, batch_argnums=(1, 2), keep_batch_dim=False)

  def step(weights, state, x, y, is_padding):
    noise, momentum = state
    mean = clipped(weights, x, y, is_padding_example=is_padding)
    private, noise = plan.noise_addition_transform.update(mean, noise)
    changes, momentum = optimizer.update(private, momentum)
    return optax.apply_updates(weights, changes), (noise, momentum)

  compiled = jax.jit(step, donate_argnums=(0, 1))
  weights = model.trainer.initial(seed)
  state = plan.noise_addition_transform.init(weights), optimizer.init(weights)
  for ids in plan.batch_selection_strategy.batch_iterator(len(model.data.y)):
    padded = batch_selection.pad_to_multiple_of(ids, MULTIPLE)
    x, y = model.data.x[padded], model.data.y[padded]
    weights, state = compiled(weights, state, x, y, padded < 0)
    yield weights, state[1]


def measure(side: str, name: str) -> dict[str, float]:
  """Returns milliseconds a step, by the clock and of the processor: the median of blocks."""
  model, num_rounds, times = build(name), (WARM + BLOCKS) * BLOCK, []
  tell = lambda: times.append((time.perf_counter(), time.process_time()))
  if side == 'peer':
    peer = steps(model, plan(model, num_rounds, NUM_BANDS, noise_multiplier=1.0, **NO_TARGET), 0)
    with aggregator.folder() as place:
      for index, (weights, momentum) in enumerate(peer):
        jax.block_until_ready(weights)
        if (index + 1) % BLOCK == 0:
          velocity = flatten_util.ravel_pytree(momentum)[0]
          model.trainer.save(pathlib.Path(place) / 'model.npz', weights, velocity)
        tell()
  else:
    scheme = model.scheme(num_rounds, NUM_BANDS)
    ours(model, strategy(num_rounds, NUM_BANDS), scheme, 1.0, 0, tell)
  ends = np.array(times[WARM * BLOCK - 1 :: BLOCK])
  ms, cpu_ms = (1e3 * np.median(np.diff(ends, axis=0), axis=0) / BLOCK).tolist()
  return {'ms': ms, 'cpu_ms': cpu_ms}


def utility(
  side: str, num_bands: int, num_rounds: int, epsilon: float, delta: float, seeds: int
) -> dict[str, Any]:
  """Returns test accuracies by seed at equal ε, and the noise."""
  model, start = build('text'), time.process_time()
  if side == 'peer':
    event = plan(model, num_rounds, num_bands, epsilon=epsilon, delta=delta).dp_event
    while not hasattr(event, 'noise_multiplier'):
      event = event.event if hasattr(event, 'event') else event.events[0]
    # The event's noise multiplier is std(Z) over the sensitivity, for columns of any norm.
    effective = float(event.noise_multiplier)

    def train(seed: int) -> Any:  # Each with a key of its own.
      made = plan(model, num_rounds, num_bands, noise_multiplier=effective, **NO_TARGET)
      *_, (weights, _) = steps(model, made, seed)
      return weights

  else:
    made, scheme = strategy(num_rounds, num_bands), model.scheme(num_rounds, num_bands)
    planned = accountant.calibrate(made, scheme, epsilon=epsilon, delta=delta)
    effective = planned.effective_noise_multiplier
    train = lambda seed: ours(model, made, scheme, planned.noise_multiplier, seed, lambda: None)
  test = model.trainer.text()['test']
  accuracies = [model.trainer.accuracy(train(seed), test) for seed in range(seeds)]
  cpu_seconds = time.process_time() - start
  return dict(accuracies=accuracies, effective_noise_multiplier=effective, cpu_seconds=cpu_seconds)
