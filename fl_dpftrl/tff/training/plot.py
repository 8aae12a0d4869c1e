"""Plot of a run: what the model learnt by round, beside what it is compared with."""

import os
import textwrap
from collections.abc import Mapping, Sequence

import matplotlib

from fl_dpftrl.support import style
from fl_dpftrl.support.files import durable

_BLUE, _ORANGE = '#1f6fb4', '#c8590b'
# Of what the run is compared with, in its order: readable without colours, too.
_LINES = (('#2e7d32', ':'), ('#7b3294', '-.'), ('#6b6b6b', '--'))
_INCHES, _POINTS = (4.6, 5.6), 11.0  # text is readable on a telephone
_LETTERS = 50  # of a line of the title


def accuracy_plot(
  path: str | os.PathLike[str],
  *,
  title: str,
  num_rounds: int,
  accuracy: Mapping[int, float],
  test_accuracy: float | None = None,
  others: Mapping[str, float] = {},
  released: Sequence[tuple[int, float, float]] = (),
  label: str = 'accuracy',
) -> style.Figure:
  """Draws accuracy against rounds, and returns the figure.

  `released` has rounds, means of clients' accuracy up to them, and half-widths of their intervals.
  """
  with matplotlib.rc_context({'font.size': _POINTS, 'legend.fontsize': _POINTS - 1}):
    figure = style.Figure(figsize=_INCHES, layout='constrained')
    axes = figure.subplots()
    lines = [textwrap.fill(style.plain(line), _LETTERS) for line in title.splitlines()]
    figure.suptitle('\n'.join(lines), x=0.01, ha='left', fontsize=_POINTS + 1)
    for (name, value), (colour, dashes) in zip(others.items(), _LINES):
      axes.axhline(
        100 * value, color=colour, linestyle=dashes, label=f'{name}: {100 * value:.1f} %'
      )
    if accuracy:
      rounds, values = [r + 1 for r in accuracy], [100 * value for value in accuracy.values()]
      axes.plot(rounds, values, 'o-', color=_BLUE, markersize=4, label='this run, validation')
    if released:
      rounds, means, _ = zip(*released)
      low, high = ([100 * (r[1] + sign * r[2]) for r in released] for sign in (-1, 1))
      axes.fill_between(rounds, low, high, color=_ORANGE, alpha=0.2, linewidth=0)
      name = 'clients, with noise, ± 95 %'
      axes.plot(rounds, [100 * mean for mean in means], color=_ORANGE, linewidth=1, label=name)
    if test_accuracy is not None:
      shown = f'this run, test: {100 * test_accuracy:.1f} %'
      axes.plot(num_rounds, 100 * test_accuracy, 'D', color=_ORANGE, label=shown)
    style.dress(axes)
    axes.tick_params(labelsize=_POINTS)
    axes.set_xlabel('rounds', fontsize=_POINTS)
    axes.set_ylabel(f'{label} (%)', fontsize=_POINTS)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    figure.legend(loc='outside lower left', ncols=2, frameon=False)
    image = style.image(figure, os.fspath(path).rpartition('.')[2])
  durable.write_durably(path, image)
  return figure
