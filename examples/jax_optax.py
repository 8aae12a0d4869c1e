"""Federated averaging in JAX: a private mean as the first step of any optax optimiser.

    python examples/jax_optax.py runs/jax

`private_mean` is a gradient transformation like optax.contrib.differentially_private_aggregate,
with BLT noise, a log and a budget. What the optimiser makes of the mean is post-processing, so adam
is as private as gradient descent.

Interrupt it and start it again: it goes on with the next round.
"""

import functools
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fl_dpftrl as dpftrl

DEVICES, COHORT, ROUNDS, SIZE = 400, 20, 60, 16
SCHEMA = dpftrl.MinSep(num_rounds=ROUNDS, min_sep=10)
TRUE = np.random.default_rng(0).normal(size=(SIZE, 3)).astype(np.float32)


def examples_of(device: int) -> tuple[np.ndarray, np.ndarray]:
  rng = np.random.default_rng(device)
  x = rng.normal(size=(32, SIZE)).astype(np.float32)
  return x, (x @ TRUE + rng.gumbel(size=(32, 3))).argmax(axis=1)


def loss(parameters, x, classes):
  logits = x @ parameters['kernel'] + parameters['bias']
  return optax.softmax_cross_entropy_with_integer_labels(logits, classes).mean()


def private_mean(aggregator: dpftrl.PrivateAggregator) -> optax.GradientTransformationExtraArgs:
  """Makes one private mean of updates with a leading axis, such as gradients by `jax.vmap`.

  Each call of `update` is a round, and takes the ids of the updates' devices, or examples, as
  `device_ids`. It writes files, so it is called outside `jax.jit`.
  """

  def update(updates, state, params=None, *, device_ids, **unused):
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(updates)):
      raise ValueError('private_mean writes files: call its update outside jax.jit')
    with aggregator.round(device_ids) as round_:
      round_.add_batch(updates)
    return round_.mean, state

  return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, 0, 0))
def updates_of(parameters, x, classes):
  """Returns what each device sends: minus its change of the model by four steps."""
  own = parameters
  for _ in range(4):
    own = jax.tree.map(lambda p, g: p - 0.2 * g, own, jax.grad(loss)(own, x, classes))
  return jax.tree.map(lambda before, now: before - now, parameters, own)


def main(folder: pathlib.Path) -> None:
  parameters = {'kernel': jnp.zeros((SIZE, 3)), 'bias': jnp.zeros(3)}
  tests = [examples_of(device) for device in range(10**6, 10**6 + 100)]
  x_test, classes_test = (np.concatenate(part) for part in zip(*tests))
  stored = folder / 'model.npz'
  with dpftrl.PrivateAggregator(
    dpftrl.load_strategy('blt-b100'),
    template=parameters,
    noise_multiplier=1.0,
    clip_norm=0.3,
    report_goal=COHORT,
    folder=folder,
    schema=SCHEMA,
    delta=1e-6,
  ) as aggregator:
    optimizer = optax.chain(private_mean(aggregator), optax.adam(0.05))
    state = optimizer.init(parameters)
    if stored.exists():
      _, tree = jax.tree.flatten((parameters, state))
      with np.load(stored) as arrays:
        leaves = [jnp.asarray(arrays[name]) for name in arrays]
      parameters, state = jax.tree.unflatten(tree, leaves)
    while aggregator.next_round < aggregator.max_rounds:
      candidates = np.random.default_rng(aggregator.next_round).permutation(DEVICES)
      cohort = aggregator.admissible(candidates, at_most=COHORT)
      x, classes = map(np.stack, zip(*(examples_of(int(device)) for device in cohort)))
      updates = updates_of(parameters, x, classes)
      changes, state = optimizer.update(updates, state, parameters, device_ids=cohort)
      parameters = optax.apply_updates(parameters, changes)
      np.savez(folder / 'new.npz', *jax.tree.leaves((parameters, state)))
      (folder / 'new.npz').replace(stored)  # Whole or not at all.
      if aggregator.next_round % 10 == 0:
        right = (x_test @ parameters['kernel'] + parameters['bias']).argmax(axis=1) == classes_test
        print(
          f'round {aggregator.next_round}: accuracy {100 * right.mean():.1f} %,'
          f' {aggregator.privacy_loss()}'
        )


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else 'runs/jax'))
