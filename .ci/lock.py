"""Adds to a lock file the digests of the files that each pin may install.

Change the pins in the file, then run `python .ci/lock.py requirements.lock`. The digests are
those that the package index states for the release's wheels for CPython 3.11 to 3.13, on Linux
and on Macs with Apple's processors. Nothing is built from source.
"""

import html
import pathlib
import re
import sys
import urllib.request

from pip._internal.models.index import PyPI

_ANCHOR = re.compile(r'<a\s[^>]*href="([^"]*)"[^>]*>([^<]*)</a>')
_TAGS = re.compile(
  r'(py3|py2\.py3|cp3(?:\d|1[0-3])-abi3|(cp31[1-3])-\2)'
  r'.*-(any|manylinux.*(x86_64|aarch64)|macosx.*(arm64|universal2))\.whl'
)


def digests(name: str, version: str) -> list[str]:
  """SHA-256 of each wheel that may be installed, sorted.

  Raises:
    ValueError: where the index has no such wheel, or states no SHA-256 of it.
  """
  with urllib.request.urlopen(f'{PyPI.simple_url}/{name}/') as page:
    links = _ANCHOR.findall(page.read().decode())
  found = set()
  for link, file in links:
    owner, release, tags = (*file.strip().split('-', 2), '', '')[:3]
    if (_normal(owner), release) != (_normal(name), version) or not _TAGS.fullmatch(tags):
      continue
    digest = re.search(r'#sha256=([0-9a-f]{64})', html.unescape(link))
    if digest is None:
      raise ValueError(f'{file} has no SHA-256 in the index')
    found.add(digest[1])
  if not found:
    raise ValueError(f'{name}=={version} has no wheel in the index')
  return sorted(found)


def _normal(name: str) -> str:
  return re.sub(r'[-_.]+', '-', name).lower()


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
