"""The `worker` command: trains clients for runs on other machines."""

import argparse
import os
import signal
import socket
import sys
from typing import NoReturn

from fl_dpftrl import worker_program
from fl_dpftrl.learning import isolation

HELP = 'trains clients for a run on another machine, until it is stopped'

EXAMPLE = 'fl-dpftrl worker --port=8000'

_HOST = '127.0.0.1'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    '--port',
    type=int,
    required=True,
    help='port to listen on, at localhost: reach it from another machine by'
    ' `ssh -L PORT:localhost:PORT THIS_MACHINE`',
  )
  parser.add_argument(
    '--insecure_network',
    action='store_true',
    help='listen on every interface, without encryption or passwords; anyone who'
    ' can reach the port can run any computation, so it must be inside a'
    ' private network',
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
  """Becomes TensorFlow Federated's worker process, or runs it out of others' reach.

  Raises:
    ValueError: if the port is in use, the worker program is missing, or it cannot be kept from
      listening on every interface.
  """
  if args.max_concurrent_calls < 0:
    raise ValueError(f'--max_concurrent_calls must be at least 0, got {args.max_concurrent_calls}')
  check_free('' if args.insecure_network else _HOST, args.port)
  deterministic = args.deterministic == 'true'
  try:
    if not args.insecure_network:
      _run_isolated(args.port, args.max_concurrent_calls, deterministic)
    command = worker_program.command(args.port, args.max_concurrent_calls)
  except RuntimeError as error:
    raise ValueError(str(error)) from error
  _tell(f'port {args.port} of every interface, where anyone can run any computation,')
  os.execve(command[0], command, worker_program.environment(deterministic))


def _run_isolated(port: int, max_concurrent_calls: int, deterministic: bool) -> NoReturn:
  """Runs the worker in a network of its own until it ends; it ends with this process.

  Raises:
    ValueError: if the system does not allow that.
    RuntimeError: if the worker program is missing.
  """
  try:
    process, relay = isolation.launch_behind(
      isolation.launcher(max_concurrent_calls, deterministic), socket.create_server((_HOST, port))
    )
  except isolation.NotIsolatedError as error:
    raise ValueError(
      "TensorFlow Federated's worker listens on every interface, and this system gives it no"
      f' network namespace ({error}): allow unprivileged user namespaces, or give'
      ' --insecure_network in a private network'
    ) from error
  signal.signal(signal.SIGTERM, signal.default_int_handler)
  _tell(f'localhost:{port}')
  with relay:
    try:
      status = process.wait()
    finally:
      process.kill()
      process.wait()
  raise SystemExit(128 - status if status < 0 else status)


def _tell(where: str) -> None:
  print(
    f'listening on {where} and training clients; press Ctrl-C to stop', file=sys.stderr, flush=True
  )


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
