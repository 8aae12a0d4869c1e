"""Texts by unit: people of the machine's changelogs, source files, or people of one's own texts.

What a unit contributes depends on its own text only, and which units there are, in which order, on
their names only: duplicates are removed within a unit, and one with little or no text takes part
all the same. A text that several wrote may therefore be in training and held out.
"""

import dataclasses
import hashlib
import hmac
import itertools
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from experiments.finetune.flags import NAMES
from experiments.stackoverflow.datasets import changelogs, docstring_text, texts
from fl_dpftrl.logs import id_spellings
from fl_dpftrl.support.files import paths
from fl_dpftrl.support.text import messages

PADDING = -1  # id after the end of a text, which is no target
_FEWEST = 450  # people of the machine's changelogs, below which docstrings are taken
_MOST = 616  # training units of texts that machines have: 44 in each of 14 rounds
_SHORTEST_ENTRY = 20  # characters, in texts that machines have
_MOST_FILES = 1500  # source files that are parsed
_HELD_OUT = 10  # one unit of so many


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Units:
  """Units, what one is, and their source: name → its texts, joined in an order the name draws."""

  source: str
  unit: str
  train: Mapping[str, str]
  held_out: Mapping[str, str]


def say(line: str) -> None:
  """Prints a line of progress."""
  print(messages.one_line(line), file=sys.stderr, flush=True)


def load(text: str | None, columns: tuple[str, str]) -> Units:
  """Returns the units of texts that machines have, or of one's own; ValueError for under three.

  Args:
    text: 'changelogs', people who wrote in /usr/share/doc; 'docstrings', source files of installed
      packages; 'public', source files of Python's standard library, which is public text; a table,
      or a folder with a .txt file, or a folder of them, for each person. None for changelogs, or
      for docstrings where these are of too few people.
    columns: person and text in a table.
  """
  is_own = text is not None and text not in NAMES
  if is_own:
    unit, entries = 'a person', _own(paths.local(text), columns)
  elif text in ('docstrings', 'public'):
    unit, entries = 'a source file', docstring_text.by_file(_MOST_FILES, is_public=text == 'public')
  else:
    unit, entries = 'a person', changelogs.entries('/usr/share/doc')
    if text is None and len(entries) < _FEWEST:
      say('this machine has changelogs of too few people: training with docstrings by source file')
      return load('docstrings', columns)
  train, held_out = divided(entries, shortest_entry=1 if is_own else _SHORTEST_ENTRY)
  if train and not held_out:  # By the names only, as the division is.
    name = next(iter(train))
    held_out[name] = train.pop(name)
  if len(train) < 2:
    raise ValueError(f'--text={text} has texts of {len(entries)} units, and at least 3 are needed')
  train = dict(itertools.islice(train.items(), None if is_own else _MOST))
  return Units('own' if is_own else text or 'changelogs', unit, train, held_out)


def _own(path: pathlib.Path, columns: tuple[str, str]) -> dict[str, list[str]]:
  """Returns the texts of each person, and says where two names may be of one person."""
  contents, _ = texts.contents_of(path, *columns, ('--columns', '--columns'))
  people: dict[str, list[str]] = {}
  for key, entries in contents.items():
    name = str(key)  # A table may have whole numbers.
    if not all(isinstance(entry, str) for entry in entries):
      raise ValueError(f'{path}: column {columns[1]} (--columns) must have text, and no token ids')
    if path.is_dir() and name.endswith('.txt'):
      name = name.removesuffix('.txt').split('/')[0]
    people.setdefault(name, []).extend(entries)
  spellings = id_spellings.Spellings()
  spellings.add(pa.array(people))
  for warning in id_spellings.warnings(spellings.mergeable, len(people)):
    say(f'names of people: {warning}')
  return people


def divided(
  texts: Mapping[str, Sequence[str]], *, shortest_entry: int
) -> tuple[dict[str, str], dict[str, str]]:
  """Returns the text of each training unit, and of one unit of ten that is held out, by name.

  The division and the order follow a hash of the name, and so do not change with other units, or
  with any text.
  """
  train, held_out = dict[str, str](), dict[str, str]()
  for name in sorted(texts, key=_number):
    entries = list(dict.fromkeys(t for t in texts[name] if len(t.strip()) >= shortest_entry))
    order = np.random.default_rng(_number(name)).permutation(len(entries))
    part = held_out if _number(name) % _HELD_OUT == 0 else train
    part[name] = '\n'.join(entries[i] for i in order)
  return train, held_out


def rows(
  texts: Mapping[str, str], tokenizer: Any, length: int, blocks: int = 1
) -> tuple[list[str], np.ndarray, np.ndarray]:
  """Returns names, blocks of each name, and tokens of all blocks, int32 [blocks, length + 1].

  A block begins with the last token of the one before, which it does not predict. `PADDING` follows
  a shorter one. A unit has one block at least, and `blocks` at most: one that was left out for its
  text would move those after it.
  """
  counts, tokens = list[int](), list[list[int]]()
  for text in texts.values():
    ids = tokenizer.encode(text[: 9 * length * blocks]).ids[: length * blocks + 1]
    starts = range(0, max(len(ids) - 1, 1), length)
    counts.append(len(starts))
    parts = [ids[start : start + length + 1] for start in starts]
    tokens += [part + [PADDING] * (length + 1 - len(part)) for part in parts]
  return list(texts), np.array(counts, int), np.array(tokens, np.int32).reshape(-1, length + 1)


def in_order(names: Sequence[str], seed: int) -> list[int]:
  """Returns the places of names in an order that a seed draws, whatever other names there are."""
  drawn = device_ids(names, f'fl_dpftrl cohorts {seed}'.encode())
  return sorted(range(len(names)), key=drawn.__getitem__)


def device_ids(names: Sequence[str], key: bytes) -> list[str]:
  """Returns keyed hashes of names, for logs: without the key nobody can tell whose they are."""
  keyed = lambda name: hmac.digest(key, name.encode('utf-8', 'replace'), 'sha256')
  return [keyed(name).hex()[:16] for name in names]


def _number(name: str) -> int:
  """Returns a number of 64 bits that depends on the name only."""
  return int.from_bytes(hashlib.sha256(name.encode('utf-8', 'replace')).digest()[:8], 'big')
