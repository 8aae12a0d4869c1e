"""The layers that docs/layout.md draws are those of the import contract."""

import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).parent.parent


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
