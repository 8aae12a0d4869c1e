"""Paths that users give, which are files and folders of this machine."""

import os
import pathlib
import re

from fl_dpftrl.support.text import messages

# Also of an address that was made a path, which takes one of its slashes.
_ADDRESS = re.compile(r'[A-Za-z][A-Za-z0-9+.-]+:/')


def local(path: str | os.PathLike[str]) -> pathlib.Path:
  """Returns a path; raises ValueError for an address such as gs://bucket/run."""
  text = os.fspath(path)
  if _ADDRESS.match(text):
    raise ValueError(
      f'{messages.quoted(text)} is an address, and files are kept on this machine: give a path of a'
      ' local disk; docs/production.md says what may be copied to a bucket'
    )
  return pathlib.Path(text)
