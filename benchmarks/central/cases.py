"""Models of the benchmark of central training, in JAX: the same functions for both sides."""

import dataclasses
import importlib.util
import pathlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.central import names

ROOT = pathlib.Path(__file__).parents[2]
BATCH = names.SETTINGS['batch']
CLIP_NORM, LEARNING_RATE, MOMENTUM = 1.0, 0.5, 0.9
MULTIPLE = 32  # Batches of either side are filled up to a multiple of it.
PIXELS, HIDDEN, CLASSES, IMAGES = 784, 32, 10, 20_000


def trainer() -> ModuleType:
  """Returns examples/central.py."""
  spec = importlib.util.spec_from_file_location('central', ROOT / 'examples' / 'central.py')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@dataclasses.dataclass(frozen=True)
class Case:
  """A model with its data.

  Attributes:
    name: of the case.
    x, y: examples.
    initial: returns weights from a seed.
    loss: loss of one example: (weights, x, y) → a number.
    num_bands: of the timed strategy.
    num_rounds: of the timed strategy.
  """

  name: str
  x: np.ndarray
  y: np.ndarray
  initial: Callable[[int], Any]
  loss: Callable[..., jax.Array]
  num_bands: int = 16
  num_rounds: int = 1000


def text() -> Case:
  """The model of examples/central.py: 2,848 parameters."""
  module = trainer()
  data = module.text()['train']
  return Case('text', data.x, data.y, module.initial, module.loss)


def images() -> Case:
  """A network with one hidden layer on random images: 25,450 parameters; only time matters."""
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

  x = rng.normal(size=(IMAGES, PIXELS)).astype(np.float32)
  return Case('images', x, rng.integers(CLASSES, size=IMAGES), initial, loss)


CASES = {'text': text, 'images': images}
