"""Result files of benchmarks, with the machine and versions of a measurement."""

import datetime
import json
import os
import pathlib
import platform
from typing import Any

from benchmarks import process
from fl_dpftrl.files import durable

_VERSIONS = """
import importlib.metadata, json, platform, sys
found = {'python': platform.python_version()}
for name in sys.argv[1:]:
  try:
    found[name] = importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    pass
print(json.dumps(found))
"""


def machine(cores_used: int | None) -> dict[str, Any]:
  """Returns the facts of the machine; cores_used is None for any core."""
  return {
    'date': datetime.date.today().isoformat(),
    'processor': platform.machine(),
    'cores': os.cpu_count(),
    'cores_used': cores_used,
  }


def versions(python: str, *names: str) -> dict[str, str]:
  """Returns the versions of an interpreter and of its named packages.

  Raises:
    OSError, ValueError: if the interpreter does not run.
  """
  done = process.run([python, '-c', _VERSIONS, *names], timeout=60.0)
  if done.failure:
    raise ValueError(done.failure)
  return json.loads(done.output)


def said(found: dict[str, str]) -> str:
  """Formats versions in one line."""
  return ', '.join(f'{name} {version}' for name, version in found.items())


def write(folder: pathlib.Path, name: str, text: str, as_json: Any) -> None:
  """Writes NAME.md and NAME.json."""
  data = json.dumps(as_json, indent=2) + '\n'
  durable.write_durably(folder / f'{name}.md', text.encode())
  durable.write_durably(folder / f'{name}.json', data.encode())
