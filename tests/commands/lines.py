"""Runs command lines in this process, with what they print."""

import contextlib
import io
import os
import subprocess
from collections.abc import Iterator, Sequence

from fl_dpftrl.commands import main


def run(arguments: Sequence[str], *, cwd: str | None = None) -> subprocess.CompletedProcess:
  """Runs `fl-dpftrl` with arguments, as a process of its own would end."""
  output, errors = io.StringIO(), io.StringIO()
  status = 0
  with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors), _inside(cwd):
    try:
      main.main([str(one) for one in arguments])
    except SystemExit as end:
      status = end.code or 0
  return subprocess.CompletedProcess(arguments, status, output.getvalue(), errors.getvalue())


@contextlib.contextmanager
def _inside(folder: str | None) -> Iterator[None]:
  before = os.getcwd()
  os.chdir(folder or before)
  try:
    yield
  finally:
    os.chdir(before)
