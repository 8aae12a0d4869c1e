"""Runs the cells of notebooks, each in a process and a folder of its own: notebooks.py FILE…

What a last line shows in a notebook is shown here too: its picture, its table, or its repr.
"""

import ast
import json
import os
import pathlib
import subprocess
import sys
import tempfile

FORMS = '_repr_png_', '__repr__'


def cells(path: pathlib.Path) -> list[str]:
  """Returns the code of a notebook."""
  found = json.loads(path.read_text('utf-8'))['cells']
  return [''.join(cell['source']) for cell in found if cell['cell_type'] == 'code']


def run(path: pathlib.Path) -> None:
  """Runs the cells, and shows what the last expression of each gives."""
  names: dict[str, object] = {'__name__': '__main__'}
  for place, code in enumerate(cells(path)):
    tree = ast.parse(code, f'{path.name}, cell {place}')
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, f'{path.name}, cell {place}', 'exec'), names)
    if last is not None:
      shown = eval(compile(ast.Expression(last.value), path.name, 'eval'), names)
      print(next(filter(None, (getattr(shown, form, str)() for form in FORMS))))


def main(paths: list[str]) -> None:
  """Runs notebooks one after another; the first that fails ends with its error."""
  for path in map(pathlib.Path, paths):
    with tempfile.TemporaryDirectory() as folder:
      command = [sys.executable, __file__, '--one', str(path.resolve())]
      search = os.pathsep.join([str(pathlib.Path.cwd()), os.environ.get('PYTHONPATH', '')])
      done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, 'PYTHONPATH': search},
        capture_output=True,
        text=True,
      )
    if done.returncode:
      sys.exit(f'{path}: {done.stderr.strip()[-2000:]}')


if __name__ == '__main__':
  if sys.argv[1:2] == ['--one']:
    run(pathlib.Path(sys.argv[2]))
  else:
    main(sys.argv[1:])
