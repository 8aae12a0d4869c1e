"""Rounds as TensorFlow Federated's own worker computes them."""

import io
import os
import pathlib
import signal
import zipfile
from collections.abc import Iterator

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import every_family
from tests.tff_inprocess import small_processes as small

PATH = pathlib.Path(__file__).with_name('rounds.npz')
NUM_ROUNDS = 10
FAMILY = 'noise of '
PROCESSES = {
  **small.PROCESSES,
  'batch_normalisation': lambda: small.unweighted(
    model_fn=small.model(tf.keras.layers.BatchNormalization)
  ),
  **{
    f'{FAMILY}{family}': lambda family=family: small.correlated(
      every_family.example(family, NUM_ROUNDS)
    )
    for family in every_family.FAMILIES
  },
}


def leaves(value) -> list[np.ndarray]:
  return [np.asarray(leaf) for leaf in tf.nest.flatten(value)]


def outputs(process, state, num_rounds: int) -> Iterator[list[np.ndarray]]:
  """Yields the leaves of each round's output, its state among them."""
  for number in range(num_rounds):
    output = process.next(state, small.clients(number))
    state = output.state
    yield leaves(tuple(output))


def expected(name: str) -> list[list[np.ndarray]]:
  """Returns the rounds of a process as TFF's worker computed them, each leaf flat."""
  with np.load(PATH) as arrays:
    dtypes, sizes, content = (arrays[f'{name}/{part}'] for part in ('dtypes', 'sizes', 'bytes'))
  parts = iter(np.split(content, np.cumsum(sizes)[:-1]))
  return [[next(parts).view(dtype) for dtype in dtypes] for _ in range(NUM_ROUNDS)]


def in_worker() -> tff.framework.SyncContext:
  """Returns TFF's context, which sums what is to be secure plainly, as its tests do."""

  def compiled(comp):
    plain = tff.backends.test.replace_secure_intrinsics_with_bodies(comp)
    return tff.backends.native.desugar_and_transform_to_native(plain)

  return tff.framework.SyncExecutionContext(
    executor_fn=tff.framework.local_cpp_executor_factory(),
    compiler_fn=compiled,
    transform_args=tff.tensorflow.transform_args,
    transform_result=tff.tensorflow.transform_result,
  )


def main() -> None:
  arrays: dict[str, np.ndarray] = {}
  context = in_worker()
  for name, make in PROCESSES.items():
    with tff.framework.get_context_stack().install(context):
      process = make()
      found = list(outputs(process, process.initialize(), NUM_ROUNDS))
    every = [leaf for of_round in found for leaf in of_round]
    arrays[f'{name}/dtypes'] = np.array([leaf.dtype.str for leaf in found[0]])
    arrays[f'{name}/sizes'] = np.array([leaf.nbytes for leaf in every])
    arrays[f'{name}/bytes'] = np.frombuffer(b''.join(map(np.ndarray.tobytes, every)), np.uint8)
    print(name, len(found[0]))
  with zipfile.ZipFile(PATH, 'w', zipfile.ZIP_DEFLATED) as file:
    for name, array in arrays.items():
      content = io.BytesIO()
      np.save(content, array)
      # The same time in each: the same arrays make the same file.
      file.writestr(zipfile.ZipInfo(f'{name}.npy', (2026, 1, 1, 0, 0, 0)), content.getvalue(), 8)
  for task in pathlib.Path('/proc/self/task').iterdir():
    for pid in (task / 'children').read_text().split():
      os.kill(int(pid), signal.SIGKILL)


if __name__ == '__main__':
  main()
