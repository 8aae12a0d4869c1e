"""Committed pages show the results beside them, to the last digit, and figures drawn of them."""

import csv

import matplotlib
import pytest

from fl_dpftrl import style
from fl_dpftrl.study import comparing, results, table
from tests import pages

STUDIES = ('topics', 'central')


def read(path):
  """Returns the results of a results.csv."""
  found = []
  with path.open(newline='') as stream:
    for row in csv.DictReader(stream):
      for name, value in row.items():
        if name not in ('mechanism', 'status', 'reason'):
          whole = name in ('seed', 'num_parts')
          row[name] = (int if whole else float)(value) if value else None
      found.append(results.Result(**row))
  return tuple(found)


@pytest.mark.parametrize('name', STUDIES)
def test_a_page_has_the_table_the_notes_and_the_figures_of_its_results(name):
  folder, text = pages.DOCS / f'study-{name}', (pages.DOCS / f'study-{name}.md').read_text()
  study = comparing.Study(title=name, metric=results.Metric(), results=read(folder / 'results.csv'))
  assert {result.status for result in study.results} == {'done'}
  lines = [line[:5] for line in table.cells(study.rows, study.metric)]
  assert table.markdown(lines) in text
  assert all(f'- {note}\n' in text for note in table.notes(study.rows))
  assert any(row.told_apart_from for row in study.rows)  # Others tell a reader nothing.
  for figure, drawn in study.figures.items():
    assert f'study-{name}/{figure}.svg' in text
    if matplotlib.__version__ == '3.11.2':  # Others place letters a little apart.
      assert (folder / f'{figure}.svg').read_bytes() == style.image(drawn, 'svg')
