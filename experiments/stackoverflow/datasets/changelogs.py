"""Entries of people in a machine's Debian changelogs."""

import collections
import glob
import gzip
import os
import re

_STANZA = re.compile(r'^\S+ \([^)]+\)[^\n]*\n(.*?)^ -- ([^<\n]*?) <[^\n]*$', re.M | re.S)
_SECTION = re.compile(r'\s*\[ (.+?) \]\s*$')


def entries(root: str | os.PathLike[str]) -> dict[str, list[str]]:
  """Returns the entries of each person, by the name as written.

  An entry is by the person in brackets above it, or else by the one who signed the version.
  """
  people = collections.defaultdict(list)
  for path in sorted(glob.glob(f'{root}/*/changelog*.gz')):
    try:
      with gzip.open(path, 'rt', encoding='utf-8', errors='replace') as file:
        stanzas = _STANZA.findall(file.read())
    except (OSError, EOFError):
      continue
    for body, name in stanzas:
      for entry in re.split(r'\n(?=  [*\[])', '\n' + body):
        if section := _SECTION.match(entry):
          name = section[1]
        else:
          people[name.strip()].append(' '.join(entry.split()))
  return dict(people)
