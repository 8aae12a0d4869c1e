"""Where something was measured, and the files that say what came out."""

import datetime
import json
import os
import pathlib
import platform
from typing import Any

from benchmarks import process
from fl_dpftrl import files

_VERSIONS = '''
import importlib.metadata, json, platform, sys
found = {'python': platform.python_version()}
for name in sys.argv[1:]:
  try:
    found[name] = importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    pass
print(json.dumps(found))
'''


def machine(cores_used: int | None) -> dict[str, Any]:
  """What a reader needs to know of where it ran; None for any core."""
  return {
      'date': datetime.date.today().isoformat(),
      'processor': platform.machine(),
      'cores': os.cpu_count(),
      'cores_used': cores_used,
  }


def versions(python: str, *names: str) -> dict[str, str]:
  """Of an interpreter, and of the named packages that it has.

  Raises:
    OSError, ValueError: where it does not run.
  """
  done = process.run([python, '-c', _VERSIONS, *names], timeout=60.0)
  if done.failure:
    raise ValueError(done.failure)
  return json.loads(done.output)


def said(found: dict[str, str]) -> str:
  """Versions in a line."""
  return ', '.join(f'{name} {version}' for name, version in found.items())


def write(folder: pathlib.Path, name: str, text: str, as_json: Any) -> None:
  """NAME.md and NAME.json."""
  data = json.dumps(as_json, indent=2) + '\n'
  files.write_durably(folder / f'{name}.md', text.encode())
  files.write_durably(folder / f'{name}.json', data.encode())
