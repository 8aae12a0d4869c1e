"""Texts by unit: people of the machine's changelogs, source files, or people of one's own texts.

What a unit contributes depends on its own text only, and which units there are, in which order, on
their names only: duplicates are removed within a unit, and one with little or no text takes part
all the same. A text that several wrote may therefore be in training and held out.
"""

import dataclasses
import hashlib
import hmac
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from experiments.stackoverflow.datasets import changelogs, docstring_text, texts
from fl_dpftrl.logs import id_spellings

if TYPE_CHECKING:
  import tokenizers

FEWEST_PEOPLE = 400
"""People of the machine's changelogs, below which docstrings are taken."""

MOST_UNITS = 700
"""Training units of the texts that machines have."""

PADDING = -1
"""Id after the end of a text, which is no target."""

_SHORTEST_ENTRY = 20  # characters
SHORTEST_HELD_OUT = 25  # tokens
_MOST_FILES = 1500  # source files that are parsed
_HELD_OUT = 10  # one unit of so many
_MOST = 40  # people of a round, of texts of the machine
_FEWEST = 2  # training units of one's own texts

Texts = Mapping[str, Sequence[str]]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Units:
  """Units by name, each with its texts joined in an order that the name draws.

  Attributes:
    source: where the text is from; one of `flags.NAMES`, or 'own'.
    unit: what a unit is.
    train: name → text.
    held_out: name → text, for evaluation.
    most: people of a round by default, for texts of the machine; None for as many as there can be.
  """

  source: str
  unit: str
  train: Mapping[str, str]
  held_out: Mapping[str, str]
  most: int | None = None


def load(name: str) -> Units:
  """Returns the units of a set of texts that machines have.

  Args:
    name: 'changelogs', people who wrote in /usr/share/doc; 'docstrings', source files of installed
      packages; or 'public', source files of Python's standard library, which is public text.

  Raises:
    ValueError: where there are fewer than 400 training units.
  """
  if name == 'changelogs':
    unit, entries = 'a person', changelogs.entries('/usr/share/doc')
  else:
    unit, entries = 'a source file', docstring_text.by_file(_MOST_FILES, is_public=name == 'public')
  train, held_out = divided(entries)
  if len(train) < FEWEST_PEOPLE:
    raise ValueError(
      f'--text={name} has {len(train)} training units on this machine, and {FEWEST_PEOPLE} are'
      ' needed; --text=docstrings is on every machine'
    )
  train = dict(list(train.items())[:MOST_UNITS])
  return Units(source=name, unit=unit, train=train, held_out=held_out, most=_MOST)


def own(
  path: pathlib.Path, person_column: str, text_column: str, say: Callable[[str], None]
) -> Units:
  """Returns the units of one's own texts, and says where two names may be of one person.

  Args:
    path: a table, or a folder with a .txt file, or a folder of them, for each person.
    person_column, text_column: columns of a table.
    say: takes lines.

  Raises:
    ValueError: for another file, and for texts of fewer than three people.
  """
  flags = '--person_column', '--text_column'
  contents, _ = texts.contents_of(path, person_column, text_column, flags)
  people: dict[str, list[str]] = {}
  for name, several in contents.items():
    if not all(isinstance(text, str) for text in several):
      raise ValueError(
        f'{path}: column {text_column} ({flags[1]}) must have text, and no token ids'
      )
    if path.is_dir() and name.endswith('.txt'):
      name = name.removesuffix('.txt').split('/')[0]
    people.setdefault(str(name), []).extend(several)
  spellings = id_spellings.Spellings()
  spellings.add(pa.array(people))
  for warning in id_spellings.warnings(spellings.mergeable, len(people)):
    say(f'names of people: {warning}')
  train, held_out = divided(people, shortest_entry=1)
  if not held_out:  # By the names only, as the division is.
    name = next(iter(train))
    held_out[name] = train.pop(name)
  if len(train) < _FEWEST:
    raise ValueError(f'{path} has texts of {len(people)} people, and at least 3 are needed')
  return Units(source='own', unit='a person', train=train, held_out=held_out)


def divided(
  texts: Texts, *, shortest_entry: int = _SHORTEST_ENTRY
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
  texts: Mapping[str, str],
  tokenizer: 'tokenizers.Tokenizer',
  length: int,
  *,
  blocks: int = 1,
  fewest: int = 0,
  at_most: int | None = None,
) -> tuple[list[str], np.ndarray, np.ndarray]:
  """Returns names, blocks of each name, and tokens of all blocks, int32 [blocks, length + 1].

  A block begins with the last token of the one before, which it does not predict. `PADDING` follows
  a shorter one. Units of training are taken whatever their text: one that was left out for it would
  move those after it.

  Args:
    blocks: most blocks of a unit, each of which has one at least.
    fewest: tokens that a unit has at least.
    at_most: units; None for all.
  """
  names, counts, tokens = list[str](), list[int](), list[list[int]]()
  for name, text in texts.items():
    if len(names) == at_most:
      break
    ids = tokenizer.encode(text[: 9 * length * blocks]).ids[: length * blocks + 1]
    if len(ids) < fewest:
      continue
    starts = range(0, max(len(ids) - 1, 1), length)
    names.append(name)
    counts.append(len(starts))
    parts = [ids[start : start + length + 1] for start in starts]
    tokens += [part + [PADDING] * (length + 1 - len(part)) for part in parts]
  return names, np.array(counts, int), np.array(tokens, np.int32).reshape(-1, length + 1)


def in_order(names: Sequence[str], seed: int) -> list[int]:
  """Returns the places of names in an order that a seed draws, whatever other names there are."""
  drawn = device_ids(names, f'fl_dpftrl cohorts {seed}'.encode())
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
