"""Normals of JAX on its device, and rounds whose updates JAX computes there."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fl_dpftrl as dpftrl
from benchmarks.sides import aggregator
from experiments.finetune import model, settings, train

WORDS, EMBEDDING, HIDDEN = 10_004, 96, 670
CLIENTS, BATCHES, SENTENCES, LENGTH = 100, 4, 16, 20
CLIP_NORM, RATE = 0.3, 0.5
# Sizes of SmolLM2-135M, which `make finetune` has; its weights need a download.
WIDTH, TOKENS, FEED = 576, 49_152, 1536
CONFIG = model.Config(
  num_layers=30, width=WIDTH, num_heads=9, num_groups=3, rope_base=1e5, norm_epsilon=1e-5
)
PEOPLE = 40


def device() -> str:
  """Returns the name of JAX's device."""
  return jax.devices()[0].device_kind


def normals(size: int, repeats: int) -> dict[str, list[float]]:
  """Returns seconds of float32 normals, once made, and once they are NumPy's."""
  drawn = jax.jit(lambda key: jax.random.normal(key, (size,)))
  keys = list(jax.random.split(jax.random.PRNGKey(0), repeats + 1))
  np.asarray(drawn(keys[-1]))
  made, fetched = [], []
  for key in keys[:-1]:
    start = time.perf_counter()
    values = drawn(key).block_until_ready()
    made.append(time.perf_counter() - start)
    np.asarray(values)
    fetched.append(time.perf_counter() - start)
  return {'normals': made, 'fetched': fetched}


def measure(work: str, repeats: int) -> dict[str, list[float]]:
  """Returns seconds of each part of a round."""
  count, task = {'lstm': (CLIENTS, lstm), 'finetune': (PEOPLE, finetune)}[work]
  template, updates = task()
  parts: dict[str, list[float]] = {
    name: [] for name in ('computing', 'fetching', 'releasing', 'seconds')
  }
  weights = template
  with (
    aggregator.folder() as place,
    dpftrl.PrivateAggregator(
      'blt-b400',
      template=template,
      noise_multiplier=1.0,
      clip_norm=CLIP_NORM,
      report_goal=count,
      folder=place,
    ) as opened,
  ):
    for t in range(repeats + 1):  # The first compiles.
      times = [time.perf_counter()]
      made = jax.block_until_ready(updates(weights, t))
      times.append(time.perf_counter())
      made = jax.tree.map(np.asarray, made)
      times.append(time.perf_counter())
      with opened.round(range(count)) as round_:
        round_.add_batch(made)
      weights = jax.tree.map(np.add, weights, round_.mean)
      times.append(time.perf_counter())
      if t:
        for name, seconds in zip(parts, [*np.diff(times), times[-1] - times[0]]):
          parts[name].append(float(seconds))
  return parts


def lstm() -> tuple[Any, Callable[[Any, int], Any]]:
  """Returns the papers' LSTM, and the updates of 100 clients, each of one pass."""
  rng = np.random.default_rng(0)
  drawn = lambda *shape: (rng.normal(size=shape) / shape[0] ** 0.5).astype(np.float32)
  weights = {
    'embedding': drawn(WORDS, EMBEDDING),
    'kernel': drawn(EMBEDDING, 4 * HIDDEN),
    'recurrent': drawn(HIDDEN, 4 * HIDDEN),
    'bias': np.zeros(4 * HIDDEN, np.float32),
    'projection': drawn(HIDDEN, EMBEDDING),
    'projection_bias': np.zeros(EMBEDDING, np.float32),
    'output': drawn(EMBEDDING, WORDS),
    'output_bias': np.zeros(WORDS, np.float32),
  }

  def loss(w, words):
    x = w['embedding'][words[:, :-1]].swapaxes(0, 1) @ w['kernel'] + w['bias']

    def step(carry, at):
      hidden, cell = carry
      i, f, g, o = jnp.split(at + hidden @ w['recurrent'], 4, axis=-1)
      cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
      hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
      return (hidden, cell), hidden

    zeros = jnp.zeros((len(words), HIDDEN))
    _, hidden = jax.lax.scan(step, (zeros, zeros), x)
    y = hidden @ w['projection'] + w['projection_bias']
    logits = y @ w['output'] + w['output_bias']
    picked = jnp.take_along_axis(logits, words[:, 1:].T[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - picked).mean()

  def update(w, batches):
    def step(trained, batch):
      gradient = jax.grad(loss)(trained, batch)
      return jax.tree.map(lambda a, g: a - RATE * g, trained, gradient), None

    trained, _ = jax.lax.scan(step, w, batches)
    return jax.tree.map(jnp.subtract, trained, w)

  of_all = jax.jit(jax.vmap(update, (None, 0)))
  shape = (CLIENTS, BATCHES, SENTENCES, LENGTH + 1)
  text = jnp.asarray(rng.integers(WORDS, size=shape, dtype=np.int32))
  return weights, lambda w, t: of_all(w, jnp.roll(text, t, 0))


def finetune() -> tuple[Any, Callable[[Any, int], Any]]:
  """Returns the additions of `make finetune`, and the updates of 40 people."""
  rng = np.random.default_rng(0)
  drawn = lambda *shape: jnp.asarray(rng.normal(size=shape) / shape[-2] ** 0.5, jnp.float32)
  groups = WIDTH // 3
  shapes = {
    'attn_q': (WIDTH, WIDTH),
    'attn_k': (WIDTH, groups),
    'attn_v': (WIDTH, groups),
    'attn_output': (WIDTH, WIDTH),
    'ffn_gate': (WIDTH, FEED),
    'ffn_up': (WIDTH, FEED),
    'ffn_down': (FEED, WIDTH),
  }

  def layers(count: int) -> model.Weights:
    made = {name: drawn(count, *shape) for name, shape in shapes.items()}
    return made | {name: jnp.ones((count, WIDTH)) for name in ('attn_norm', 'ffn_norm')}

  chosen = settings.Settings()
  embedding = drawn(TOKENS, WIDTH)
  frozen = model.Model(
    config=CONFIG,
    lower=layers(CONFIG.num_layers - chosen.layers),
    upper=layers(chosen.layers),
    ends={'embedding': embedding, 'head': embedding, 'norm': jnp.ones(WIDTH)},
    a=drawn(chosen.layers, WIDTH, chosen.rank),
  )
  tokens = rng.integers(train.WORDS, size=(PEOPLE, chosen.tokens + 1), dtype=np.int32)
  task = train.Task(
    settings=chosen,
    model=frozen,
    names=[],
    starts=np.arange(PEOPLE + 1),
    tokens=tokens,
    held_out_tokens=tokens,
    features=np.asarray(frozen.features(tokens[:, :-1]), np.float16),
  )
  return frozen.zeros, lambda b, t: task.updates(range(PEOPLE), b)[0]
