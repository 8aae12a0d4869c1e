"""Training in one place, in JAX: banded noise, amplified by batches that are drawn in secret.

    python examples/central.py runs/central --epsilon=4
    python examples/central.py runs/dpsgd --epsilon=4 --bands=1

A network learns the next character of Python's documentation from the six before it. The
unit of privacy is one example, a window of seven characters: the aggregator bounds the gradient of
each, and sums them in whole numbers. Rounds take turns at as many parts
of the examples as the strategy has bands, and draw their batch from their part (Choquette-Choo et
al. 2023, algorithm 2). The log of batches proves ε. A run that was interrupted, also by SIGKILL,
goes on with the same command.
"""

import argparse
import dataclasses
import functools
import os
import pathlib
import pydoc_data.topics
import re
import secrets
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import flatten_util

import fl_dpftrl as dpftrl
from fl_dpftrl.participation import accountant
from fl_dpftrl.participation.rules import sampling
from fl_dpftrl.planning.simulation import partition

ALPHABET = ' abcdefghijklmnopqrstuvwxyz.,_-~'  # The last stands for all others.
CONTEXT, EMBEDDING, HIDDEN = 6, 8, 32
SCHEMES = {'poisson': sampling.CyclicPoisson, 'fixed_size': sampling.CyclicFixedSize}
MODEL_NAME, SEED_NAME = 'model.npz', 'batches.secret'
Parameters = dict[str, jax.Array]


# ------------------------------------------------------------------- Data: replace it by yours.


@dataclasses.dataclass(frozen=True)
class Examples:
  """Examples: contexts, int32, shape [examples, CONTEXT], and the characters that follow."""

  x: np.ndarray
  y: np.ndarray


@functools.cache
def text() -> dict[str, Examples]:
  """Returns disjoint windows of the documentation: training, validation and test (8 : 1 : 1)."""
  topics = pydoc_data.topics.topics
  words = re.sub(r'\s+', ' ', ' '.join(topics[name] for name in sorted(topics)).lower())
  places = {character: place for place, character in enumerate(ALPHABET)}
  codes = np.array([places.get(c, len(ALPHABET) - 1) for c in words], np.int32)
  windows = codes[: codes.size - codes.size % (CONTEXT + 1)].reshape(-1, CONTEXT + 1)
  ends = len(windows) * 8 // 10, len(windows) * 9 // 10
  parts = np.split(windows, ends)
  return {
    name: Examples(part[:, :-1], part[:, -1])
    for name, part in zip(('train', 'validation', 'test'), parts)
  }


# ------------------------------------------------------------------ Model: replace it by yours.


def initial(seed: int) -> Parameters:
  keys = jax.random.split(jax.random.PRNGKey(seed), 3)
  size = len(ALPHABET)
  return {
    'embedding': jax.random.normal(keys[0], (size, EMBEDDING)),
    'hidden': jax.random.normal(keys[1], (CONTEXT * EMBEDDING, HIDDEN))
    / (CONTEXT * EMBEDDING) ** 0.5,
    'output': jax.random.normal(keys[2], (HIDDEN, size)) / HIDDEN**0.5,
    'bias': jnp.zeros(size),
  }


def logits(parameters: Parameters, context: jax.Array) -> jax.Array:
  hidden = jnp.tanh(parameters['embedding'][context].reshape(-1) @ parameters['hidden'])
  return hidden @ parameters['output'] + parameters['bias']


def loss(parameters: Parameters, context: jax.Array, following: jax.Array) -> jax.Array:
  return -jax.nn.log_softmax(logits(parameters, context))[following]


def of_each_example(loss: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
  """Returns the function of parameters and examples to the gradient of each: a row of one array.

  One array is made and summed faster than one for each part of the model.
  """
  gradient = lambda *at: flatten_util.ravel_pytree(jax.grad(loss)(*at))[0]
  return jax.jit(jax.vmap(gradient, in_axes=(None, 0, 0)))


gradients = of_each_example(loss)


@jax.jit
def predictions(parameters: Parameters, contexts: jax.Array) -> jax.Array:
  return jax.vmap(logits, in_axes=(None, 0))(parameters, contexts).argmax(axis=1)


def accuracy(parameters: Parameters, examples: Examples) -> float:
  return float((np.asarray(predictions(parameters, examples.x)) == examples.y).mean())


# ------------------------------------------------------------------------------------- Training.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """Setting of a run.

  Attributes:
    folder: of the run; only its owner may read it, since the log tells whose examples were drawn.
    scheme: how batches are drawn; it has as many parts as the strategy has bands, or more.
    strategy: banded noise, or independent noise (one band).
    noise_multiplier: std(Z) / clip_norm; 0 for a run without noise, which guarantees nothing.
    delta: δ at which ε is stated.
    clip_norm: L2 bound on an example's gradient.
    learning_rate, momentum: of the steps that the private means make.
    seed: seed of the initial weights; never of batches or noise.
    block: most examples whose gradients are computed at once.
    save_every: rounds that are recorded at a time, with a model on disk after the last. A killed
      run loses them: its model never gets what they released.
  """

  folder: pathlib.Path
  scheme: sampling.Sampled
  strategy: dpftrl.Strategy
  noise_multiplier: float
  delta: float = 1e-5
  clip_norm: float = 1.0
  learning_rate: float = 0.5
  momentum: float = 0.9
  seed: int = 0
  block: int = 512
  save_every: int = 50


def train(
  setting: Setting,
  examples: Examples,
  tell: Callable[[int, Parameters, dpftrl.PrivateAggregator], None] = lambda *told: None,
) -> Parameters:
  """Trains to the scheme's last round, from where the folder's run stands, and returns the model.

  Args:
    setting: of the run.
    examples: to train on, as many as the scheme says.
    tell: takes the number of rounds, the model and the aggregator after each round.
  """
  if len(examples.y) != setting.scheme.num_examples:
    raise ValueError(
      f'the scheme is of {setting.scheme.num_examples} examples, not {len(examples.y)}'
    )
  setting.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
  weights = initial(setting.seed)
  with dpftrl.PrivateAggregator(
    setting.strategy,
    template=flatten_util.ravel_pytree(weights)[0],
    noise_multiplier=setting.noise_multiplier,
    clip_norm=setting.clip_norm,
    report_goal=max(1, round(setting.scheme.batch_size)),
    folder=setting.folder,
    participation=setting.scheme,
    delta=setting.delta,
  ) as aggregator:
    seed = secret_seed(setting.folder / SEED_NAME, is_new=aggregator.next_round == 0)
    batches = partition.rounds(setting.scheme, seed, first=aggregator.next_round)
    if not (path := setting.folder / MODEL_NAME).exists():
      aggregator.require_new()  # A run that has rounds has lost its model.
      save(path, weights, jnp.zeros_like(flatten_util.ravel_pytree(weights)[0]))
    weights, velocity = load(path, weights)
    ids = (batch.device_ids for batch in batches)
    for round_ in aggregator.rounds(ids, reserve=setting.save_every):
      with round_:
        for places, count in blocks(round_.device_ids, setting.block):
          each = gradients(weights, examples.x[places], examples.y[places])
          round_.add_batch(each, count=count)
      weights, velocity = step(
        weights, velocity, round_.mean, setting.learning_rate, setting.momentum
      )
      done = round_.index + 1
      if done % setting.save_every == 0 or done == setting.scheme.num_rounds:
        save(setting.folder / MODEL_NAME, weights, velocity)
      tell(done, weights, aggregator)
  return weights


@jax.jit
def step(weights, velocity, mean, learning_rate, momentum):
  """Takes a step of gradient descent with momentum: whatever it makes of a mean is as private."""
  velocity = momentum * velocity + mean
  flat, unravel = flatten_util.ravel_pytree(weights)
  return unravel(flat - learning_rate * velocity), velocity


def blocks(ids: np.ndarray, most: int) -> Iterator[tuple[np.ndarray, int]]:
  """Yields the places of examples, at most so many at once, and how many of them count.

  Arrays are filled up to one of eight sizes, each compiled once. A batch is never cut short: that
  would not be the scheme's batch.
  """
  for start in range(0, len(ids), most):
    chosen = ids[start : start + most]
    multiple = max(1, most // 8)
    yield np.resize(chosen, -(-len(chosen) // multiple) * multiple), len(chosen)


def secret_seed(path: pathlib.Path, *, is_new: bool) -> int:
  """Returns the seed of all batches, which is made once: whoever knows it knows the batches.

  Raises:
    ValueError: if it is gone.
  """
  if not path.exists():
    if not is_new:
      raise ValueError(f'{path} is gone, and its batches cannot go on; name another folder')
    made = path.with_suffix('.new')
    made.unlink(missing_ok=True)
    with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), 'w') as stream:
      stream.write(f'{secrets.randbits(128):032x}')
      stream.flush()
      os.fsync(stream.fileno())
    made.replace(path)
  return int(path.read_text(), 16)


def save(path: pathlib.Path, weights: Parameters, velocity: jax.Array) -> None:
  """Writes the model whole or not at all."""
  made = path.with_suffix('.new')
  with made.open('wb') as stream:
    np.savez(stream, **{f'weights_{name}': weights[name] for name in weights}, velocity=velocity)
    stream.flush()
    os.fsync(stream.fileno())
  made.replace(path)


def load(path: pathlib.Path, like: Parameters) -> tuple[Parameters, jax.Array]:
  """Returns weights and velocity of the latest model."""
  with np.load(path) as stored:
    weights = {name: jnp.asarray(stored[f'weights_{name}']) for name in like}
    return weights, jnp.asarray(stored['velocity'])


# --------------------------------------------------------------------------------- Command line.


def planned(
  scheme: sampling.Sampled, *, epsilon: float, delta: float, num_bands: int | None
) -> tuple[dpftrl.Strategy, dpftrl.Guarantee]:
  """Returns the banded strategy with the least noise for ε, and its guarantee.

  Args:
    scheme: how batches are drawn.
    epsilon, delta: target.
    num_bands: number of bands, 1 for DP-SGD; None to choose.
  """
  candidates = scheme.candidate_bands() if num_bands is None else (num_bands,)
  once = dpftrl.MinSep(num_rounds=scheme.num_rounds, max_participations=1)  # A turn of its part.
  strategies = (
    dpftrl.optimize('banded_toeplitz', once, objective='rms', num_bands=bands)
    for bands in candidates
  )
  return accountant.choose(strategies, scheme, epsilon=epsilon, delta=delta)


def main(arguments: list[str] | None = None) -> None:
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  add = parser.add_argument
  add('folder', type=pathlib.Path, help='folder of the run')
  add('--epsilon', type=float, default=4.0, help='target ε (default: 4)')
  add('--delta', type=float, default=1e-5, help='δ (default: 1e-5)')
  add('--sampling', choices=tuple(SCHEMES), default='poisson', help='how batches are drawn')
  add('--bands', type=int, help='bands of the strategy; 1 is DP-SGD (default: the best for ε)')
  add('--batch_size', type=int, default=256, help='expected examples a round (default: 256)')
  add('--num_rounds', type=int, default=1000, help='rounds (default: 1000)')
  add('--learning_rate', type=float, default=0.5, help='learning rate (default: 0.5)')
  add('--clip_norm', type=float, default=1.0, help='bound on a gradient (default: 1)')
  add('--seed', type=int, default=0, help='seed of the initial weights (default: 0)')
  args = parser.parse_args(arguments)
  data = text()
  try:
    scheme = SCHEMES[args.sampling](
      num_rounds=args.num_rounds, num_examples=len(data['train'].y), batch_size=args.batch_size
    )
    strategy, guarantee = planned(
      scheme, epsilon=args.epsilon, delta=args.delta, num_bands=args.bands
    )
    setting = Setting(
      folder=args.folder,
      scheme=guarantee.sampling,
      strategy=strategy,
      noise_multiplier=guarantee.noise_multiplier,
      delta=args.delta,
      clip_norm=args.clip_norm,
      learning_rate=args.learning_rate,
      seed=args.seed,
    )
    print(
      f'{setting.scheme.num_parts} bands, noise multiplier {setting.noise_multiplier} for ε ='
      f' {args.epsilon:g} at δ = {args.delta:g}; {scheme.num_examples:,} examples'
    )

    def tell(done: int, weights: Parameters, aggregator: dpftrl.PrivateAggregator) -> None:
      if done % max(1, args.num_rounds // 10) == 0 or done == args.num_rounds:
        reached = 100 * accuracy(weights, data['validation'])
        print(f'round {done}: validation {reached:.1f} %, {aggregator.privacy_loss()} by the log')

    weights = train(setting, data['train'], tell)
  except (ValueError, OSError) as problem:
    parser.error(str(problem))
  print(f'test accuracy {100 * accuracy(weights, data["test"]):.2f} %')


if __name__ == '__main__':
  main()
