"""Draws figures as in the papers from this package's own numbers, beside the printed ones.

python .ci/published_figures.py [FOLDER]

Its searches take two minutes of processor time and more; amplified ones are kept in the cache.
"""

import functools
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from matplotlib import ticker

import fl_dpftrl as dpftrl
from fl_dpftrl.participation.rules import sampling
from fl_dpftrl.planning import candidate_sets, comparison
from fl_dpftrl.support import style

FOLDER = pathlib.Path(__file__).parents[1] / 'docs' / 'published-figures'
PLANNED = dpftrl.MinSep(2052, 342, 6)
# BLT paper, table of simulation experiments: max and RMS loss.
PRINTED = {
  'BandMF, 342 bands': (10.21, 8.60),
  'TreeAgg-Full': (14.98, 12.47),
  'BLT, 2 buffers': (10.81, 9.34),
  'BLT, 3 buffers': (10.79, 9.33),
  'BLT, 4 buffers': (10.79, 9.33),
  'BLT, 5 buffers': (10.79, 9.33),
}
# BandMF paper, tables 4 and 5: noise multipliers for sensitivity 1 by ε, and bands by table 7.
SIGMAS = {1: 4.22468, 2: 2.23048, 4: 1.19352, 8: 0.65294, 16: 0.36861}
AMPLIFIED = {
  'DP-SGD': {1: 0.37313, 2: 0.30481, 4: 0.25136, 8: 0.20567, 16: 0.16876},
  'BandMF': {1: 0.79118, 2: 0.64708, 4: 0.52224, 8: 0.43490, 16: 0.36861},
}
_BANDS = {1: 9, 2: 18, 4: 32, 8: 64, 16: 342}
_CLIENTS = 1000
_LOOKS = {
  'DP-SGD': ('#767676', 'x'),
  'TreeAgg-Full': ('#117733', '^'),
  'BandMF': ('#0077bb', 's'),
  'BLT': ('#cc3311', 'o'),
}


def rows(names: Sequence[Any], participations: Sequence[Any], **options: Any) -> list[dict]:
  """Returns the rows of a comparison for RMS loss."""
  options = {'objective': 'rms', **options}
  return comparison.run(candidate_sets.named(names), participations, **options).rows


@functools.cache
def banded() -> dpftrl.Banded:
  """Returns BandMF for RmsLoss, searched for to the end."""
  return dpftrl.optimize('banded', PLANNED, objective='rms')


def line(axes: Any, label: str, xs: Sequence[float], ys: Sequence[float], **changes: Any) -> None:
  """Draws a line in the look of its mechanism."""
  colour, _ = _LOOKS[label.partition(',')[0]]
  axes.plot(xs, ys, **{'color': colour, 'linewidth': 1.7, 'label': label, **changes})


def mark(axes: Any, label: str, x: float, y: float) -> None:
  """Draws a printed value as a hollow marker."""
  colour, marker = _LOOKS[label.partition(',')[0]]
  looks = {'color': colour, 'markerfacecolor': 'none', 'markersize': 8, 'markeredgewidth': 1.6}
  axes.plot([x], [y], marker, **looks)


def by_setting(axes: Any, name: str, values: Sequence[int]) -> None:
  """Draws RMS losses of strategies that were found for 2,052 rounds, over one field."""
  strategies = {
    'TreeAgg-Full': dpftrl.TreeFull(2052),
    'BandMF, 342 bands': banded(),
    'BLT, 4 buffers': dpftrl.optimize('blt', PLANNED, objective='rms', num_buffers=4),
  }
  for label, strategy in strategies.items():
    schemas = [dpftrl.MinSep(**{**vars(PLANNED), name: value}) for value in values]
    table = dpftrl.compare([strategy], schemas, objective='rms').rows
    line(axes, label, [row[name] for row in table], [row['rms_loss'] for row in table])
    mark(axes, label, vars(PLANNED)[name], PRINTED[label][1])
  axes.set_ylabel('RmsLoss (clip norms)')


def by_buffers(axes: Any) -> None:
  """Draws max losses of BLTs over their buffers."""
  sizes = range(1, 7)
  blts = [dpftrl.optimize('blt', PLANNED, num_buffers=size) for size in sizes]
  losses = [dpftrl.describe(blt, PLANNED).max_loss for blt in blts]
  line(axes, 'BLT', sizes, losses, marker='.')
  for label, (max_loss, _) in PRINTED.items():
    if label.startswith('BLT'):
      mark(axes, label, int(label.split()[1]), max_loss)
  for label, strategy in (('TreeAgg-Full', dpftrl.TreeFull(2052)), ('BandMF, 342 bands', banded())):
    (row,) = dpftrl.compare([strategy], PLANNED).rows
    line(axes, label, sizes, [row['max_loss']] * len(sizes))
    mark(axes, label, 6.0, PRINTED[label][0])
  axes.set_xlabel('buffers')
  axes.set_ylabel('MaxLoss (clip norms)')


def by_epsilon(axes: Any) -> None:
  """Draws RMS errors of the mean of 1,000 clients over ε, with and without amplification."""
  target = comparison.Target(tuple(SIGMAS), 1e-6, report_goal=_CLIENTS)
  scheme = sampling.CyclicPoisson(num_rounds=2052, num_examples=342_000, batch_size=_CLIENTS)
  for strategy, label in zip(
    ('identity', 'tree_full', banded()), ('DP-SGD', 'TreeAgg-Full', 'BandMF')
  ):
    table = rows([strategy], [PLANNED], target=target)
    errors = {row['epsilon']: row['rms_error_of_mean'] for row in table}
    line(axes, label, list(errors), list(errors.values()))
    for epsilon, sigma in SIGMAS.items():
      (row,) = (row for row in table if row['epsilon'] == epsilon)
      mark(axes, label, epsilon, sigma * row['rms_loss'] / _CLIENTS)
  for row_name, label in (('identity', 'DP-SGD'), ('banded_toeplitz', 'BandMF')):
    table = rows([row_name], [scheme], target=target)
    errors = {row['epsilon']: row['rms_error_of_mean'] for row in table}
    line(axes, f'{label}, amplified', list(errors), list(errors.values()), dashes=(5, 2))
    for epsilon, sigma in AMPLIFIED[label].items():
      bands = 1 if label == 'DP-SGD' else _BANDS[epsilon]
      once = dpftrl.MinSep(2052, max_participations=1)
      name = 'identity' if bands == 1 else f'banded_toeplitz:{bands}'
      (row,) = rows([name], [once])
      # Printed for sensitivity 1 at 6 participations: that of one is 1 / √6 of it.
      mark(axes, label, epsilon, sigma * 6**0.5 * row['rms_loss'] / _CLIENTS)
  axes.set_xlabel('ε at δ = 10⁻⁶')
  axes.set_ylabel('RMS error of the mean (clip norms)')
  axes.set_yscale('log')
  axes.set_xscale('log')
  axes.set_xticks(list(SIGMAS), map(str, SIGMAS))
  axes.minorticks_off()
  axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
  axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: style.number(value)))


def main(folder: pathlib.Path) -> None:
  """Writes losses.svg into the folder."""
  figure = style.Figure(figsize=(11, 8.6), facecolor='white', layout='constrained')
  panels = figure.subplots(2, 2).ravel()
  for axes in panels:
    style.dress(axes)
  by_setting(panels[0], 'min_sep', [50, 75, 100, 150, 200, 250, 300, 342, 380, 411])
  panels[0].set_xlabel('min-sep, 2,052 rounds, 6 participations')
  by_setting(panels[1], 'num_rounds', [343, 500, 684, 1026, 1368, 1710, 2052])
  panels[1].set_xlabel('rounds that were run, min-sep 342')
  by_buffers(panels[2])
  by_epsilon(panels[3])
  for axes in panels:
    axes.legend(frameon=False, fontsize=9)
  folder.mkdir(exist_ok=True)
  (folder / 'losses.svg').write_bytes(style.image(figure, 'svg'))
  if folder != FOLDER:  # To look at.
    (folder / 'losses.png').write_bytes(style.image(figure, 'png'))


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]) if sys.argv[1:] else FOLDER)
