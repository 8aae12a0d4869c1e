"""Federated averaging in JAX and optax, which resumes: python examples/jax_optax.py runs/jax"""

import pathlib
import sys

import jax
import numpy as np
import optax

import fl_dpftrl as dpftrl
from fl_dpftrl.adapters.optax import private_mean

TRUE, SCHEMA = np.linspace(-2, 2, 16, dtype='float32'), dpftrl.MinSep(num_rounds=60, min_sep=10)


def update_of(device: int, weights: jax.Array) -> jax.Array:
  x = np.random.default_rng(device).normal(size=(32, 16)).astype(np.float32)
  return 0.2 * x.T @ (x @ (weights - TRUE)) / len(x)


def main(folder: pathlib.Path) -> None:
  weights, path = jax.numpy.zeros(16), folder / 'model.npz'
  with dpftrl.PrivateAggregator(
    'blt-b100',
    template=weights,
    noise_multiplier=1.0,
    clip_norm=0.3,
    report_goal=20,
    folder=folder,
    participation=SCHEMA,
    delta=1e-6,
  ) as aggregator:
    optimizer = optax.chain(private_mean(aggregator), optax.adam(0.05))
    leaves, tree = jax.tree.flatten((weights, optimizer.init(weights)))
    if not path.exists():
      aggregator.require_new()  # A run that has rounds has lost its model.
      np.savez(path, *leaves)
    weights, state = jax.tree.unflatten(tree, np.load(path).values())
    while (t := aggregator.next_round) < aggregator.max_rounds:
      cohort = aggregator.admissible(np.random.default_rng(t).permutation(400), at_most=20)
      updates = jax.numpy.stack([update_of(int(device), weights) for device in cohort])
      changes, state = optimizer.update(updates, state, weights, device_ids=cohort)
      weights = optax.apply_updates(weights, changes)
      np.savez(folder / 'new.npz', *jax.tree.leaves((weights, state)))
      (folder / 'new.npz').replace(path)  # Whole or not at all.
      print(f'distance {np.linalg.norm(weights - TRUE):.3f}, {aggregator.privacy_loss()}')


if __name__ == '__main__':
  main(pathlib.Path(*sys.argv[1:] or ['runs/jax']))
