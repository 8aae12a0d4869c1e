"""The `worker` command: trains clients for runs on other machines."""

import argparse
import os
import socket
import sys
from typing import NoReturn

from fl_dpftrl import worker_program

HELP = 'trains clients for a run on another machine, until it is stopped'

EXAMPLE = 'fl-dpftrl worker --port=8000'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    '--port',
    type=int,
    required=True,
    help='port to listen on, on every interface; anyone who can reach it can'
    ' run any computation, so keep it inside a private network',
  )
  parser.add_argument(
    '--max_concurrent_calls',
    type=int,
    default=0,
    help='number of clients trained at the same time (default: no limit)',
  )
  parser.add_argument(
    '--deterministic',
    choices=('true', 'false'),
    default='true',
    help='same results for the same inputs in every run; set it to false if'
    ' clients draw random numbers without a seed, such as for dropout'
    ' (default: true)',
  )


def run(args: argparse.Namespace) -> NoReturn:
  """Becomes TensorFlow Federated's worker process.

  Raises:
    ValueError: if the port is in use, or the worker program is missing.
  """
  if args.max_concurrent_calls < 0:
    raise ValueError(f'--max_concurrent_calls must be at least 0, got {args.max_concurrent_calls}')
  check_free('', args.port)
  try:
    command = worker_program.command(args.port, args.max_concurrent_calls)
  except RuntimeError as error:
    raise ValueError(str(error)) from error
  print(
    f'listening on port {args.port} and training clients; press Ctrl-C to stop',
    file=sys.stderr,
    flush=True,
  )
  environment = worker_program.environment(args.deterministic == 'true')
  os.execve(command[0], command, environment)


def check_free(host: str, port: int) -> None:
  """Raises ValueError unless the port is free to listen on."""
  if not 0 < port < 65536:
    raise ValueError(f'--port={port} is not between 1 and 65535')
  try:
    with socket.socket() as probe:
      probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
      probe.bind((host, port))
  except OSError as error:
    where = f'--host={host} --port={port}' if host else f'--port={port}'
    raise ValueError(f'{where} cannot be listened at: {error}') from error
