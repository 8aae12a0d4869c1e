"""Training in one place, in JAX: banded noise, amplified by batches that are drawn in secret.

    python examples/central.py runs/central

A network learns ten classes of 20,000 examples. Rounds take turns at as many parts of them as the
strategy has bands, and include each example of their part independently (Choquette-Choo et al.
2023, algorithm 2). The privacy of one example is protected: each has a gradient of its own, bounded
and summed by the aggregator, and the log of batches proves ε.

Interrupt it and start it again: it goes on with the next batch.
"""

import pathlib
import secrets
import sys

import jax
import jax.numpy as jnp
import numpy as np

import fl_dpftrl as dpftrl
from fl_dpftrl.centralized import amplification, partition, sampling

EXAMPLES, BATCH, ROUNDS, BANDS, EPSILON, DELTA = 20_000, 200, 300, 8, 4.0, 1e-5
SIZE, HIDDEN, CLASSES = 32, 32, 10
CENTRES = 1.2 * np.random.default_rng(0).normal(size=(CLASSES, SIZE))


def examples(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
  rng = np.random.default_rng(seed)
  classes = rng.integers(CLASSES, size=count)
  points = CENTRES[classes] + 2.0 * rng.normal(size=(count, SIZE))
  return points.astype(np.float32), classes


def initial() -> dict[str, jax.Array]:
  first, second = jax.random.split(jax.random.PRNGKey(0))
  return {
    'hidden': jax.random.normal(first, (SIZE, HIDDEN)) / SIZE**0.5,
    'output': jax.random.normal(second, (HIDDEN, CLASSES)) / HIDDEN**0.5,
  }


def logits(parameters, x):
  return jnp.tanh(x @ parameters['hidden']) @ parameters['output']


def loss(parameters, x, of):
  return -jax.nn.log_softmax(logits(parameters, x))[of]


gradients = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0, 0)))  # One of each example.


def main(folder: pathlib.Path) -> None:
  points, classes = examples(1, EXAMPLES)
  x_test, test_classes = examples(2, 5000)
  scheme = sampling.CyclicPoisson(
    num_rounds=ROUNDS, num_examples=EXAMPLES, batch_size=BATCH, num_parts=BANDS
  )
  once = dpftrl.MinSep(num_rounds=ROUNDS, min_sep=ROUNDS)  # Sampling accounts for the rest.
  stored, known = folder / 'model.npz', folder / 'strategy.json'
  if known.exists():  # The same to the last bit.
    strategy = dpftrl.load_strategy(known)
  else:
    strategy = dpftrl.optimize('banded', once, objective='rms', num_bands=BANDS)
  planned = amplification.calibrate(strategy, scheme, epsilon=EPSILON, delta=DELTA)
  print(f'{BANDS} bands, noise multiplier {planned.noise_multiplier:.3f} for ε = {EPSILON}')
  parameters = initial()
  velocity = jax.tree.map(jnp.zeros_like, parameters)
  # A secret seed: whoever knows the batches has no amplified guarantee against them. Rounds are
  # drawn independently, so another start may draw the rest from another seed.
  batches = partition.Partition(scheme=scheme, seed=secrets.randbits(128))
  padded = 2 * BATCH  # One shape of arrays, which is compiled once.
  with dpftrl.PrivateAggregator(
    strategy,
    template=parameters,
    noise_multiplier=planned.noise_multiplier,
    clip_norm=1.0,
    report_goal=BATCH,
    folder=folder,
    sampling=scheme,
    delta=DELTA,
  ) as aggregator:
    if stored.exists():
      _, tree = jax.tree.flatten((parameters, velocity))
      with np.load(stored) as arrays:
        parameters, velocity = jax.tree.unflatten(tree, [arrays[name] for name in arrays])
    for batch in batches.rounds(aggregator.next_round):
      chosen = batch.device_ids[:padded]
      places = np.resize(chosen, padded) if chosen.size else np.zeros(padded, int)
      each = jax.tree.map(np.asarray, gradients(parameters, points[places], classes[places]))
      with aggregator.round(batch.device_ids) as round_:
        for i in range(chosen.size):
          round_.add({name: part[i] for name, part in each.items()})
      velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, round_.mean)
      parameters = jax.tree.map(lambda p, v: p - 0.5 * v, parameters, velocity)
      np.savez(folder / 'new.npz', *jax.tree.leaves((parameters, velocity)))
      (folder / 'new.npz').replace(stored)  # Whole or not at all.
      if aggregator.next_round % 50 == 0:
        right = np.argmax(logits(parameters, x_test), axis=1) == test_classes
        print(
          f'round {aggregator.next_round}: accuracy {100 * right.mean():.1f} %,'
          f' ε {aggregator.epsilon():.2f} at δ = {DELTA:g}'
        )


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else 'runs/central'))
