"""A process that trains clients for runs on other machines."""

import argparse
import os
import socket
import sys
from typing import NoReturn

from fl_dpftrl import worker_program

HELP = 'trains clients for a run on another machine, until it is ended'

EXAMPLE = 'fl-dpftrl worker --port=8000'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
      '--port',
      type=int,
      required=True,
      help='that is listened at, on every interface: whoever reaches it can'
      ' have anything computed, so keep it inside a private network',
  )
  parser.add_argument(
      '--max_concurrent_calls',
      type=int,
      default=0,
      help='clients that are trained at the same time (default: no limit)',
  )
  parser.add_argument(
      '--deterministic',
      choices=('true', 'false'),
      default='true',
      help='same results for the same inputs, in every run; false where clients'
      ' draw random numbers without a seed, such as for dropout (default: true)',
  )


def run(args: argparse.Namespace) -> NoReturn:
  """Becomes TensorFlow Federated's worker.

  Raises:
    ValueError: where the port is taken, or the worker's program is missing.
  """
  if args.max_concurrent_calls < 0:
    raise ValueError(
        '--max_concurrent_calls must be at least 0, got'
        f' {args.max_concurrent_calls}'
    )
  check_free('', args.port)
  try:
    command = worker_program.command(args.port, args.max_concurrent_calls)
  except RuntimeError as error:
    raise ValueError(str(error)) from error
  print(
      f'trains clients for whoever reaches port {args.port}; Ctrl-C ends it',
      file=sys.stderr,
      flush=True,
  )
  environment = worker_program.environment(args.deterministic == 'true')
  os.execve(command[0], command, environment)


def check_free(host: str, port: int) -> None:
  """Raises ValueError unless the port can be listened at."""
  if not 0 < port < 65536:
    raise ValueError(f'--port={port} is not between 1 and 65535')
  try:
    with socket.socket() as probe:
      probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
      probe.bind((host, port))
  except OSError as error:
    where = f'--host={host} --port={port}' if host else f'--port={port}'
    raise ValueError(f'{where} cannot be listened at: {error}') from error
