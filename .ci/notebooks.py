"""Runs the cells of notebooks, each in a process and a folder of its own: notebooks.py FILE…

What a last line shows in a notebook is made here too: its picture, its table, or its repr. With
--store first, the notebooks get these outputs.
"""

import ast
import base64
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any


def run(path: pathlib.Path, store: bool) -> None:
  """Runs the code of a notebook."""
  names: dict[str, object] = {'__name__': '__main__'}
  document = json.loads(path.read_text('utf-8'))
  code_cells = [cell for cell in document['cells'] if cell['cell_type'] == 'code']
  for number, cell in enumerate(code_cells, 1):
    tree = ast.parse(''.join(cell['source']), f'{path.name}, cell {number}')
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed, shown = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
      exec(compile(tree, f'{path.name}, cell {number}', 'exec'), names)
      if last is not None:
        shown = eval(compile(ast.Expression(last.value), path.name, 'eval'), names)
    cell.update(execution_count=number, outputs=list(outputs(printed.getvalue(), shown, number)))
  if store:
    path.write_text(json.dumps(document, ensure_ascii=False, indent=1) + '\n', 'utf-8')


def outputs(printed: str, shown: Any, number: int):
  """Yields the outputs of a cell, in the format of notebooks."""
  if printed:
    yield {'output_type': 'stream', 'name': 'stdout', 'text': printed.splitlines(keepends=True)}
  if shown is not None:
    data = {'text/plain': repr(shown).splitlines(keepends=True)}
    if picture := getattr(shown, '_repr_png_', lambda: None)():
      data['image/png'] = base64.b64encode(picture).decode()
    common = {'output_type': 'execute_result', 'execution_count': number, 'metadata': {}}
    yield {**common, 'data': data}


def main(paths: list[str], store: bool) -> None:
  """Runs notebooks one after another; the first that fails ends with its error."""
  for path in map(pathlib.Path, paths):
    with tempfile.TemporaryDirectory() as folder:
      command = [sys.executable, __file__, '--one', *['--store'] * store, str(path.resolve())]
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
  store, files = '--store' in sys.argv, [word for word in sys.argv[1:] if not word.startswith('--')]
  if '--one' in sys.argv:
    run(pathlib.Path(files[0]), store)
  else:
    main(files, store)
