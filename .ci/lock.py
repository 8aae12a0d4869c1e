"""Adds to a lock file the digests of the files that each pin may install.

Change the pins in the file, then run `python .ci/lock.py requirements.lock`.
The digests are those that the package index states for the release's source and
for its wheels on Linux and macOS: for CPython 3.10 and 3.11 in requirements.lock, for
3.12 in requirements-py312.lock, and for all three in the locks of tools.
"""

import html
import pathlib
import re
import sys
import urllib.request

from pip._internal.models.index import PyPI

_ANCHOR = re.compile(r'<a\s[^>]*href="([^"]*)"[^>]*>([^<]*)</a>')
_ANY = r'|py3|py2\.py3|cp3\d?-abi3'
_PYTHONS = {'requirements.lock': 'cp310|cp311', 'requirements-py312.lock': 'cp312'}
_EVERY_PYTHON = 'cp310|cp311|cp312'
_PLATFORMS = re.compile(r'any|manylinux.*(x86_64|aarch64)|macosx.*')


def digests(name: str, version: str, pythons: str) -> list[str]:
  """SHA-256 of each file that may be installed, sorted.

  Args:
    name: the package's name in the index.
    version: its release.
    pythons: a pattern of the tags of CPython whose wheels may be installed.

  Raises:
    ValueError: where the index has no such file, or states no SHA-256 of it.
  """
  with urllib.request.urlopen(f'{PyPI.simple_url}/{name}/') as page:
    links = _ANCHOR.findall(page.read().decode())
  found = set()
  for link, file in links:
    if not _is_wanted(file.strip(), name, version, pythons):
      continue
    digest = re.search(r'#sha256=([0-9a-f]{64})', html.unescape(link))
    if digest is None:
      raise ValueError(f'{file} has no SHA-256 in the index')
    found.add(digest[1])
  if not found:
    raise ValueError(f'{name}=={version} has no file in the index')
  return sorted(found)


def _is_wanted(file: str, name: str, version: str, pythons: str) -> bool:
  normal = re.sub(r'[-_.]+', '-', name).lower()
  if file.endswith(('.tar.gz', '.zip')):
    stem = re.sub(r'\.tar\.gz$|\.zip$', '', file)
    owner, _, release = stem.rpartition('-')
  elif file.endswith('.whl'):
    owner, release, *tags = file[: -len('.whl')].split('-')
    python, abi, platform = tags[-3:]
    tag = re.search(pythons + _ANY, f'{python}-{abi}')
    if not (tag and _PLATFORMS.fullmatch(platform)):
      return False
  else:
    return False
  return re.sub(r'[-_.]+', '-', owner).lower() == normal and release == version


def main(path: pathlib.Path) -> None:
  pins = re.findall(r'^([A-Za-z0-9_.-]+)==([^\s\\]+)', path.read_text(), re.M)
  pythons = _PYTHONS.get(path.name, _EVERY_PYTHON)
  blocks = []
  for name, version in pins:
    lines = [f'{name}=={version}']
    lines += [f'    --hash=sha256:{d}' for d in digests(name, version, pythons)]
    blocks.append(' \\\n'.join(lines))
  path.write_text('\n'.join(blocks) + '\n')


if __name__ == '__main__':
  for argument in sys.argv[1:]:
    main(pathlib.Path(argument))
