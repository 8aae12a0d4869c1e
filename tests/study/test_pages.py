"""Committed pages show the results beside them, to the last digit, and figures drawn of them."""

import csv
import dataclasses
import math
import re

import matplotlib
import pytest

from fl_dpftrl.study import comparing, result_tables, study_tables
from fl_dpftrl.support import style
from tests import pages

STUDIES = {'topics': 'studies.md', 'central': 'centralized.md'}


def read(path):
  """Returns the results of a results.csv."""
  found = []
  with path.open(newline='') as stream:
    for row in csv.DictReader(stream):
      for name, value in row.items():
        if name not in ('mechanism', 'status', 'reason'):
          whole = name in ('seed', 'num_parts')
          row[name] = (int if whole else float)(value) if value else None
      found.append(result_tables.Result(**row))
  return tuple(found)


def read_study(name, file='results'):
  found = read(pages.DOCS / f'study-{name}' / f'{file}.csv')
  return comparing.Study(title=name, metric=result_tables.Metric(), results=found)


@pytest.mark.parametrize('name', STUDIES)
def test_a_page_has_the_differences_and_the_figures_of_its_results(name):
  folder, text = pages.DOCS / f'study-{name}', (pages.DOCS / STUDIES[name]).read_text()
  study = read_study(name)
  assert {result.status for result in study.results} == {'done'}
  if name == 'central':
    dp_sgd = [line for line in study_tables.cells(study.rows, study.metric) if line[1] == 'DP-SGD']
    assert '{2}, {3}, {4} and {5} points'.format(*(line[3].split()[0] for line in dp_sgd)) in text
    assert [line[4] for line in dp_sgd] == ['none'] * 2 + ['banded MF'] * 4
  assert any(row.distinguished for row in study.rows)  # Others tell a reader nothing.
  for figure, drawn in study.figures.items():
    assert f'study-{name}/{figure}.svg' in text
    if matplotlib.__version__ == '3.11.2':  # Others place letters a little apart.
      assert (folder / f'{figure}.svg').read_bytes() == style.image(drawn, 'svg')


@pytest.mark.parametrize('name', STUDIES)
def test_points_stand_a_stated_distance_from_their_epsilon(name):
  study = read_study(name)
  figure = study.figures['accuracy_by_epsilon']
  (axes,), mechanisms = figure.axes, {row.mechanism for row in study.rows if row.epsilon}
  assert ' 3 pt apart' in axes.get_title('left')
  figure.draw_without_rendering()
  centre, shifts = 0.5 * (len(mechanisms) - 1), []
  for bars in axes.containers:
    line, (caps, *_), (bar,) = bars.lines
    assert set(line.get_xdata()) == {row.epsilon for row in study.rows if row.epsilon}
    for artist in (line, caps, bar):
      moved = artist.get_transform().transform((1.0, 0.0)) - axes.transData.transform((1.0, 0.0))
      shifts.append(72 * moved[0] / figure.dpi)
  wanted = [3 * (place - centre) for place in range(len(mechanisms)) for _ in range(3)]
  assert shifts == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize('name', ['people', 'central'])
def test_studies_on_pages_have_the_epsilon_of_their_runs(name):
  with_noise = [result for result in read_study(name).results if result.epsilon]
  assert with_noise and all(result.epsilon_of_run <= result.epsilon for result in with_noise)


@pytest.mark.parametrize('name', ['results', 'mail'])
def test_the_pages_of_people_have_the_perplexities_of_their_runs(name):
  assert 'study-people/perplexity.svg' in (pages.DOCS.parent / 'README.md').read_text()
  page, tests = (pages.DOCS / 'results.md').read_text(), {}
  for result in read_study('people', name).results:
    tests.setdefault((result.mechanism, result.epsilon), []).append(result.test)
  shown = lambda values: f'{sum(values) / 3:.2f} ± {result_tables.margin(values):.2f}'
  assert len(tests) == 13 and {len(values) for values in tests.values()} == {3}
  assert f'{shown(tests["no noise", None])}' in page
  for epsilon in (1, 2, 4, 8):
    blt, identity, banded = (tests[key, epsilon] for key in ('blt', 'identity', 'banded'))
    behind = [other - value for other, value in zip(identity, blt)]
    ahead = f'{min(behind):.1f} to {max(behind):.1f}'
    cells = ' | '.join([*map(shown, (identity, blt, banded)), ahead])
    assert f'| {epsilon} | {cells} |' in page and min(behind) > 0


def test_the_figure_of_people_is_that_of_their_results():
  metric = result_tables.Metric('perplexity', lower_is_better=True)
  drawn = dataclasses.replace(read_study('people'), metric=metric).figures['perplexity_by_epsilon']
  if matplotlib.__version__ == '3.11.2':  # Others place letters a little apart.
    path = pages.DOCS / 'study-people' / 'perplexity_by_epsilon.svg'
    assert path.read_bytes() == style.image(drawn, 'svg')


def test_the_page_has_the_best_perplexity_of_each_optimiser():
  page, best = (pages.DOCS / 'results.md').read_text(), {}
  with (pages.DOCS / 'study-people' / 'optimizers.csv').open(newline='') as stream:
    for row in csv.DictReader(stream):
      key = row['optimizer'].lower(), float(row['epsilon']), int(row['seed'])
      best[key] = min(best.get(key, math.inf), float(row['perplexity']))
  cells = [line.strip('|').split('|') for line in page.splitlines() if line.startswith('|')]
  start = next(i for i, line in enumerate(cells) if 'seed 0' in line[1])
  heads = [re.findall(r'[\d.]+', head) for head in cells[start][1:]]
  table = {
    (line[0].strip().lower(), float(epsilon), int(seed)): float(cell)
    for line in cells[start + 2 :]
    for (epsilon, seed), cell in zip(heads, line[1:])
    if cell.strip()
  }
  assert table == {key: round(value, 2) for key, value in best.items()}
  for (optimizer, *run), value in table.items():
    assert value > table['momentum', *run] - 0.1  # Which is why the library has no other.
