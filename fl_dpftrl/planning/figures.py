"""Figure of a comparison: both losses; importing this module loads matplotlib."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib import axes as axes_lib
from matplotlib import figure as figure_lib
from matplotlib import ticker

from fl_dpftrl import style

if TYPE_CHECKING:
  from fl_dpftrl.planning import comparison  # It draws with this module.

LOSSES = {'rms': 'RmsLoss', 'max': 'MaxLoss'}
_AXES = {
  'num_rounds': 'rounds',
  'min_sep': 'min-sep (rounds)',
  'max_participations': 'participations of one device',
}
_NUMBER = ticker.FuncFormatter(lambda value, _: style.number(value))


def draw(
  entries: Sequence['comparison.Entry'], axis: str | None, subtitle: str = ''
) -> figure_lib.Figure:
  """Draws both losses of each entry, over the field that varies or side by side.

  Markers are hollow where the sensitivity is not exact.

  Args:
    entries: entries with at least two values of the axis, if there is one.
    axis: num_rounds, min_sep or max_participations, as in schemas; None for one schema.
    subtitle: setting.
  """
  looks = style.looks({entry.candidate.label: entry.candidate.mechanism for entry in entries})
  height = 4.6 if axis else 1.4 + 0.3 * len(entries)
  figure = style.Figure(figsize=(11.0, height), facecolor='white', layout='constrained')
  figure.suptitle(style.plain(subtitle), x=0.01, ha='left', fontsize=10, color=style.GREY)
  panels = figure.subplots(1, len(LOSSES), sharey=axis is None)
  for axes, (name, loss) in zip(panels, LOSSES.items()):
    style.dress(axes)
    values = [getattr(entry.row, f'{name}_loss') for entry in entries]
    if axis is None:
      _side_by_side(axes, entries, values, looks)
      axes.set_xlabel(f'{loss} (clip norms)')
    else:
      _over(axes, entries, values, looks, axis)
      axes.set_xlabel(_AXES[axis])
      axes.set_ylabel(f'{loss} (clip norms)')
  if axis is not None:
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc='outside right center', frameon=False)
  return figure


def _over(
  axes: axes_lib.Axes,
  entries: Sequence['comparison.Entry'],
  values: Sequence[float],
  looks: dict[str, style.Look],
  axis: str,
) -> None:
  """Draws a line for each candidate, on log scales."""
  for label, look in looks.items():
    line = sorted(
      (getattr(entry.schema, axis), value, entry.row.sensitivity_kind == 'exact')
      for entry, value in zip(entries, values)
      if entry.candidate.label == label
    )
    faces = [look.colour if exact else 'white' for *_, exact in line]
    xs, ys, _ = zip(*line)
    axes.plot(xs, ys, **look.line, label=style.plain(label))
    for x, y, face in zip(xs, ys, faces):
      axes.plot(x, y, look.marker, color=look.colour, markerfacecolor=face, markersize=5)
  axes.set_xscale('log')
  if max(values) > 3 * min(values):  # Else a log scale would have hardly a tick.
    axes.set_yscale('log')
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
  places = sorted({getattr(entry.schema, axis) for entry in entries})
  axes.xaxis.set_major_locator(ticker.FixedLocator(places, nbins=8))
  for scale in (axes.xaxis, axes.yaxis):
    scale.set_major_formatter(_NUMBER)
    scale.set_minor_locator(ticker.NullLocator())


def _side_by_side(
  axes: axes_lib.Axes,
  entries: Sequence['comparison.Entry'],
  values: Sequence[float],
  looks: dict[str, style.Look],
) -> None:
  """Draws a dot for each candidate, with its number."""
  for place, (entry, value) in enumerate(zip(entries, values)):
    colour = looks[entry.candidate.label].colour
    face = colour if entry.row.sensitivity_kind == 'exact' else 'white'
    axes.plot(value, place, 'o', color=colour, markerfacecolor=face)
    axes.annotate(f'{value:#.4g}', (value, place), (6, 5), textcoords='offset points', color=colour)
  axes.set_yticks(range(len(entries)), [style.plain(entry.row.mechanism) for entry in entries])
  axes.set_ylim(len(entries) - 0.4, -0.6)
  axes.margins(x=0.15)
  axes.xaxis.set_major_formatter(_NUMBER)
