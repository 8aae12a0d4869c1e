"""Small files of facts with a digest: read as they were written, or refused."""

import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from fl_dpftrl import files, json_files

_DIGEST = 'sha256'


def write(path: str | os.PathLike[str], facts: Mapping[str, Any], *, durable: bool = True) -> None:
  """Replaces a file by facts and their digest, readable by its owner alone.

  Args:
    path: its folder must exist.
    facts: of names that JSON can hold, none of them `sha256`.
    durable: whether the file must survive a loss of power.

  Raises:
    OSError: where it cannot be written; the old content is then still there.
  """
  text = json.dumps({**facts, _DIGEST: _digest(facts)})
  with files.replacing(path, private=True, durable=durable) as temporary:
    temporary.write_text(text)


def read(path: str | os.PathLike[str]) -> json_files.Object:
  """The facts in a file that `write` wrote.

  Raises:
    FileNotFoundError: where there is no such file.
    ValueError: naming the file, where it cannot be read, has no digest, or has the digest of
      other facts.
  """
  try:
    facts = json.loads(pathlib.Path(path).read_bytes())
    intact = facts.pop(_DIGEST) == _digest(facts)
  except FileNotFoundError:
    raise
  except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
    raise ValueError(f'{path} is not readable: {error} ({type(error).__name__})') from error
  if not intact:
    raise ValueError(f'{path} is not readable: its digest is of other content')
  return facts


def _digest(facts: Mapping[str, Any]) -> str:
  text = json.dumps(facts, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()
