"""Command line and environment of TensorFlow Federated's worker program.

Nothing here imports TensorFlow.
"""

import importlib.util
import os
import pathlib


def command(port: int, max_concurrent_calls: int = 0) -> list[str]:
  """Returns the program and its arguments.

  Args:
    port: port to listen on.
    max_concurrent_calls: maximum number of clients trained at the same time; 0 for no limit.

  Raises:
    RuntimeError: if the program is missing.
  """
  spec = importlib.util.find_spec('tensorflow_federated')
  places = (spec and spec.submodule_search_locations) or ['tensorflow_federated']
  binary = pathlib.Path(places[0]) / 'data' / 'worker_binary'
  if not binary.is_file():
    raise RuntimeError(
      f'TensorFlow Federated has no worker program at {binary}; install it again with `make env`'
    )
  return [
    str(binary),
    f'--port={port}',
    f'--max_concurrent_computation_calls={max_concurrent_calls or -1}',
  ]


def environment(deterministic: bool = True) -> dict[str, str]:
  """Returns the environment variables of the program.

  Args:
    deterministic: True for the same floating-point results for the same inputs in every run;
      TensorFlow then rejects random operations without a seed.
  """
  return {
    **os.environ,
    'TF_DETERMINISTIC_OPS': str(int(deterministic)),
    'TF_CPP_MIN_LOG_LEVEL': '2',
  }
