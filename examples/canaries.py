"""A run in JAX with canaries, and an audit of what its releases give away.

    python examples/canaries.py runs/canaries

1,024 made-up devices take part beside 50 real ones a round, each by a secret coin. Afterwards the
coins are guessed from the releases: how well that goes bounds ε from below, in this very run. Any
other loop, as in PyTorch, needs the same two lines: `canaries=`, and `audit_run`.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

import fl_dpftrl as dpftrl

DEVICES, COHORT, ROUNDS, INPUTS = 1000, 50, 20, 2048
TRUE = np.random.default_rng(0).normal(size=INPUTS).astype(np.float32)


def loss(weights, x, y):
  return jnp.mean(jnp.logaddexp(0.0, -y * (x @ weights)))


@jax.jit
def update_of(weights, device):
  """Returns a step on eight examples of a device's own."""
  x = jax.random.normal(jax.random.key(device), (8, INPUTS)) / 16.0
  return -jax.grad(loss)(weights, x, jnp.sign(x @ TRUE))


def main(folder, rounds=ROUNDS):
  weights = jnp.zeros(INPUTS, jnp.float32)
  schema = dpftrl.MinSep(num_rounds=rounds, min_sep=DEVICES // COHORT, max_participations=1)
  with dpftrl.PrivateAggregator(
    'blt-b100',
    template=weights,
    clip_norm=0.5,
    report_goal=COHORT,
    folder=folder,
    participation=schema,
    max_epsilon=4.0,
    delta=1e-6,
    canaries=dpftrl.Canaries(1024),
  ) as aggregator:
    aggregator.require_new()
    while aggregator.next_round < aggregator.max_rounds:
      t = aggregator.next_round
      with aggregator.round(range(COHORT * t, COHORT * (t + 1))) as round_:
        for device in round_.device_ids:
          round_.add(update_of(weights, device))
      weights = weights + round_.mean
  audit = dpftrl.audit_run(folder, delta=1e-6)
  print(audit)
  return audit


if __name__ == '__main__':
  main(sys.argv[1])
