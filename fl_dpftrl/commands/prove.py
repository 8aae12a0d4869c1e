"""The `prove` command: runs the checker on certificates, in another process."""

import argparse
import pathlib

from fl_dpftrl.commands import flags
from fl_dpftrl.prove.replaying import certificates
from fl_dpftrl.support.files import json_files
from fl_dpftrl.support.text import messages

EXAMPLE = 'fl-dpftrl prove evidence/certificate.json'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  words = 'certificates; or folders of evidence, whose claims and statement are compared too'
  parser.add_argument('files', nargs='+', metavar='FILE', help=words)


def run(args: argparse.Namespace) -> json_files.Object:
  """Returns whether all figures are proved, and the lines of the checker."""
  for name in args.files:
    if not pathlib.Path(name).exists():
      raise ValueError(f'FILE {messages.quoted(name)} does not exist; name a certificate')
  holds, lines = certificates.prove([pathlib.Path(name).absolute() for name in args.files])
  return {'proved': holds, 'lines': list(lines)}


def show(result: json_files.Object) -> str:
  """Formats the lines of the checker."""
  return '\n'.join(result['lines'])


def verdict(args: argparse.Namespace, result: json_files.Object) -> tuple[int, str] | None:
  """Returns the exit status and a line if a figure is not proved."""
  return None if result['proved'] else (flags.NOT_KEPT, 'not all figures are proved')
