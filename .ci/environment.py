"""Makes a virtual environment, unless it is there: .ci/environment.py NAME FILE [-- COMMAND…]

FILE ends in `.lock`, whose pins are installed with their digests and without resolution, or in
`.txt`. NAME/installed holds the digest of all that the environment was made from. It is made under
a lock: a second process waits, and finds it there. COMMAND runs under the lock too. A link is left
alone: making the environment anew would empty another's.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

PYTHONS = 'python3.13 python3.12 python3.11 python3.14 python3 python'
# A stand-in, or a Python of another version, answers this by its exit status.
IS_SUPPORTED = 'import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= {})'
VERSION = 'import sys; print(sys.version, sys.base_prefix)'
SITE = 'import sysconfig; print(sysconfig.get_path("purelib"))'
TRAINING = (
  'Training needs x86-64 Linux and Python 3.11 to 3.13 (TensorFlow for 3.14 is not final). Debian:'
  ' apt install python3-venv. Ubuntu: add-apt-repository ppa:deadsnakes/ppa; apt install'
  ' python3.13-venv. macOS, all but training: brew install python@3.13; python3.13 -m pip install .'
  ' PYTHON=PATH names one.'
)
PIP = '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '--no-compile'


def find(candidates: list[str], newest: tuple[int, int]) -> str | None:
  """Returns the first Python of a version from 3.11 on that can make environments."""
  for candidate in candidates:
    command = [candidate, '-c', IS_SUPPORTED.format(newest)]
    if shutil.which(candidate) and not subprocess.run(command, capture_output=True).returncode:
      return candidate
  return None


def digest(python: str, args: argparse.Namespace) -> str:
  """Returns the digest of what an environment is made from."""
  files = [args.file, args.shim, 'setup.py'] if args.install else [args.file, args.shim]
  parts = [pathlib.Path(file).read_bytes() for file in files if file]
  if args.install:  # How its tools are configured changes no environment.
    project, _, _ = pathlib.Path('pyproject.toml').read_text('utf-8').partition('[tool.ruff]')
    parts.append(project.encode())
  parts.append(repr(args.install).encode())
  parts.append(subprocess.run([python, '-c', VERSION], capture_output=True, check=True).stdout)
  return hashlib.sha256(b'\0'.join(parts)).hexdigest()


def install(lock: pathlib.Path, pip: list[str]) -> None:
  """Installs the pins of a lock by two processes at once, as they need no resolution."""
  pins = re.findall(r'^\w.*(?:\n\s.*)*', lock.read_text('utf-8'), re.M)
  command = [*pip, '--no-deps', '--require-hashes', '-r', '/dev/stdin']
  halves = {subprocess.Popen(command, stdin=subprocess.PIPE): pins[i::2] for i in range(2)}
  for process, part in halves.items():
    with contextlib.suppress(BrokenPipeError), process.stdin as stream:
      stream.write('\n'.join(part).encode())
  for status in [process.wait() for process in halves]:
    if status:
      raise subprocess.CalledProcessError(status, command)


def make(python: str, args: argparse.Namespace) -> None:
  """Makes the environment; what was there before goes."""
  print(f'Setting up {args.name} with {python}', file=sys.stderr)
  run = lambda *command: subprocess.run(command, check=True)
  run(python, '-m', 'venv', '--clear', args.name)
  inside = f'{args.name}/bin/python'
  # The wheel of TensorFlow Federated names older Pythons than it runs on.
  pip = [inside, *PIP, *['--ignore-requires-python'] * args.training]
  found = subprocess.run([inside, '-c', SITE], capture_output=True, text=True, check=True)
  site = pathlib.Path(found.stdout.strip())
  if args.file and args.file.endswith('.lock'):
    install(pathlib.Path(args.file), pip)
  elif args.file:
    run(*pip, '-r', args.file)
  if args.shim:
    shim = pathlib.Path(args.shim)
    shutil.copy(shim, site)
    (site / f'{shim.stem}.pth').write_text(f'import {shim.stem}\n')
  if args.install:
    run(inside, *PIP, *args.install.split())
  # By all processors, where pip compiles with one. Some packages have tests of other Pythons.
  subprocess.run([inside, '-m', 'compileall', '-qq', '-j', '0', '-x', '/tests?/', str(site)])
  if args.training:
    run(inside, str(pathlib.Path(__file__).with_name('warm.py')))


def parse(words: list[str]) -> argparse.Namespace:
  """Returns the arguments."""
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  add = parser.add_argument
  add('name', help='folder of the environment')
  add('file', nargs='?', help='requirements')
  add('--python', default='', help='Pythons to choose from, the first that serves')
  add('--training', action='store_true', help='refuse Pythons that TensorFlow does not support')
  add('--install', default='', help='more words for pip, such as --install="--editable ."')
  add('--shim', help='module that each start of the Python imports')
  add('--anew', action='store_true', help='make it also where it is there')
  end = words.index('--') if '--' in words else len(words)
  args = parser.parse_args(words[:end])
  args.command = words[end + 1 :]
  return args


def main(words: list[str]) -> int:
  """Makes the environment and runs the command; returns the exit status."""
  args = parse(words)
  python = find((args.python or PYTHONS).split(), (3, 13) if args.training else (3, 99))
  if python is None:
    other = f'{args.name} needs Python 3.11 or newer, which is not here; PYTHON=PATH names one'
    print(TRAINING if args.training else other, file=sys.stderr)
    return 2
  if os.path.islink(args.name):
    aim = os.path.realpath(args.name)
    print(f'{args.name} is a link to {aim}; set up the environment there', file=sys.stderr)
    return 2
  descriptor = os.open(f'{args.name}.lock', os.O_RDWR | os.O_CREAT, 0o600)
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    print(f'waiting for another process that holds {args.name}.lock', file=sys.stderr)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
  try:
    stamp, expected = pathlib.Path(args.name, 'installed'), digest(python, args)
    if args.anew or not stamp.exists() or stamp.read_text() != expected:
      make(python, args)
    stamp.write_text(expected)  # Also makes it newer than what it was made from.
    return subprocess.run(args.command).returncode if args.command else 0
  except subprocess.CalledProcessError as error:
    return error.returncode
  except KeyboardInterrupt:
    return 130


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
