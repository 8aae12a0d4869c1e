"""The `noise_worker` command: computes slices of noise rows for remote runs."""

import argparse
import pathlib
import signal
import sys
import tempfile
from typing import NoReturn

from fl_dpftrl import addresses, messages
from fl_dpftrl.commands import worker
from fl_dpftrl.noise.engine import shards

HELP = 'computes a slice of each noise row for a run, until it is stopped'

EXAMPLE = 'fl-dpftrl noise_worker --port=8001 --key_file=noise.key'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--port', type=int, required=True, help='port to listen on')
  parser.add_argument(
    '--host',
    default='localhost',
    help='network interface to listen on (default: localhost; 0.0.0.0: all);'
    ' traffic is not encrypted, so use a private network',
  )
  parser.add_argument(
    '--key_file',
    required=True,
    help='secret key file, the same for all noise workers and the run; make it'
    ' with `head -c 32 /dev/urandom`',
  )
  parser.add_argument(
    '--folder',
    help='folder for snapshots, which let a restarted worker resume quickly;'
    ' remove those of finished runs yourself (default: a temporary folder)',
  )


def run(args: argparse.Namespace) -> NoReturn:
  """Serves noise slices until it is interrupted.

  Raises:
    ValueError: if the port is in use, or the key is invalid.
  """
  if not args.host:
    raise ValueError('--host is empty: name an interface, or 0.0.0.0 for all of them')
  key = shards.read_key(args.key_file)
  worker.check_free(args.host, args.port)
  # SIGTERM must also remove the temporary folder.
  signal.signal(signal.SIGTERM, signal.default_int_handler)
  say = lambda line: print(messages.one_line(line), file=sys.stderr, flush=True)
  with tempfile.TemporaryDirectory() as temporary:
    shards.listen(
      addresses.Address(args.host, args.port), key, pathlib.Path(args.folder or temporary), say
    )
