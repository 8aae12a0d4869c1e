"""A process that makes a slice of each row of noise for runs elsewhere."""

import argparse
import pathlib
import signal
import sys
import tempfile
from typing import NoReturn

from fl_dpftrl import addresses
from fl_dpftrl import messages
from fl_dpftrl.commands import worker
from fl_dpftrl.noise.engine import shards

HELP = 'makes a slice of each row of noise for a run, until it is ended'

EXAMPLE = 'fl-dpftrl noise_worker --port=8001 --key_file=noise.key'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
      '--port', type=int, required=True, help='that is listened at'
  )
  parser.add_argument(
      '--host',
      default='localhost',
      help='name of the interface (default: localhost; 0.0.0.0 for all of them;'
      ' nothing is encrypted, so keep to a private network)',
  )
  parser.add_argument(
      '--key_file',
      required=True,
      help='file that every noise worker and the run have alike, such as'
      ' `head -c 32 /dev/urandom` gives',
  )
  parser.add_argument(
      '--folder',
      help='for snapshots, so that a worker that is started anew goes on'
      ' quickly; those of finished runs are yours to remove (default: a'
      ' temporary one)',
  )


def run(args: argparse.Namespace) -> NoReturn:
  """Listens until it is interrupted.

  Raises:
    ValueError: where the port is taken, or the key will not do.
  """
  if not args.host:
    raise ValueError(
        '--host is empty: name an interface, or 0.0.0.0 for all of them'
    )
  key = shards.read_key(args.key_file)
  worker.check_free(args.host, args.port)
  # However it is ended, what it wrote for itself goes.
  signal.signal(signal.SIGTERM, signal.default_int_handler)
  say = lambda line: print(
      messages.one_line(line), file=sys.stderr, flush=True
  )
  with tempfile.TemporaryDirectory() as temporary:
    shards.listen(
        addresses.Address(args.host, args.port),
        key,
        pathlib.Path(args.folder or temporary),
        say,
    )
