"""Figure of a comparison: losses, or noise at equal ε, on log scales; it loads matplotlib."""

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from fl_dpftrl.participation.participation import Participation
from fl_dpftrl.support import style

LOSSES = {'rms': 'RmsLoss', 'max': 'MaxLoss'}
_PANELS = {f'{name}_loss': f'{loss} (clip norms)' for name, loss in LOSSES.items()}
# Noise multipliers are left out: each is in units of its own C, where more may be less noise.
_AT_EPSILON = {
  'rms_error_of_mean': 'RMS error of the mean (clip norms)',
  'max_error_of_mean': 'largest error of the mean (clip norms)',
}
_AXES = {
  'epsilon': 'ε',
  'num_rounds': 'rounds',
  'min_sep': 'min-sep (rounds)',
  'max_participations': 'participations of one device',
}
_NUMBER = ticker.FuncFormatter(lambda value, _: style.number(value))


def draw(entries: Sequence[Any], axis: str | None, subtitle: str = '') -> Figure:
  """Draws losses, or errors of the mean at equal ε; hollow where the sensitivity is not exact.

  The entries are those of a `comparison.Comparison`. The error of the mean of rounds is noise
  multiplier × error ÷ report goal.
  """
  lines = _lines(entries)
  looks = style.looks({line: e.candidate.mechanism for line, e in zip(lines, entries)})
  rows = [{**entry.row, 'mechanism': line} for line, entry in zip(lines, entries)]
  shown = _AT_EPSILON if entries[0].guarantee is not None else _PANELS
  size = (5.5 * len(shown), 4.6 if axis else 1.4 + 0.3 * len(entries))
  figure = style.Figure(figsize=size, facecolor='white', layout='constrained')
  subtitle = textwrap.fill(style.plain(subtitle), 120)
  figure.suptitle(subtitle, x=0.01, ha='left', fontsize=10, color=style.GREY)
  panels = figure.subplots(1, len(shown), sharey=axis is None)
  for axes, (name, label) in zip(panels, shown.items()):
    style.dress(axes)
    if axis is None:
      _side_by_side(axes, rows, name, looks)
      axes.set_xlabel(label)
    else:
      _over(axes, rows, name, looks, axis)
      axes.set_xlabel(_AXES[axis])
      axes.set_ylabel(label)
  if axis is not None:
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc='outside right center', frameon=False)
  return figure


def _lines(entries: Sequence[Any]) -> list[str]:
  """Returns the line of each entry: its label, with the participation where there are several."""
  kinds = [_words(entry.participation, entries) for entry in entries]
  labels = [entry.candidate.label for entry in entries]
  if len(set(kinds)) == 1:
    return labels
  return [f'{label}, {kind}' for label, kind in zip(labels, kinds)]


def _words(participation: Participation, entries: Sequence[Any]) -> str:
  """Returns the kind of a participation, with the sizes that no axis shows, if they differ."""
  words, same = participation.kind.replace('_', '-'), [entry.participation for entry in entries]
  for name in ('num_bins', 'num_examples', 'batch_size', 'squared'):
    values = {getattr(other, name, None) for other in same if other.kind == participation.kind}
    words += f', {name} {getattr(participation, name)}' if len(values) > 1 else ''
  return words


def _over(axes: Axes, rows: Sequence[dict], name: str, looks: dict[str, dict], axis: str) -> None:
  """Draws a line for each candidate, on log scales."""
  for label, look in looks.items():
    points = sorted((row for row in rows if row['mechanism'] == label), key=lambda row: row[axis])
    line = {**look, 'marker': '', 'label': style.plain(label, style.LABEL)}
    axes.plot([row[axis] for row in points], [row[name] for row in points], **line)
    for row in points:
      face = look['color'] if row['sensitivity_kind'] == 'exact' else 'white'
      place = row[axis], row[name], look['marker']
      axes.plot(*place, color=look['color'], markerfacecolor=face, markersize=5)
  axes.set_xscale('log')
  axes.set_yscale('log')
  _ticks(axes.yaxis, [row[name] for row in rows])
  places = sorted({row[axis] for row in rows})
  _ticks(axes.xaxis, places)
  axes.xaxis.set_major_locator(ticker.FixedLocator(places, nbins=8))


def _side_by_side(axes: Axes, rows: Sequence[dict], name: str, looks: dict[str, dict]) -> None:
  """Draws a dot for each candidate, with its number."""
  for place, row in enumerate(rows):
    value, colour = row[name], looks[row['mechanism']]['color']
    face = colour if row['sensitivity_kind'] == 'exact' else 'white'
    axes.plot(value, place, 'o', color=colour, markerfacecolor=face)
    axes.annotate(f'{value:#.4g}', (value, place), (6, 5), textcoords='offset points', color=colour)
  axes.set_yticks(range(len(rows)), [style.plain(row['mechanism'], style.LABEL) for row in rows])
  axes.set_ylim(len(rows) - 0.4, -0.6)
  axes.set_xscale('log')
  axes.margins(x=0.15)
  _ticks(axes.xaxis, [row[name] for row in rows])


def _ticks(scale: Axis, values: Sequence[float]) -> None:
  """Puts numbers on a log scale: at 1, 2 and 5, or evenly where that would be hardly a tick."""
  is_wide = max(values) > 10 * min(values)
  locator = ticker.LogLocator(subs=(1.0, 2.0, 5.0)) if is_wide else ticker.MaxNLocator(5)
  scale.set_major_locator(locator)
  scale.set_major_formatter(_NUMBER)
  scale.set_minor_locator(ticker.NullLocator())
