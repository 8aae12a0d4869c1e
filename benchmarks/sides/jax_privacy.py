"""The peer of strategies and of rows of noise: jax_privacy's public interface, in its environment.

Options that a case does not name keep the library's defaults.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax_privacy.matrix_factorization import banded, buffered_toeplitz, dense, toeplitz

from benchmarks import runner


def optimize(case: dict[str, Any], path: str) -> None:
  """Writes the parameters of the strategy that the library finds."""
  n, bands, buffers = case['num_rounds'], case['num_bands'], case['num_buffers']
  match case['mechanism']:
    case 'blt':
      sizes = dict.fromkeys(('min_buffers', 'max_buffers'), buffers) if buffers else {}
      schema = {name: case[name] for name in ('min_sep', 'max_participations')}
      error = {'max': 'max', 'rms': 'mean'}[case['objective']]
      blt = buffered_toeplitz.optimize(n=n, **schema, error=error, **sizes)
      found = {'buf_decay': blt.buf_decay, 'output_scale': blt.output_scale}
    case 'banded_toeplitz':
      found = {'coefs': toeplitz.optimize_banded_toeplitz(n, bands)}
    case 'banded':
      found = {'params': banded.optimize(n, bands=bands).params}
    case 'dense':
      found = {'matrix': dense.optimize(n)}
  np.savez(path, **{name: np.asarray(value) for name, value in found.items()})


def _stream(path: str):
  """Returns the streaming matrix of stored parameters; None for independent noise."""
  case = dict(np.load(path))
  if 'buf_decay' in case:
    jax.config.update('jax_enable_x64', True)
    blt = buffered_toeplitz.BufferedToeplitz.build(case['buf_decay'], case['output_scale'])
    return blt.inverse_as_streaming_matrix()
  if 'coefs' in case:
    return toeplitz.inverse_as_streaming_matrix(jnp.asarray(case['coefs'], jnp.float32))
  if 'params' in case:
    params = jnp.asarray(case['params'], jnp.float32)
    return banded.ColumnNormalizedBanded(params=params).inverse_as_streaming_matrix()
  return None


def rows(path: str, size: int, repeats: int) -> dict[str, Any]:
  """Returns the seconds of each row of noise, compiled; each donates its state to the next."""
  matrix = _stream(path)
  shape = jax.ShapeDtypeStruct((size,), jnp.float32)

  def row(key, state):
    z = jax.random.normal(key, shape.shape, shape.dtype)
    return (z, state) if matrix is None else matrix.multiply_next(z, state)

  compiled = jax.jit(row, donate_argnums=1)
  state = () if matrix is None else matrix.init_multiply(shape)
  state_bytes = sum(part.nbytes for part in jax.tree.leaves(state))

  def step(key):
    nonlocal state
    _, state = jax.block_until_ready(compiled(key, state))

  # Two rows to compile and warm up.
  seconds, _ = runner.timed(repeats + 2, lambda t: functools.partial(step, jax.random.key(t)))
  return {'seconds': seconds[2:], 'state_bytes': state_bytes}
