"""Optimisation by automatic differentiation for any streaming strategy.

An `Operator` is a lower-triangular matrix that can be applied to rows as they arrive. Given a
workload A and an inverse C⁻¹ as operators, this module computes the errors of A C⁻¹ and their
gradients in any parameters of C. Families with a closed form are much faster with it; this
module is for the others.

JAX is imported only when needed, and computes in float64.
"""

import contextlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fl_dpftrl import workloads
from fl_dpftrl.optimization import problem, solver

Array = Any  # a JAX array


class Operator(NamedTuple):
  """Lower-triangular matrix applied to rows as they arrive, in JAX.

  Attributes:
    init: width → state, for rows of shape [width].
    next: (t, row t of the input, state) → (row t of the product, state).
  """

  init: Callable[[int], Any]
  next: Callable[[Array, Array, Any], tuple[Array, Any]]


def sgd(workload: workloads.Workload, num_rounds: int) -> Operator:
  """Returns A of SGD with momentum and learning rates; its state is two rows."""
  rates = workload.learning_rates(num_rounds)

  def init(width):
    import jax.numpy as jnp

    return jnp.zeros(width), jnp.zeros(width)

  def next_fn(t, row, state):
    import jax.numpy as jnp

    velocity, model = state
    velocity = workload.momentum * velocity + row
    model += jnp.asarray(rates)[t] * velocity
    return model, (velocity, model)

  return Operator(init, next_fn)


def banded_inverse(coefficients: Array) -> Operator:
  """Returns C⁻¹ of a banded C; its state is num_bands − 1 rows.

  Args:
    coefficients: shape [num_rounds, num_bands], as in `banded.Banded`.
  """
  kept = coefficients.shape[1] - 1

  def init(width):
    import jax.numpy as jnp

    return jnp.zeros((kept, width))

  def next_fn(t, row, state):
    import jax.numpy as jnp

    weights = coefficients[t]
    row = (row - weights[1:] @ state) / weights[0]
    return row, jnp.concatenate([row[None], state])[:kept]

  return Operator(init, next_fn)


def squared_errors(workload: Operator, inverse: Operator, num_rounds: int) -> Array:
  """Returns squared norms of the rows of A C⁻¹, shape [num_rounds].

  The result is differentiable. Time is O(n²·state) and memory O(n·state), with `state` the
  number of rows that both operators keep. A gradient by reverse mode takes memory
  O(n^1.5·state).

  Source: McKenna 2024, appendix D, algorithm 5.
  """
  import jax
  import jax.numpy as jnp

  def step(states, t):
    impulse = jnp.zeros(num_rounds).at[t].set(1.0, mode='drop')
    row, of_inverse = inverse.next(t, impulse, states[0])
    row, of_workload = workload.next(t, row, states[1])
    return (of_inverse, of_workload), row @ row

  # The backward pass recomputes each block of rounds from its first state.
  length = math.isqrt(num_rounds - 1) + 1
  stretches = jnp.arange(length**2).reshape(length, length)

  @jax.checkpoint
  def stretch(states, rounds):
    return jax.lax.scan(step, states, rounds)

  states = inverse.init(num_rounds), workload.init(num_rounds)
  _, squares = jax.lax.scan(stretch, states, stretches)
  return squares.reshape(-1)[:num_rounds]


def optimize(
  start: np.ndarray,
  *,
  inverse: Callable[[Array], Operator],
  square_sensitivity: Callable[[Array], Array],
  workload: Operator,
  num_rounds: int,
  aggregate: Callable[[Array], Array] | None = None,
  max_iterations: int = 300,
  progress: problem.Progress | None = None,
) -> np.ndarray:
  """Returns the parameters with the smallest loss that a descent finds.

  Args:
    start: initial parameters, of any shape, for which C has an inverse.
    inverse: function from parameters to C⁻¹.
    square_sensitivity: function from parameters to sens(C)².
    workload: A.
    num_rounds: n.
    aggregate: function from squared errors to the minimised error; None for their mean.
    max_iterations: maximum number of steps.
    progress: called with the number of steps and the loss.

  Raises:
    ValueError: if the loss of the start is not finite.
  """
  import jax
  import jax.numpy as jnp

  start = np.asarray(start, dtype=np.float64)
  aggregate = jnp.mean if aggregate is None else aggregate

  def square_loss(parameters):
    squares = squared_errors(workload, inverse(parameters), num_rounds)
    return square_sensitivity(parameters) * aggregate(squares)

  with float64():
    compiled = jax.jit(jax.value_and_grad(square_loss))

    def value_and_grad(free):
      value, gradient = compiled(jnp.asarray(free.reshape(start.shape)))
      return float(value), np.asarray(gradient).reshape(-1)

    def report(step, square):
      if progress is not None:
        progress(step, math.sqrt(square))

    minimum = solver.minimize(
      value_and_grad,
      start.reshape(-1),
      max_iterations=max_iterations,
      tolerance=1e-7,
      progress=report,
    )
  return minimum.point.reshape(start.shape)


def float64() -> contextlib.AbstractContextManager[None]:
  """Returns a context in which JAX computes in float64."""
  import jax

  if hasattr(jax, 'enable_x64'):
    return jax.enable_x64(True)
  from jax import experimental

  return experimental.enable_x64()
