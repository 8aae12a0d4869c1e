"""A made-up Llama of 4 small layers, and units with random tokens."""

import types

import jax.numpy as jnp
import numpy as np

from experiments.finetune import data, model, settings, train

CONFIG = model.Config(4, 16, 4, 2, 100.0, 1e-5)
NUM_TOKENS = 31
NUM_VALUES = 8  # outputs of the matrix of values: two groups


class Letters:
  """Tokenizer whose tokens are letters."""

  def encode(self, text):
    return types.SimpleNamespace(ids=[ord(letter) % NUM_TOKENS for letter in text])


def network(*, num_trained=2, rank=3, dtype=np.float32) -> model.Model:
  """Returns a model whose last layers have additions."""
  generator = np.random.default_rng(5)
  draw = lambda *shape: jnp.asarray(generator.normal(size=shape) / 4, dtype)
  width, values, wide = CONFIG.width, NUM_VALUES, 24
  layers = lambda count: {
    'attn_norm': 1 + draw(count, width),
    'attn_q': draw(count, width, width),
    'attn_k': draw(count, width, values),
    'attn_v': draw(count, width, values),
    'attn_output': draw(count, width, width),
    'ffn_norm': 1 + draw(count, width),
    'ffn_gate': draw(count, width, wide),
    'ffn_up': draw(count, width, wide),
    'ffn_down': draw(count, wide, width),
  }
  embedding = 4 * draw(NUM_TOKENS, width)
  return model.Model(
    config=CONFIG,
    tokenizer=Letters(),
    lower=layers(CONFIG.num_layers - num_trained),
    upper=layers(num_trained),
    ends={'embedding': embedding, 'head': embedding, 'norm': 1 + draw(width)},
    a=draw(num_trained, width, rank),
  )


def task(*, num_units=30, length=12, seed=0, **given) -> train.Task:
  """Returns a task of 14 rounds with 2 units each; units are named by people.

  Args:
    given: settings, such as `blocks`, of which each unit then has 1, 2, …
  """
  given = dict(rounds_per_person=1, blocks=1, clip_norm=0.1, tokens=length) | given
  chosen = settings.chosen(num_units, {**given, 'seed': seed})
  frozen, generator = network(), np.random.default_rng(9)
  counts = 1 + np.arange(num_units) % chosen.blocks
  tokens = generator.integers(0, NUM_TOKENS, (counts.sum(), length + 1), np.int32)
  tokens[::3, -4:] = data.PADDING
  held_out = generator.integers(0, NUM_TOKENS, (5, length + 1), np.int32)
  features = lambda rows: np.asarray(frozen.features(rows[:, :-1]), np.float16)
  return train.Task(
    settings=chosen,
    model=frozen,
    names=[f'Ada Lovelace {i}' for i in range(num_units)],
    starts=np.cumsum([0, *counts]),
    features=features(tokens),
    tokens=tokens,
    held_out=features(held_out),
    held_out_tokens=held_out,
  )
