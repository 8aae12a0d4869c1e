"""Plot of a run: what the model learnt by round, beside what it is compared with."""

import os
from collections.abc import Mapping

import matplotlib

from fl_dpftrl import style
from fl_dpftrl.files import durable

_BLUE, _ORANGE = '#1f6fb4', '#c8590b'
# Of what the run is compared with, in its order: readable without colours, too.
_LINES = (('#2e7d32', ':'), ('#7b3294', '-.'), ('#6b6b6b', '--'))
_INCHES, _POINTS = (4.6, 4.9), 11.0  # text is readable on a telephone


def accuracy_plot(
  path: str | os.PathLike[str],
  *,
  title: str,
  num_rounds: int,
  accuracy: Mapping[int, float],
  test_accuracy: float | None = None,
  others: Mapping[str, float] = {},
  label: str = 'accuracy',
) -> style.Figure:
  """Draws accuracy against rounds, and returns the figure."""
  with matplotlib.rc_context({'font.size': _POINTS, 'legend.fontsize': _POINTS - 1}):
    figure = style.Figure(figsize=_INCHES, layout='constrained')
    axes = figure.subplots()
    axes.set_title(title, loc='left', x=-0.13, fontsize=_POINTS + 1)
    for (name, value), (colour, dashes) in zip(others.items(), _LINES):
      axes.axhline(
        100 * value, color=colour, linestyle=dashes, label=f'{name}: {100 * value:.1f} %'
      )
    if accuracy:
      rounds, values = [r + 1 for r in accuracy], [100 * value for value in accuracy.values()]
      axes.plot(rounds, values, 'o-', color=_BLUE, markersize=4, label='this run, validation')
    if test_accuracy is not None:
      shown = f'this run, test: {100 * test_accuracy:.1f} %'
      axes.plot(num_rounds, 100 * test_accuracy, 'D', color=_ORANGE, label=shown)
    style.dress(axes)
    axes.tick_params(labelsize=_POINTS)
    axes.set_xlabel('rounds', fontsize=_POINTS)
    axes.set_ylabel(f'{label} (%)', fontsize=_POINTS)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(loc='lower right', framealpha=0.95, edgecolor='none')
    image = style.image(figure, os.fspath(path).rpartition('.')[2])
  durable.write_durably(path, image)
  return figure
