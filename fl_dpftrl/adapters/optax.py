"""A private mean as the first step of any optax optimiser.

    optimizer = optax.chain(private_mean(aggregator), optax.adam(0.05))
    changes, state = optimizer.update(updates, state, parameters, device_ids=cohort)

What the optimiser makes of the mean is post-processing, so adam is as private as gradient descent.
"""

from collections.abc import Mapping
from typing import Any

from fl_dpftrl import adapters
from fl_dpftrl.run import private_aggregator

with adapters.peer('optax', 'optax'):
  import jax
  import optax


def private_mean(
  aggregator: private_aggregator.PrivateAggregator,
) -> optax.GradientTransformationExtraArgs:
  """Returns a gradient transformation like `optax.contrib.differentially_private_aggregate`.

  Each call of `update` is a round. It takes updates with a leading axis, such as gradients by
  `jax.vmap`, and the ids of their devices, or examples, as `device_ids`. A device that does not
  answer has no row. `at_least` is that of `PrivateAggregator.round`, and `metrics` has a number for
  each update, by name.

  Args:
    aggregator: its template is the parameters.
  """

  def update(
    updates: Any,
    state: optax.OptState,
    params: optax.Params | None = None,
    *,
    device_ids: Any,
    at_least: int | None = None,
    metrics: Mapping[str, Any] | None = None,
    **unused: Any,
  ) -> tuple[Any, optax.OptState]:
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(updates)):
      raise ValueError('private_mean writes files: call its update outside jax.jit')
    with aggregator.round(device_ids, at_least=at_least) as round_:
      round_.add_batch(updates, metrics=metrics)
    return round_.mean, state

  return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
