"""Texts by unit: people of the machine's changelogs, source files, or text files of one's own.

What a unit contributes depends on its own text only, and which units there are, in which order, on
their names only: duplicates are removed within a unit, and one with little or no text takes part
all the same. A text that several wrote may therefore be in training and held out.
"""

import collections
import dataclasses
import glob
import gzip
import hashlib
import hmac
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from experiments.stackoverflow.datasets import docstring_text
from fl_dpftrl.support.files import paths
from fl_dpftrl.support.text import messages

if TYPE_CHECKING:
  import tokenizers

NAMES = ('changelogs', 'docstrings', 'public')
FEWEST_PEOPLE = 400
PADDING = -1
"""Id after the end of a text, which is no target."""

_SHORTEST_ENTRY = 20  # characters
SHORTEST_HELD_OUT = 25  # tokens
_MOST_FILES = 1500  # source files that are parsed, in the order of a hash of their names
_HELD_OUT = 10  # one unit of so many
_STANZA = re.compile(r'^\S+ \([^)]+\)[^\n]*\n(.*?)^ -- ([^<\n]*?) <[^\n]*$', re.M | re.S)
_SECTION = re.compile(r'\s*\[ (.+?) \]\s*$')
_PROMPTS = {'changelogs': '* Fix the', 'docstrings': 'Returns the', 'public': 'Return the'}

Texts = Mapping[str, Sequence[str]]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Units:
  """Units by name, each with its texts joined in an order that the name draws.

  Attributes:
    source: where the text is from; one of `NAMES`, or 'own'.
    unit: what a unit is.
    train: name → text.
    held_out: name → text, for evaluation.
  """

  source: str
  unit: str
  train: Mapping[str, str]
  held_out: Mapping[str, str]

  @property
  def prompt(self) -> str:
    """Beginning of a text, which the model continues."""
    return _PROMPTS.get(self.source, 'The')


def load(name: str) -> Units:
  """Returns the units of a data set.

  Args:
    name: 'changelogs', people who wrote in /usr/share/doc; 'docstrings', source files of installed
      packages; 'public', source files of Python's standard library, which is public text; or a
      folder with a .txt file for each person.

  Raises:
    ValueError: for another name, and where there are fewer than 400 training units.
  """
  if name == 'changelogs':
    source, unit, texts = name, 'a person', changelogs('/usr/share/doc')
  elif name in NAMES:
    source, unit, texts = name, 'a source file', docstrings(is_public=name == 'public')
  elif os.path.isdir(name):
    source, unit, texts = 'own', 'a text file', folder(paths.local(name))
  else:
    raise ValueError(
      f'--text={messages.quoted(name)} is neither one of {", ".join(NAMES)} nor a folder'
    )
  train, held_out = divided(texts)
  if len(train) < FEWEST_PEOPLE:
    raise ValueError(
      f'--text={messages.quoted(name)} has {len(train)} training units, and training needs'
      f' {FEWEST_PEOPLE}; --text=docstrings is on every machine'
    )
  return Units(source=source, unit=unit, train=train, held_out=held_out)


def changelogs(root: str | os.PathLike[str]) -> dict[str, list[str]]:
  """Returns the entries of each person in a machine's Debian changelogs, by the name as written.

  An entry is by the person in brackets above it, or else by the one who signed the version.
  """
  entries = collections.defaultdict(list)
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
          entries[name.strip()].append(' '.join(entry.split()))
  return dict(entries)


def docstrings(*, is_public: bool) -> dict[str, list[str]]:
  """Returns the docstrings of each source file: the standard library's, or installed packages'."""
  entries = {}
  files = docstring_text.source_files()
  names = [name for name in files if name.startswith('stdlib/') == is_public]
  for name in sorted(names, key=_number)[:_MOST_FILES]:
    try:
      entries[name] = docstring_text.docstrings_of(files[name].read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
      continue
  return entries


def folder(path: pathlib.Path) -> dict[str, list[str]]:
  """Returns the paragraphs of each .txt file of a folder; ValueError for one not in UTF-8."""
  entries = {}
  for file in sorted(path.glob('*.txt')):
    try:
      entries[file.stem] = file.read_text('utf-8').split('\n\n')
    except UnicodeDecodeError:
      raise ValueError(f'{path} has a file that is not text in UTF-8') from None
  return entries


def divided(texts: Texts) -> tuple[dict[str, str], dict[str, str]]:
  """Returns the text of each training unit, and of one unit of ten that is held out, by name.

  The division and the order follow a hash of the name, and so do not change with other units, or
  with any text.
  """
  train, held_out = dict[str, str](), dict[str, str]()
  for name in sorted(texts, key=_number):
    entries = list(dict.fromkeys(t for t in texts[name] if len(t) >= _SHORTEST_ENTRY))
    order = np.random.default_rng(_number(name)).permutation(len(entries))
    part = held_out if _number(name) % _HELD_OUT == 0 else train
    part[name] = '\n'.join(entries[i] for i in order)
  return train, held_out


def rows(
  texts: Mapping[str, str],
  tokenizer: 'tokenizers.Tokenizer',
  length: int,
  at_most: int,
  *,
  fewest: int = 0,
) -> tuple[list[str], np.ndarray]:
  """Returns names and tokens, int32 [units, length + 1], of the first units.

  Texts are cut to length + 1 tokens; `PADDING` follows a shorter one. Units of training are taken
  whatever their text: one that was left out for it would move those after it.

  Args:
    fewest: tokens that a unit has at least.
  """
  encoded: dict[str, list[int]] = {}
  for name, text in texts.items():
    if len(encoded) == at_most:
      break
    ids = tokenizer.encode(text[: 9 * length]).ids[: length + 1]
    if len(ids) >= fewest:
      encoded[name] = ids + [PADDING] * (length + 1 - len(ids))
  return list(encoded), np.array(list(encoded.values()), np.int32).reshape(-1, length + 1)


def in_order(names: Sequence[str], seed: int) -> list[int]:
  """Returns the places of names in an order that a seed draws, whatever other names there are."""
  key = f'fl_dpftrl cohorts {seed}'.encode()
  drawn = [hmac.new(key, name.encode('utf-8', 'replace'), 'sha256').digest() for name in names]
  return sorted(range(len(names)), key=drawn.__getitem__)


def device_ids(names: Sequence[str], key: bytes) -> list[str]:
  """Returns keyed hashes of names, for logs: without the key nobody can tell whose they are."""
  return [
    hmac.new(key, name.encode('utf-8', 'replace'), hashlib.sha256).hexdigest()[:16]
    for name in names
  ]


def _number(name: str) -> int:
  """Returns a number of 64 bits that depends on the name only."""
  return int.from_bytes(hashlib.sha256(name.encode('utf-8', 'replace')).digest()[:8], 'big')
