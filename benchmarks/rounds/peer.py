"""Times rows of the peer's noise, in the peer's environment.

    peer.py CASE.npz SIZE REPEATS

This is a script, not a module, because it runs where only jax_privacy is
installed. CASE.npz has the parameters of a strategy. Streams are compiled once,
and each row donates its state to the next one.
"""

import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np


def stream(case):
  """Returns jax_privacy's streaming matrix; None for independent noise."""
  if 'buf_decay' in case:
    from jax_privacy.matrix_factorization import buffered_toeplitz

    jax.config.update('jax_enable_x64', True)
    return buffered_toeplitz.BufferedToeplitz.build(
      case['buf_decay'], case['output_scale']
    ).inverse_as_streaming_matrix()
  if 'coefs' in case:
    from jax_privacy.matrix_factorization import toeplitz

    return toeplitz.inverse_as_streaming_matrix(jnp.asarray(case['coefs'], jnp.float32))
  if 'params' in case:
    from jax_privacy.matrix_factorization import banded

    return banded.ColumnNormalizedBanded(
      params=jnp.asarray(case['params'], jnp.float32)
    ).inverse_as_streaming_matrix()
  return None


def main(path: str, size: int, repeats: int) -> dict:
  """Returns the seconds of each row."""
  matrix = stream(dict(np.load(path)))
  shape = jax.ShapeDtypeStruct((size,), jnp.float32)

  def row(key, state):
    z = jax.random.normal(key, shape.shape, shape.dtype)
    return (z, state) if matrix is None else matrix.multiply_next(z, state)

  compiled = jax.jit(row, donate_argnums=1)
  state = () if matrix is None else matrix.init_multiply(shape)
  state_bytes = sum(part.nbytes for part in jax.tree.leaves(state))
  seconds = []
  for repeat in range(repeats + 2):  # Two rows to compile and warm up.
    key = jax.random.key(repeat)
    start = time.perf_counter()
    noise, state = compiled(key, state)
    jax.block_until_ready((noise, state))
    seconds.append(time.perf_counter() - start)
  return {'seconds': seconds[2:], 'state_bytes': state_bytes}


if __name__ == '__main__':
  print(json.dumps(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
