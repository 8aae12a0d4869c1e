"""Layers are those that docs/layout.md draws, and private members stay in their file."""

import ast
import pathlib
import re
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
# Public members of named tuples and of `os`, and what other libraries have under no public name.
PUBLIC = {'_asdict', '_exit', '_fields', '_make', '_replace'}
LIBRARIES = {'_ActionsContainer', '_context', '_modulus', '_symmetric_range', '_to_proto'}


def layers_of_the_contract() -> list[set[str]]:
  tools = tomllib.loads((ROOT / 'pyproject.toml').read_text())['tool']
  (layers,) = [c['layers'] for c in tools['importlinter']['contracts'] if c['id'] == 'layers']
  return [set(re.findall(r'\w+', layer)) for layer in layers]


def layers_of_the_drawing() -> list[set[str]]:
  page = (ROOT / 'docs/layout.md').read_text()
  drawing = re.search(r'imports only those below it.*?```\n(.*?)```', page, re.S)
  return [set(re.findall(r'\w+', line.split('  ')[0])) for line in drawing[1].splitlines()]


def test_the_drawing_shows_the_contract():
  assert layers_of_the_drawing() == layers_of_the_contract()


def private_members_of_other_files(source: str) -> list[str]:
  """Returns the private members that a module takes of anything but what it defines itself.

  A class may use those of its base classes, as `self._x`.
  """
  nodes = list(ast.walk(ast.parse(source)))
  attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
  members = {n.name for n in nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
  members |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
  members |= {n.attr for n in attributes if ast.unparse(n) == f'self.{n.attr}' and is_stored(n)}
  aliases = [n for n in nodes if isinstance(n, (ast.Import, ast.ImportFrom))]
  names = {alias.asname or alias.name for node in aliases for alias in node.names}
  taken = {name for name in names if name.startswith('_') and not name.startswith('__')}
  for node in attributes:
    if not node.attr.startswith('_') or node.attr.startswith('__') or node.attr in PUBLIC:
      continue
    base = ast.unparse(node.value)
    if base not in ('self', 'cls', 'super()') and (base in names or node.attr not in members):
      taken.add(f'{base}.{node.attr}')
  return sorted(name for name in taken if name.rpartition('.')[2] not in LIBRARIES)


def is_stored(node: ast.Attribute) -> bool:
  return isinstance(node.ctx, ast.Store)


@pytest.mark.parametrize(
  'source, taken',
  [
    ('x._y', ['x._y']),
    ('self.x._y', ['self.x._y']),
    ('from a import _b', ['_b']),
    ('import a\na._b\ndef _b(): pass', ['a._b']),
    ('class A:\n  def f(self, other): return self._x, super()._y, other._x', ['other._x']),
    ('class A:\n  def f(self, other): self._x = other._x', []),
    ('a._replace(b=1), a.__dict__', []),
  ],
)
def test_private_members_of_other_files_are_found(source, taken):
  assert private_members_of_other_files(source) == taken


def test_no_private_member_crosses_a_file():
  paths = [p for folder in ('fl_dpftrl', 'tff_inprocess') for p in (ROOT / folder).rglob('*.py')]
  found = {str(p.relative_to(ROOT)): private_members_of_other_files(p.read_text()) for p in paths}
  # A member of TensorFlow's own.
  assert {p: n for p, n in found.items() if n} == {'tff_inprocess/memory.py': ['_pywrap_util_port']}
