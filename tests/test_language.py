"""Docstrings begin with a verb or a noun phrase."""

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
# A sentence that begins so leaves its subject to be guessed.
UNCLEAR = re.compile(r'(Of|Who|What|Whether|Where|From)\b')


def docstrings(folder):
  """Yields place and text of each docstring of a folder's modules."""
  for path in sorted((ROOT / folder).rglob('*.py')):
    for node in ast.walk(ast.parse(path.read_text('utf-8'))):
      if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        if text := ast.get_docstring(node):
          yield f'{path.relative_to(ROOT)}: {getattr(node, "name", "module")}', text


def test_docstrings_begin_with_a_verb_or_a_noun():
  folders = ('fl_dpftrl', 'tff_inprocess', 'experiments', 'examples')
  found = [pair for folder in folders for pair in docstrings(folder)]
  assert len(found) > 1000
  assert not [place for place, text in found if UNCLEAR.match(text)]


def test_no_module_is_over_400_lines():
  files = [p for folder in ('fl_dpftrl', 'tff_inprocess') for p in (ROOT / folder).rglob('*.py')]
  lengths = {p: len(p.read_text('utf-8').splitlines()) for p in files}
  assert not {str(p.relative_to(ROOT)): n for p, n in lengths.items() if n > 400}
