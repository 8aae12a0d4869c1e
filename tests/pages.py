"""Pages of the documentation, and figures that a report has in its <data> elements."""

import pathlib
import re
import shlex
import textwrap
from collections.abc import Iterator
from typing import Any

DOCS = pathlib.Path(__file__).parents[1] / 'docs'


def rows(page: str, first: str) -> Iterator[list[str]]:
  """Yields the rows of the table of a page in docs/ whose head begins with a word."""
  _, found, after = (DOCS / page).read_text().partition(f'\n| {first} |')
  assert found, first
  for line in after.partition('\n\n')[0].splitlines()[2:]:
    yield [cell.strip() for cell in line.strip('|').split('|')]


def programs(page: str) -> list[str]:
  """Returns the fences in Python of a page in docs/, also those inside of lists and tabs."""
  text = (DOCS / page).read_text()
  blocks = re.findall(r'^( *)```python\n(.*?)^ *```$', text, re.DOTALL | re.MULTILINE)
  return [textwrap.dedent(block) for _, block in blocks]


def commands(page: str) -> list[list[str]]:
  """Returns the words of each `fl-dpftrl` command in the fences of a page in docs/."""
  blocks = re.findall(r'^```\n(fl-dpftrl .*?)^```$', (DOCS / page).read_text(), re.DOTALL | re.M)
  lines = ''.join(blocks).replace('\\\n', '').splitlines()
  return [shlex.split(line)[1:] for line in lines]


def read_by() -> dict[str, str]:
  """Who may read each file of a run's folder, as the page on them says."""
  return {
    name: who
    for names, _, who in rows('run-folder.md', 'file')
    for name in re.findall('`(.*?)`', names)
  }


def figures(text: str) -> list[tuple[str, str]]:
  """(field, value) of every figure, in the order of the page."""
  found = re.findall(r'<data value="([^"]*)" data-field="([^"]*)">', text)
  assert len(found) == text.count('<data ')
  return [(field, value) for value, field in found]


def look_up(values: Any, field: str) -> Any:
  """The value of an object at a field: keys and indices, separated by dots."""
  for key in field.split('.'):
    values = values[int(key) if key.isdigit() else key]
  return values


def check(text: str, stated: Any) -> set[str]:
  """Fields of the figures, once each is found to be that of the object, to the last digit."""
  for field, value in figures(text):
    assert float(value) == look_up(stated, field), field
  return {field for field, _ in figures(text)}
