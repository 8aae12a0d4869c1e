"""The `noise_worker` command: computes slices of noise rows for remote runs."""

import argparse
import os
import pathlib
import signal
import sys
import tempfile
from typing import NoReturn

from fl_dpftrl import addresses, messages
from fl_dpftrl.commands import worker
from fl_dpftrl.noise.engine import certificates, slices

HELP = 'computes a slice of each noise row for a run, until it is stopped'

EXAMPLE = 'fl-dpftrl noise_worker --port=8001 --certificates=certificates'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--port', type=int, required=True, help='port to listen on')
  parser.add_argument(
    '--host',
    default='localhost',
    help='network interface to listen on (default: localhost; 0.0.0.0: all)',
  )
  parser.add_argument(
    '--certificates',
    help='folder with authority.pem, worker.pem, worker.key, run.pem and run.key; made where it'
    ' does not exist, for a try-out of 90 days. Runs need the first and the last two',
  )
  parser.add_argument(
    '--names',
    default='',
    help='other names or addresses by which runs reach the workers, joined by commas, for'
    ' certificates that are made now (default: localhost, the name of this machine and --host)',
  )
  parser.add_argument(
    '--authority_file',
    help='in place of --certificates: PEM file with the certificate of the authority whose'
    ' certificates runs must have; use one for this alone',
  )
  parser.add_argument('--certificate_file', help="PEM file with this worker's certificate")
  parser.add_argument('--key_file', help='PEM file with the private key of --certificate_file')
  parser.add_argument(
    '--folder',
    help='folder for snapshots, which let a restarted worker resume quickly;'
    ' remove those of finished runs yourself (default: a temporary folder)',
  )


def run(args: argparse.Namespace) -> NoReturn:
  """Serves noise slices until it is interrupted.

  Raises:
    ValueError: if the port is in use, or the certificates are missing or invalid.
  """
  if not args.host:
    raise ValueError('--host is empty: name an interface, or 0.0.0.0 for all of them')
  slices.import_grpc()
  worker.check_free(args.host, args.port)
  names = [name.strip() for name in args.names.split(',') if name.strip()]
  if names and not args.certificates:
    raise ValueError('--names is for certificates that are made: give --certificates=FOLDER')
  if args.certificates and not os.path.lexists(args.certificates):
    certificates.make(args.certificates, [*names, *[args.host] * (args.host != '0.0.0.0')])
    _say(
      f'made certificates for a try-out in {args.certificates}: give its authority.pem, run.pem'
      ' and run.key to the run, and keep them secret'
    )
  chosen = certificates.chosen(
    certificates.WORKER,
    '',
    args.certificates,
    args.authority_file,
    args.certificate_file,
    args.key_file,
  )
  # SIGTERM must also remove the temporary folder.
  signal.signal(signal.SIGTERM, signal.default_int_handler)
  with tempfile.TemporaryDirectory() as temporary:
    slices.listen(
      addresses.Address(args.host, args.port), chosen, pathlib.Path(args.folder or temporary), _say
    )


def _say(line: str) -> None:
  print(messages.one_line(line), file=sys.stderr, flush=True)
