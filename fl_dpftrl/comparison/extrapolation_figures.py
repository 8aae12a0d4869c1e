"""Figures of predictions; importing this module loads matplotlib."""

from collections.abc import Mapping, Sequence

from matplotlib import axes as axes_lib
from matplotlib import figure as figure_lib

from fl_dpftrl.comparison import extrapolation
from fl_dpftrl.drawing import style
from fl_dpftrl.text import rounding

_NAMES = {
  'report_goal': 'report goal (devices a round)',
  'num_rounds': 'rounds',
  'population': 'population (devices)',
  'epsilon': 'ε',
  'rho': 'ρ (zCDP)',
}
_CHARACTER = 0.07  # character width of min-sep labels, in inches


def against(
  entries: Sequence[extrapolation.Entry],
  axis: str,
  guarantee: str,
  *,
  title: str,
  subtitle: str,
  names: Mapping[str, str],
  reference: int | None = None,
) -> figure_lib.Figure:
  """Draws ε or ρ over a varying field, above the participation it comes from.

  Args:
    entries: entries with at least two values of the axis.
    axis: report_goal, num_rounds or population, as in rows.
    guarantee: 'epsilon' or 'rho'.
    title: first line.
    subtitle: setting and assumptions, in lines.
    names: name of the line of each label.
    reference: value on the axis at which the noise is given.
  """
  looks = style.looks(
    {names[entry.candidate.label]: entry.candidate.mechanism for entry in entries}
  )
  note = style.note(entry.guarantee.sensitivity_kind for entry in entries)
  figure = style.new_figure(9.0, 7.2, title, subtitle, note)
  top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
  lines: dict[str, list[tuple[float, float, bool]]] = {}
  counts: dict[str, list[int]] = {}
  for entry in sorted(entries, key=lambda entry: getattr(entry.deployment, axis)):
    x, y = getattr(entry.deployment, axis), getattr(entry.guarantee, guarantee)
    label, exact = names[entry.candidate.label], entry.guarantee.sensitivity_kind == 'exact'
    lines.setdefault(label, []).append((x, y, exact))
    counts.setdefault(label, []).append(entry.guarantee.schema.participations)
  for axes in (top, bottom):
    style.dress(axes)
  for label, line in lines.items():
    # The guarantee jumps where a device participates more or less often.
    jumps = [False, *(now != before for before, now in zip(counts[label], counts[label][1:]))]
    style.draw_line(top, line, looks[label], jumps)
  xs = sorted({getattr(entry.deployment, axis) for entry in entries})
  values = [y for line in lines.values() for _, y, _ in line]
  style.scale(bottom, 'x', xs[0], xs[-1])
  style.scale(top, 'y', min(values), max(values), most_ticks=8)
  if reference is not None and xs[0] <= reference <= xs[-1]:
    _mark(top, reference)
  _participation(bottom, entries, axis)
  delta = float(rounding.up(entries[0].guarantee.delta))
  top.set_ylabel(
    f'{_NAMES[guarantee]} at δ = {style.number(delta)}'
    if guarantee == 'epsilon'
    else _NAMES[guarantee]
  )
  bottom.set_xlabel(_NAMES[axis])
  figure.draw_without_rendering()
  style.label_lines(top, [(k, *max(line)[:2]) for k, line in lines.items()], looks)
  figure.draw_without_rendering()  # names at the right reduce the axes' width
  _min_seps(bottom, entries, axis)
  return figure


def _mark(axes: axes_lib.Axes, reference: int) -> None:
  axes.axvline(reference, color=style.GREY, linewidth=0.9, dashes=(1, 2))
  axes.annotate(
    'reference',
    (reference, 1.0),
    xycoords=('data', 'axes fraction'),
    xytext=(4, -2),
    textcoords='offset points',
    va='top',
    fontsize=9,
    color=style.GREY,
  )


def _participation(axes: axes_lib.Axes, entries: Sequence[extrapolation.Entry], axis: str) -> None:
  """Draws the maximum participations of a device."""
  xs, participations = zip(
    *sorted({(getattr(e.deployment, axis), e.guarantee.schema.participations) for e in entries})
  )
  axes.plot(
    xs,
    participations,
    drawstyle='steps-mid',
    color=style.INK,
    linewidth=1.0,
    marker='.',
    markersize=6,
  )
  low, high = min(participations), max(participations)
  axes.set_ylim(low / 1.5, high * 2.6)
  style.scale(axes, 'y', *axes.get_ylim(), most_ticks=5)
  if axes.get_yscale() == 'linear':
    axes.set_ylim(low - 1, high + 2)
  axes.set_ylabel('participations\nat most')


def _min_seps(axes: axes_lib.Axes, entries: Sequence[extrapolation.Entry], axis: str) -> None:
  """Draws the min-seps above the participations, as far as there is room."""
  schemas = {(getattr(e.deployment, axis), e.guarantee.schema) for e in entries}
  points = sorted((x, schema.participations, schema.min_sep) for x, schema in schemas)
  if len({min_sep for _, _, min_sep in points}) == 1:
    return
  taken = float('-inf')
  for x, k, min_sep in points:
    text = f'b {style.number(min_sep)}'
    half = 0.5 * _CHARACTER * len(text)
    place = axes.transData.transform((x, k))[0] / axes.figure.dpi
    if place - half < taken:
      continue
    taken = place + half
    axes.annotate(
      text,
      (x, k),
      xytext=(0, 5),
      textcoords='offset points',
      ha='center',
      fontsize=8.5,
      color=style.GREY,
      bbox={'facecolor': 'white', 'edgecolor': 'none', 'pad': 0.5},
    )
