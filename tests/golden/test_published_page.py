"""Pages of published figures: each row's command is run, and gives what the page says."""

import json
import re
import runpy
import shlex

import pytest

from fl_dpftrl.commands import main
from tests import pages

PAGE = 'published-figures.md'
# The figures of a table, by the head of its first column: names in the JSON object.
FIGURES = {
  'model': ('rho', 'epsilon'),
  'matrix': ('max_loss', 'rms_loss'),
  'buffers (B)': ('max_loss', 'rms_loss'),
  'ε (E)': ('noise_multiplier',),
  'bands (B)': ('epsilon',),
}


def rows(head):
  """Returns name, printed, commands, gives and verdict of a table's rows, by its first head.

  Where a table has no commands, the one above it names columns by capitals, as --epsilon=E.
  """
  text, _, table = (pages.DOCS / PAGE).read_text().partition(f'| {head} |')
  names = [head, *map(str.strip, table.partition('\n')[0].split('|'))]
  found = [dict(zip(names, row)) for row in pages.rows(PAGE, head)]
  command = re.findall('`((?:account|calibrate|optimize) .*?)`', text)[-1:] or ['']
  for row in found:
    letters = {re.sub(r'.*\((.)\)', r'\1', name): value for name, value in row.items()}
    filled = re.sub('=([A-Z])(?= |$)', lambda m, letters=letters: f'={letters[m[1]]}', *command)
    row.setdefault('command', f'`{filled}`')
  printed = [name for name in names if name.startswith('printed') and name != 'printed σ']
  return [[row[name] for name in (head, *printed, 'command', 'gives', 'same')] for row in found]


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
    'matrix': 4,
    'buffers (B)': 4,
    'ε (E)': 5,
    'bands (B)': 10,
  }
  printed = [figure for head in FIGURES for row in rows(head) for figure in row[1].split(', ')]
  assert f'have {len(printed)} printed figures' in (pages.DOCS / PAGE).read_text()


def test_the_figure_has_the_printed_values_of_the_tables():
  script = runpy.run_path(str(pages.DOCS.parent / '.ci' / 'published_figures.py'))
  printed = {row[0]: row[1] for head in ('matrix', 'buffers (B)') for row in rows(head)}
  for label, losses in script['PRINTED'].items():
    name = label.removeprefix('BLT, ').removesuffix(' buffers')
    assert printed[name] == ', '.join(f'{loss:.2f}' for loss in losses)
  assert {int(row[0]): float(row[1]) for row in rows('ε (E)')} == script['SIGMAS']
  amplified = list(pages.rows(PAGE, 'bands (B)'))
  drawn = [
    (str(bands), f'{sigma:.5f}')
    for epsilon in script['SIGMAS']
    for name in ('DP-SGD', 'BandMF')
    for bands, sigma in [
      (1 if name == 'DP-SGD' else script['_BANDS'][epsilon], script['AMPLIFIED'][name][epsilon])
    ]
  ]
  assert [tuple(row[:2]) for row in amplified] == drawn
