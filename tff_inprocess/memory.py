"""Limit on the number of clients that train at the same time."""

import functools
import warnings

from tensorflow.python.util import _pywrap_util_port

from fl_dpftrl.support import machine

# A client's variables, their gradients, the optimiser's slots, its update, and
# one more update that waits for its turn.
_MODEL_COPIES = 8
# Clients at a time for each processor: one computes while another waits for TensorFlow's threads.
_PER_PROCESSOR = 2
# Of the free memory, for batches and what belongs to others.
_SHARE = 0.5


def concurrent_clients(model_bytes: int, at_most: int | None = None) -> int:
  """Returns how many clients may train at the same time: at least 1.

  Processors and memory limit the number. TensorFlow's oneDNN operations limit it
  to 1, with a warning: two clients that run one of them (Einsum, of attention
  layers) at the same time corrupt the memory of the process, also in TensorFlow 2.21.
  """
  wanted = at_most or _fitting(model_bytes)
  if wanted > 1 and uses_one_dnn():
    _warn_of_one_dnn()
    return 1
  return wanted


def uses_one_dnn() -> bool:
  """Returns whether TensorFlow uses oneDNN operations, which are not safe in parallel."""
  return _pywrap_util_port.IsMklEnabled()


@functools.cache
def _warn_of_one_dnn() -> None:
  """Warns once in a process: Python's own count is lost where any code changes its filters."""
  warnings.warn(
    'clients train one at a time, since TensorFlow uses oneDNN operations, which are not'
    ' safe in parallel: set TF_ENABLE_ONEDNN_OPTS=0 in the environment before TensorFlow'
    ' is imported',
    RuntimeWarning,
    stacklevel=3,
  )


def _fitting(model_bytes: int) -> int:
  most = _PER_PROCESSOR * machine.cores()
  free = machine.free_memory()
  if free is None or not model_bytes:
    return most
  fitting = int(_SHARE * free) // (_MODEL_COPIES * model_bytes)
  return max(1, min(most, fitting))
