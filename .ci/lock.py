"""Adds to a lock file the digests of the files that each pin may install.

Change the pins in the file, then run `python .ci/lock.py requirements.lock`.
The digests are those that the package index states for the release's source and
for its wheels for CPython 3.10 and 3.11 on Linux and macOS.
"""

import html
import pathlib
import re
import sys
import urllib.request

from pip._internal.models.index import PyPI

_ANCHOR = re.compile(r'<a\s[^>]*href="([^"]*)"[^>]*>([^<]*)</a>')
_PYTHONS = re.compile(r'cp310|cp311|py3|py2\.py3|cp3\d?-abi3')
_PLATFORMS = re.compile(r'any|manylinux.*(x86_64|aarch64)|macosx.*')


def digests(name: str, version: str) -> list[str]:
  """SHA-256 of each file that may be installed, sorted.

  Raises:
    ValueError: where the index has no such file, or states no SHA-256 of it.
  """
  with urllib.request.urlopen(f'{PyPI.simple_url}/{name}/') as page:
    links = _ANCHOR.findall(page.read().decode())
  found = set()
  for link, file in links:
    if not _is_wanted(file.strip(), name, version):
      continue
    digest = re.search(r'#sha256=([0-9a-f]{64})', html.unescape(link))
    if digest is None:
      raise ValueError(f'{file} has no SHA-256 in the index')
    found.add(digest[1])
  if not found:
    raise ValueError(f'{name}=={version} has no file in the index')
  return sorted(found)


def _is_wanted(file: str, name: str, version: str) -> bool:
  normal = re.sub(r'[-_.]+', '-', name).lower()
  if file.endswith(('.tar.gz', '.zip')):
    stem = re.sub(r'\.tar\.gz$|\.zip$', '', file)
    owner, _, release = stem.rpartition('-')
  elif file.endswith('.whl'):
    owner, release, *tags = file[: -len('.whl')].split('-')
    python, abi, platform = tags[-3:]
    if not (_PYTHONS.search(f'{python}-{abi}') and _PLATFORMS.fullmatch(platform)):
      return False
  else:
    return False
  return re.sub(r'[-_.]+', '-', owner).lower() == normal and release == version


def main(path: pathlib.Path) -> None:
  pins = re.findall(r'^([A-Za-z0-9_.-]+)==([^\s\\]+)', path.read_text(), re.M)
  blocks = []
  for name, version in pins:
    lines = [f'{name}=={version}']
    lines += [f'    --hash=sha256:{d}' for d in digests(name, version)]
    blocks.append(' \\\n'.join(lines))
  path.write_text('\n'.join(blocks) + '\n')


if __name__ == '__main__':
  for argument in sys.argv[1:]:
    main(pathlib.Path(argument))
