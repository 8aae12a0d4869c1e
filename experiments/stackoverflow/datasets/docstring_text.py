"""English docstrings of the Python library and of the installed packages.

The standard library is public text, for a public start. One device is one source file of an
installed package. Files are parsed, never imported. The text is brought into the form of
StackOverflow's: lower case, punctuation marks as words of their own, one sentence at a time.
"""

import ast
import collections
import hashlib
import io
import os
import pathlib
import re
import sys
import sysconfig
import warnings
from collections.abc import Callable, Mapping

import numpy as np

from experiments.stackoverflow.datasets import federated_text, vocabularies
from fl_dpftrl.support.files import durable, paths
from fl_dpftrl.support.text import messages

LICENCE = (
  'Docstrings of the Python standard library and of installed packages; each is under the licence'
  ' of its package. Nothing is distributed: the text is read from where it is installed.'
)
SPLITS = ('train', 'validation', 'test')

# Part of the cache's name: change it whenever the sentences change.
_FORMAT = 3
_PUBLIC = 'stdlib/'  # Client ids of public text start so.
# Tests say little in English, and not every installation has them. The rest is
# other packages' folder, our own package, and the installer.
_SKIPPED_IN_STDLIB = {'test', 'tests', 'site-packages', 'dist-packages'}
_SKIPPED_IN_SITE = {'experiments', 'fl_dpftrl', 'pip'}
_SENTENCE_END = re.compile(r'\n\s*\n|(?<=[.!?])\s')
_WORD = re.compile(r"[a-z]+(?:['-][a-z]+)*|[0-9]+|[.,:;?!()]")

Sentences = list[list[str]]


def split_of(client_id: str) -> str:
  """'train', 'validation' or 'test' in 8 : 1 : 1, by a hash of only the id."""
  digest = hashlib.sha256(client_id.encode()).digest()
  return {0: 'test', 1: 'validation'}.get(int.from_bytes(digest[:8], 'big') % 10, 'train')


def sentences_of(text: str, length: int, words: re.Pattern[str] = _WORD) -> Sentences:
  """The sentences of a text as lists of 2 to `length` words.

  By default words are runs of letters (apostrophes and hyphens inside), runs of
  digits, and single punctuation marks; anything else separates. A sentence ends at a
  full stop, question or exclamation mark before white space, or at an empty
  line; a longer one is cut. Pieces without a letter are left out.
  """
  pieces = []
  for sentence in _SENTENCE_END.split(text.lower()):
    found = words.findall(sentence)
    for start in range(0, len(found), length):
      piece = found[start : start + length]
      if len(piece) > 1 and any(word[0].isalpha() for word in piece):
        pieces.append(piece)
  return pieces


def docstrings_of(source: bytes) -> list[str]:
  """The docstrings of a module, its classes and functions, in order.

  Raises:
    SyntaxError, ValueError: if the source is not Python.
  """
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    stack = [ast.parse(source)]
  found = []
  while stack:
    node = stack.pop()
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
      docstring = ast.get_docstring(node)
      if docstring:
        found.append(docstring)
    # Only statements can hold definitions; expressions are most of the tree.
    for block in ('finalbody', 'orelse', 'handlers', 'cases', 'body'):
      children = getattr(node, block, None)
      if isinstance(children, list):
        stack.extend(reversed(children))
  return found


def source_files() -> dict[str, pathlib.Path]:
  """Source files by client id, e.g. 'stdlib/json/decoder.py': public ones first, then sorted."""
  roots = (
    ('site', sysconfig.get_path('purelib'), _SKIPPED_IN_SITE),
    ('stdlib', sysconfig.get_path('stdlib'), _SKIPPED_IN_STDLIB),
  )
  found = {}
  for name, root, skipped in roots:
    for folder, subfolders, names in os.walk(root):
      if name == 'stdlib' or folder == root:
        subfolders[:] = [each for each in subfolders if each not in skipped]
      client = name + folder[len(root) :].replace(os.sep, '/')
      for each in names:
        if each.endswith('.py'):
          found[f'{client}/{each}'] = pathlib.Path(folder, each)
  return dict(sorted(found.items(), key=lambda item: (not item[0].startswith(_PUBLIC), item[0])))


def by_file(at_most: int, *, is_public: bool) -> dict[str, list[str]]:
  """Returns the docstrings of source files, the standard library's or installed packages'.

  The files are the first ones by a hash of their names, whatever is in them.
  """
  docstrings, files = {}, source_files()
  names = [name for name in files if name.startswith(_PUBLIC) == is_public]
  number = lambda name: hashlib.sha256(name.encode('utf-8', 'replace')).digest()[:8]
  for name in sorted(names, key=number)[:at_most]:
    try:
      docstrings[name] = docstrings_of(files[name].read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
      continue
  return docstrings


def distinct_sentences(
  sources: Mapping[str, pathlib.Path], length: int, progress: Callable[[int, int], None]
) -> dict[str, Sentences]:
  """The sentences of each file, each once, without those of public text.

  No training device changes what another one has. Files held out lose the sentences that training
  devices have, as text is copied between files a lot. Public files come first, and lose those that
  a public file before them has. Unreadable files and files without a sentence left are left out.
  """
  public: set[str] = set()
  clients: dict[str, dict[str, list[str]]] = {}
  for done, (client_id, path) in enumerate(sources.items(), start=1):
    progress(done, len(sources))
    try:
      docstrings = docstrings_of(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
      continue
    pieces = (piece for docstring in docstrings for piece in sentences_of(docstring, length))
    texts = {' '.join(piece): piece for piece in pieces}
    clients[client_id] = {text: piece for text, piece in texts.items() if text not in public}
    if client_id.startswith(_PUBLIC):
      public |= texts.keys()
  trained = {text for name, texts in clients.items() if _part(name) == 'train' for text in texts}
  result = {}
  for client_id, texts in clients.items():
    held_out = _part(client_id) in SPLITS[1:]
    sentences = [p for text, p in texts.items() if not (held_out and text in trained)]
    if sentences:
      result[client_id] = sentences
  return result


def _part(client_id: str) -> str:
  return 'public' if client_id.startswith(_PUBLIC) else split_of(client_id)


def _print_progress(done: int, total: int) -> None:
  if done % 2000 == 0 or done == total:
    print(f'docstrings: {done} of {total} files parsed', file=sys.stderr)


def _fingerprint(sources: Mapping[str, pathlib.Path], length: int) -> str:
  """Changes with the form of the sentences and with any file's name or size."""
  digest = hashlib.sha256(f'{_FORMAT} {length}\n'.encode())
  for client_id, path in sources.items():
    digest.update(f'{client_id} {path.stat().st_size}\n'.encode())
  return digest.hexdigest()[:16]


def _pack(clients: Mapping[str, Sentences], length: int) -> dict[str, np.ndarray]:
  """The arrays of the cache: rows of all clients one after the other.

  The vocabulary is that of the public text and of the training devices, whole: `_unpack` cuts it.
  """
  counts = collections.Counter()
  for client_id, sentences in clients.items():
    if _part(client_id) in ('public', 'train'):
      for sentence in sentences:
        counts.update(sentence)
  if not counts:
    raise ValueError(
      'no docstrings found in the Python library and installed packages; set'
      ' up the locked environment first, or use another data set'
    )
  vocabulary = vocabularies.by_frequency(counts)
  rows = [vocabulary.encode(s, length) for s in clients.values()]
  return {
    'words': np.array(vocabulary.words),
    'clients': np.array(list(clients)),
    'num_sentences': np.array([len(r) for r in rows]),
    'rows': np.concatenate(rows),
  }


def _read_cache(path: pathlib.Path) -> dict[str, np.ndarray] | None:
  """The arrays, or None if the file is missing or damaged."""
  try:
    with np.load(path, allow_pickle=False) as stored:
      arrays = {name: stored[name] for name in ('words', 'clients', 'num_sentences', 'rows')}
  except FileNotFoundError:
    return None
  except Exception as error:  # A damaged file can fail in any way at all.
    print(messages.one_line(f'{path} is damaged ({error}): rebuilding it'), file=sys.stderr)
    return None
  return arrays


def _write_cache(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
  buffer = io.BytesIO()
  np.savez_compressed(buffer, **arrays)
  path.parent.mkdir(parents=True, exist_ok=True)
  durable.write_durably(path, buffer.getvalue())


def load(
  *,
  cache_dir: str | os.PathLike = '.cache',
  vocabulary_size: int = 10_000,
  length: int = 20,
  min_sentences: int = 5,
  num_validation_sentences: int = 5000,
) -> federated_text.Dataset:
  """The data set; the first call parses for about half a minute.

  Args:
    min_sentences: files with fewer sentences of their own are no device.
    num_validation_sentences: most sentences of the validation set, an even
      choice from all of its devices; the test set is whole.
  """
  sources = source_files()
  name = f'docstrings-{_fingerprint(sources, length)}.npz'
  path = paths.local(cache_dir) / name
  arrays = _read_cache(path)
  if arrays is None:
    clients = distinct_sentences(sources, length, _print_progress)
    arrays = _pack(clients, length)
    _write_cache(path, arrays)
  return _unpack(arrays, vocabulary_size, min_sentences, num_validation_sentences)


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
  """Returns a digest of the corpus, which depends on what is installed."""
  digest = hashlib.sha256()
  for name in sorted(arrays):
    digest.update(f'{name} {arrays[name].dtype} {arrays[name].shape}\n'.encode())
    digest.update(np.ascontiguousarray(arrays[name]).tobytes())
  return digest.hexdigest()[: federated_text.DIGEST_LENGTH]


def _unpack(
  arrays: Mapping[str, np.ndarray],
  vocabulary_size: int,
  min_sentences: int,
  num_validation_sentences: int,
) -> federated_text.Dataset:
  whole = vocabularies.Vocabulary(arrays['words'].tolist())
  vocabulary = whole.most_frequent(vocabulary_size)
  rows = whole.translate(arrays['rows'], vocabulary)
  parts = np.split(rows, np.cumsum(arrays['num_sentences'])[:-1])
  by_split, public = {name: {} for name in SPLITS}, []
  for client_id, rows in zip(arrays['clients'].tolist(), parts):
    if client_id.startswith(_PUBLIC):
      public.append(rows)
    elif len(rows) >= min_sentences:
      by_split[split_of(client_id)][client_id] = rows
  for name, clients in by_split.items():
    if not clients:
      raise ValueError(
        f'no source file with {min_sentences} sentences is in the {name}'
        ' split; ask for fewer sentences or install more packages'
      )
  train = by_split['train']
  validation = np.concatenate(list(by_split['validation'].values()))
  step = -(-len(validation) // num_validation_sentences)
  return federated_text.Dataset(
    name='docstrings',
    vocabulary=vocabulary,
    train_clients=tuple(train),
    sentences=train.__getitem__,
    validation=validation[::step],
    test=np.concatenate(list(by_split['test'].values())),
    unigram_token=federated_text.unigram_token(train.values(), vocabulary),
    licence=LICENCE,
    unit='a source file',
    digest=_digest(arrays),
    public=np.concatenate(public),
  )
