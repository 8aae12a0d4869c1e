"""Runs a command while holding a lock file: python .ci/locked.py FILE COMMAND…

FILE is an environment's name and `.lock`. A second process waits until the first has ended,
however it ends. An environment that is a link is left alone: making it anew would empty another's.
"""

import fcntl
import os
import subprocess
import sys


def main(path: str, command: list[str]) -> int:
  environment = path.removesuffix('.lock')
  if os.path.islink(environment):
    aim = os.path.realpath(environment)
    print(f'{environment} is a link to {aim}; set up the environment there', file=sys.stderr)
    return 2
  descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    print(f'waiting for another process that holds {path}', file=sys.stderr)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
  try:
    return subprocess.run(command).returncode
  except KeyboardInterrupt:
    return 130


if __name__ == '__main__':
  sys.exit(main(sys.argv[1], sys.argv[2:]))
