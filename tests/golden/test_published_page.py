"""Pages of published figures: each row's command is run, and gives what the page says."""

import json
import re
import shlex

import pytest

from fl_dpftrl.commands import main
from tests import pages
from tests.golden import test_bandmf_table

PAGE = 'published-figures.md'
# The figures of a table, by the head of its first column: names in the JSON object.
FIGURES = {
  'model': ('rho', 'epsilon'),
  'matrix': ('max_loss', 'rms_loss'),
  'ε (E)': ('noise_multiplier',),
  'bands (B)': ('epsilon',),
}


def rows(head):
  """Returns the rows of a table by its first head: its name, printed, commands, gives, same.

  A table without a column of commands has one in the text above it, in which a capital stands for
  the column that names it.
  """
  found = list(pages.rows(PAGE, head))
  text, _, table = (pages.DOCS / PAGE).read_text().partition(f'| {head} |')
  if 'command' in table.partition('\n')[0]:
    return found
  command = re.findall('`((?:account|calibrate) .*?)`', text)[-1]
  names = [name.strip() for name in f'{head} |{table}'.partition('\n')[0].split('|')]
  return [[row[0], *_filled(command, dict(zip(names, row)))] for row in found]


def _filled(command, cells):
  """Returns what is printed, the command with the row's values, what it gives, and the verdict."""
  for name, value in cells.items():
    letter = name.rpartition('(')[2].rstrip(')')
    command = re.sub(rf'={letter}\b', f'={value}', command)
  printed = next(cells[name] for name in ('printed ε', 'printed noise multiplier') if name in cells)
  return printed, f'`{command}`', cells['gives'], cells['same']


def marks(command):
  if re.search('num_bands=(342|400)', command):  # test_published_losses.py has the RMS loss of 342.
    return [pytest.mark.thorough]
  return [pytest.mark.slow] if re.search('optimize|sampling', command) else []


ROWS = [
  pytest.param(head, row, id=f'{row[0]}-{row[1]}', marks=marks(row[2]))
  for head in FIGURES
  for row in rows(head)
]


def unit(printed):
  """One unit of the last digit of a number in text."""
  return 10.0 ** -len(printed.partition('.')[2])


@pytest.mark.parametrize('head, row', ROWS)
def test_a_row(head, row, tmp_path, monkeypatch, capsys):
  _, printed, commands, gives, same = row
  monkeypatch.chdir(tmp_path)
  for command in re.findall('`(.*?)`', commands):
    main.main([*shlex.split(command), '--json'])
    found = json.loads(capsys.readouterr().out)
  own = [found[name] for name in FIGURES[head]]
  for value, shown in zip(own, gives.split(', '), strict=True):
    assert value == pytest.approx(float(shown), abs=0.5001 * unit(shown)), shown
  agree = [
    abs(value - float(text)) < unit(text)
    for value, text in zip(own, printed.split(', '), strict=True)
  ]
  assert all(agree) == same.startswith('yes')
  # A row that differs says why, or that it is unknown.
  assert all(agree) or re.match('no[:,] .+', same)


def test_all_rows_of_the_papers_are_there():
  assert {head: len(rows(head)) for head in FIGURES} == {
    'model': 10,
    'matrix': 8,
    'ε (E)': 5,
    'bands (B)': 10,
  }
  stated = [printed.split(', ') for _, printed, _ in pages.rows(PAGE, 'mechanism')]
  assert stated == [row['printed'] for row in test_bandmf_table.TABLE['rows']]
  links = {path.name for path in pages.DOCS.glob('*.md') if PAGE in path.read_text()}
  assert {'guarantee.md', 'reviewer.md'} <= links
  nav = (pages.DOCS.parent / 'mkdocs.yml').read_text()
  assert PAGE in nav
