"""Writes signatures and summaries of docs/api.md, for a checkout: python .ci/signatures.py

Each heading of the page that is a public name in backquotes is followed by the first paragraph of
its docstring and a block with its signature; a class shows its documented methods too, each with
the first line of its docstring. Nothing is imported: all is read from the source.
"""

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / 'docs' / 'api.md'
PACKAGE = 'fl_dpftrl'
_ENTRY = re.compile(
  r'^(### `([\w.]+)`\n)(?:(?:\n(?!#|:::|```)[^\n]+\n)?\n```python\n.*?^```\n)?', re.M | re.S
)
_WIDTH = 96
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def find(name: str) -> tuple[str, Definition]:
  """Returns the module and the definition of a name, such as 'account' or 'runtime.Later'.

  Raises:
    ValueError: if there is no such name.
  """
  *rooms, last = f'{PACKAGE}.{name}'.split('.')
  return _definition('.'.join(rooms), last)


def _definition(module: str, name: str) -> tuple[str, Definition]:
  path = ROOT.joinpath(*module.split('.'))
  if path.is_dir():
    path = path / ('__init__.pyi' if module == PACKAGE else '__init__.py')
  else:
    path = path.with_suffix('.py')
  if not path.exists():
    raise ValueError(f'{module} is no module')
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, Definition) and node.name == name:
      return module, node
    if isinstance(node, ast.ImportFrom):
      for alias in node.names:
        if (alias.asname or alias.name) == name:
          return _definition(str(node.module), alias.name)
  raise ValueError(f'{module} has no {name}')


def block(name: str) -> str:
  """Returns the signature of a name; that of a class has its documented methods too."""
  module, node = find(name)
  if not isinstance(node, ast.ClassDef):
    return _call(name, node)
  lines = [_construction(name, module, node)]
  for part in node.body:
    if not isinstance(part, ast.FunctionDef) or part.name.startswith('_'):
      continue
    said = ast.get_docstring(part)
    comment = [f'  # {said.splitlines()[0]}'] if said else []
    if any('property' in ast.unparse(decorator) for decorator in part.decorator_list):
      lines += [*comment, f'  {part.name}{_returned(part)}']
    elif said:  # Others are those of a base.
      lines += comment + [f'  {line}' for line in _call(part.name, part, own=True).splitlines()]
  return '\n'.join(lines)


def summary(name: str) -> str:
  """Returns the first paragraph of a name's docstring, in one line."""
  text = ast.get_docstring(find(name)[1]) or ''
  return ' '.join(text.partition('\n\n')[0].split())


def _construction(name: str, module: str, node: ast.ClassDef) -> str:
  start = next((p for p in node.body if getattr(p, 'name', '') == '__init__'), None)
  if isinstance(start, ast.FunctionDef):
    return 'class ' + _call(name, start, own=True, returned='')
  fields = [
    ast.unparse(part)
    for part in node.body
    if isinstance(part, ast.AnnAssign) and 'ClassVar' not in ast.unparse(part.annotation)
  ]
  if not any('dataclass' in ast.unparse(decorator) for decorator in node.decorator_list):
    return f'class {name}'
  base = node.bases[0] if node.bases else None
  if not fields and isinstance(base, ast.Name):  # The fields are those of the base.
    home, parent = _definition(module, base.id)
    if isinstance(parent, ast.ClassDef):
      return _construction(name, home, parent)
  keywords = any('kw_only=True' in ast.unparse(d) for d in node.decorator_list)
  fields = [re.sub(r' = (?:dataclasses\.)?field\(.*', ' = …', field) for field in fields]
  return 'class ' + _wrapped(name, ['*', *fields] if keywords and fields else fields, '')


def _call(name: str, node: Definition, *, own: bool = False, returned: str | None = None) -> str:
  """Returns a function's name, parameters and result; without self for a method."""
  given = node.args
  if own and given.args and given.args[0].arg in ('self', 'cls'):
    given.args = given.args[1:]
  parameters = _split(ast.unparse(given))
  return _wrapped(name, parameters, _returned(node) if returned is None else returned)


def _split(text: str) -> list[str]:
  """Splits parameters at the commas outside of brackets."""
  parts, depth = [''], 0
  for letter in text:
    depth += (letter in '([{') - (letter in ')]}')
    if letter == ',' and not depth:
      parts.append('')
    else:
      parts[-1] += letter
  return [part.strip() for part in parts if part.strip()]


def _returned(node: Definition) -> str:
  result = getattr(node, 'returns', None)
  return f' -> {ast.unparse(result)}' if result is not None else ''


def _wrapped(name: str, parameters: list[str], returned: str) -> str:
  line = f'{name}({", ".join(parameters)}){returned}'
  if len(line) <= _WIDTH:
    return line
  return '\n'.join([f'{name}(', *(f'  {part},' for part in parameters), f'){returned}'])


def page(text: str) -> str:
  """Returns a page with the summary and the block of each name under its heading."""
  return _ENTRY.sub(
    lambda found: f'{found[1]}\n{summary(found[2])}\n\n```python\n{block(found[2])}\n```\n', text
  )


if __name__ == '__main__':
  PAGE.write_text(page(PAGE.read_text()))
