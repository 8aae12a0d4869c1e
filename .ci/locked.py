"""Runs a command while holding a lock file: python .ci/locked.py FILE COMMAND…

A second process waits until the first has ended, however it ends.
"""

import fcntl
import os
import subprocess
import sys


def main(path: str, command: list[str]) -> int:
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
