"""Figures of a study, in the style of `fl-dpftrl compare`."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib import axes as axes_lib
from matplotlib import figure as figure_lib
from matplotlib import ticker

from fl_dpftrl import metrics
from fl_dpftrl.drawing import style
from fl_dpftrl.studies import cells, results
from fl_dpftrl.studies import design as design_lib
from fl_dpftrl.studies import metric as metric_lib

_PANELS_A_ROW = 3
_CONSTANT = 'constant prediction'
# Of the distance between two ε, on a log scale, that their mechanisms take together.
_SHARE = 0.12
_MOST_MARKS = 8
_WIDE = 20.0  # ratio of values from which on they have a log scale


class Series(NamedTuple):
  """One line of a panel: (x, y, margin of y) in ascending order of x."""

  label: str
  points: list[tuple[float, float, float]]


def looks(rows: Sequence[results.Row]) -> dict[str, style.Look]:
  """Returns a look for each label of the study; no noise is black."""
  mechanisms: dict[str, str] = {}
  for row in rows:
    if row.label not in mechanisms or row.results:
      mechanisms[row.label] = row.family
  look_of = style.looks(mechanisms)
  if design_lib.NO_NOISE in look_of:
    look_of[design_lib.NO_NOISE] = style.Look(style.INK, '', (2, 2))
  return look_of


def by_epsilon(design: design_lib.Design, rows: Sequence[results.Row]) -> figure_lib.Figure | None:
  """Draws the metric on test data over ε, a line for each mechanism; None without one."""
  metric, scale = design.metric, design.metric.scale
  noisy = [row for row in rows if row.tests and row.setting.mechanism is not None]
  lines = _lines(scale, ((row.label, row.epsilon, row.mean, row.margin) for row in noisy))
  if not lines:
    return None
  bounded = any(margin for line in lines for _, _, margin in line.points)
  figure = style.new_figure(
    9.0,
    5.6,
    design.title,
    f'test {metric.name}, mean with its {interval(design, rows)}; the mechanisms of one ε are drawn'
    ' side by side'
    if bounded
    else f'test {metric.name} of one seed; the mechanisms of one ε are drawn side by side',
  )
  axes = figure.subplots()
  style.dress(axes)
  look = looks(rows)
  silent = results.without_noise(rows)
  if silent is not None:
    axes.axhline(scale * silent.mean, **look[design_lib.NO_NOISE].line)
  epsilons = sorted({x for line in lines for x, _, _ in line.points})
  draw(axes, _side_by_side(lines, epsilons), look)
  constant = results.baseline(rows)
  if constant is not None:
    look |= {_CONSTANT: style.Look(style.GREY, '', (1, 2))}
    axes.axhline(scale * constant, color=style.GREY, linewidth=0.9, dashes=(1, 2))
  _epsilon_axis(axes, epsilons)
  of = 'the run' if design.epsilon_of == design_lib.RUN else 'the hypothetical deployment'
  axes.set_xlabel(f'ε of {of}')
  axes.set_ylabel(metric.axis('test', ', mean and interval' if bounded else ''))
  if metric.is_accuracy:  # The interval of two seeds may be wider.
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, 0.0), min(high, 100.0))
  values = [v for line in lines for _, y, margin in line.points for v in (y, y + margin)]
  scale_values(axes, metric, values + ([] if silent is None else [silent.mean]))
  figure.draw_without_rendering()
  last, edge = epsilons[-1], axes.get_xlim()[1]
  ends = [
    (label, edge if x == last else x, y) for label, points in lines for x, y, _ in points[-1:]
  ]
  if silent is not None:
    ends.append((design_lib.NO_NOISE, edge, scale * silent.mean))
  if constant is not None:
    ends.append((_CONSTANT, edge, scale * constant))
  style.label_lines(axes, ends, look)
  return figure


def interval(design: design_lib.Design, rows: Sequence[results.Row]) -> str:
  """Returns what intervals there are, in words."""
  if any(row.looks for row in rows):
    counts = [len(row.tests) for row in rows]
    return f'interval over {min(counts)} to {max(counts)} seeds, wider than 95 % for looking again'
  return f'95 % interval over {len(design.seeds)} seeds'


def _side_by_side(lines: Sequence[Series], epsilons: Sequence[float]) -> list[Series]:
  """Moves each line a little along the log scale, so that no bar hides another."""
  ratio = min((b / a for a, b in zip(epsilons, epsilons[1:])), default=2.0)
  moved = []
  for index, line in enumerate(lines):
    place = index / (len(lines) - 1) - 0.5 if len(lines) > 1 else 0.0
    factor = ratio ** (_SHARE * place)
    moved.append(Series(line.label, [(x * factor, y, d) for x, y, d in line.points]))
  return moved


def _epsilon_axis(axes: axes_lib.Axes, epsilons: Sequence[float]) -> None:
  """Sets a log scale with a mark for each ε, where these are few."""
  axes.set_xscale('log')
  low, high = epsilons[0], epsilons[-1]
  marks = epsilons if len(epsilons) <= _MOST_MARKS else style.ticks(low, high, _MOST_MARKS)
  axes.xaxis.set_major_locator(ticker.FixedLocator(list(marks)))
  axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: style.number(value)))
  axes.xaxis.set_minor_locator(ticker.NullLocator())
  if len(epsilons) == 1:
    axes.set_xlim(low / 1.5, high * 1.5)


def by_rate(
  design: design_lib.Design, runs: Sequence[results.Result], rows: Sequence[results.Row]
) -> figure_lib.Figure | None:
  """Draws the metric on validation data over the learning rate; None without two rates."""
  tuning, metric = set(design.seeds[: design.tuning_seeds]), design.metric
  tried = {s: rates for s, rates in results.tried_rates(design, runs).items() if len(rates) > 1}
  if not tried:
    return None
  chosen = {row.setting: row.server_learning_rate for row in rows}
  panels: dict[float | None, list[Series]] = {}
  rings: dict[float | None, list[tuple[str, tuple[float, float]]]] = {}
  for setting, rates in tried.items():
    points = {}
    for rate in rates:
      own = [
        r.validation
        for r in runs
        if r.cell.setting == setting
        and r.cell.server_learning_rate == rate
        and r.cell.seed in tuning
        and r.validation is not None
      ]
      if own:
        points[rate] = statistics.fmean(own)
    measured = ((setting.label, rate, y, None) for rate, y in points.items())
    if lines := _lines(metric.scale, measured):
      panels.setdefault(setting.epsilon, []).extend(lines)
    if (best := chosen.get(setting)) in points:
      ring = setting.label, (best, metric.scale * points[best])
      rings.setdefault(setting.epsilon, []).append(ring)
  if not panels:
    return None
  return _panels(
    design.title,
    f'validation {metric.name} by server learning rate, seed {", ".join(map(str, sorted(tuning)))};'
    ' ringed: the chosen rate',
    panels,
    looks(rows),
    metric=metric,
    x_label='server learning rate',
    logarithmic=True,
    rings=rings,
  )


def by_round(design: design_lib.Design, rows: Sequence[results.Row]) -> figure_lib.Figure | None:
  """Draws the metric on validation data over rounds, the mean over seeds."""
  metric = design.metric
  panels: dict[float | None, list[Series]] = {}
  for row in rows:
    measured: dict[int, list[float]] = {}
    for result in row.results:
      if result.status == results.DONE:
        for number, value in _curve(result.cell):
          measured.setdefault(number, []).append(value)
    points = [(row.label, n + 1.0, statistics.fmean(v), None) for n, v in measured.items()]
    if points:
      panels.setdefault(row.setting.epsilon, []).extend(_lines(metric.scale, points))
  if not panels:
    return None
  return _panels(
    design.title,
    f'validation {metric.name} by round, at the chosen learning rate, mean over seeds',
    panels,
    looks(rows),
    metric=metric,
    x_label='round',
    logarithmic=False,
  )


def _curve(cell: cells.Cell) -> list[tuple[int, float]]:
  """Returns rounds with the metric on validation data, of a run's metrics.csv."""
  try:
    history = metrics.MetricsTable(cell.folder / metrics.NAME).history()
  except (OSError, ValueError):
    return []  # The figure can do without a run whose table is lost.
  return list(history.column(f'validation/{cell.metric.name}').items())


def _lines(scale: float, points: Iterable[tuple[str, float, float, float | None]]) -> list[Series]:
  """Groups (label, x, value, margin) by label; values and margins get the scale."""
  by_label: dict[str, list[tuple[float, float, float]]] = {}
  for label, x, y, margin in points:
    by_label.setdefault(label, []).append((x, scale * y, scale * (margin or 0.0)))
  return [Series(label, sorted(line)) for label, line in by_label.items()]


def draw(axes: axes_lib.Axes, lines: Sequence[Series], look: dict[str, style.Look]) -> None:
  """Draws lines with their markers, and margins as bars."""
  for label, points in lines:
    xs, ys, margins = zip(*points)
    axes.plot(xs, ys, marker=look[label].marker, markersize=5, label=label, **look[label].line)
    if any(margins):
      axes.errorbar(
        xs, ys, yerr=margins, linestyle='none', color=look[label].colour, elinewidth=0.9, capsize=2
      )


def scale_values(axes: axes_lib.Axes, metric: metric_lib.Metric, values: Sequence[float]) -> None:
  """Sets a log scale for values other than accuracies that differ by a large factor."""
  low, high = min(values), max(values)
  if not metric.is_accuracy and 0 < _WIDE * low < high:
    low, high = low / 1.5, high * 1.5  # An interval may hold 0.
    style.scale(axes, 'y', low, high, most_ticks=6)
    axes.set_ylim(low, high)


def _panels(
  title: str,
  subtitle: str,
  panels: dict[float | None, list[Series]],
  look: dict[str, style.Look],
  *,
  metric: metric_lib.Metric,
  x_label: str,
  logarithmic: bool,
  rings: Mapping[float | None, Sequence[tuple[str, tuple[float, float]]]] = {},
) -> figure_lib.Figure:
  """Draws a panel of validation values for each ε, with what there is without noise in all.

  `rings` has labels and points, by ε, that get a ring.
  """
  if len(panels) > 1 and None in panels:
    silent = panels[None]
    panels = {e: [*series, *silent] for e, series in panels.items() if e is not None}
  columns = min(len(panels), _PANELS_A_ROW)
  lines = -(-len(panels) // columns)
  figure = style.new_figure(3.2 * columns + 2.4, 3.0 * lines + 1.4, title, subtitle)
  grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
  for axes in grid.flat[len(panels) :]:
    axes.set_visible(False)
  shown: dict[str, Any] = {}
  points = [point for series in panels.values() for line in series for point in line.points]
  xs, ys, _ = zip(*points)
  for axes, (epsilon, series) in zip(grid.flat, panels.items()):
    style.dress(axes)
    heading(axes, epsilon)
    draw(axes, series, look)
    ringed = [point for label, point in rings.get(epsilon, []) if label in look]
    if ringed:
      axes.plot(*zip(*ringed), 'o', markersize=11, markerfacecolor='none', color=style.INK)
    if logarithmic:
      style.scale(axes, 'x', min(xs), max(xs), most_ticks=6, span=1.5)
    scale_values(axes, metric, ys)
    axes.set_xlabel(x_label)
    axes.tick_params(labelbottom=True)
    shown |= dict(zip(*reversed(axes.get_legend_handles_labels())))
  for row in grid:
    row[0].set_ylabel(metric.axis('validation'))
  legend(figure, list(shown.values()), list(shown))
  return figure


def heading(axes: axes_lib.Axes, epsilon: float | None) -> None:
  """Writes the ε of a panel above it."""
  text = design_lib.NO_NOISE if epsilon is None else f'ε = {epsilon:g}'
  axes.set_title(text, loc='left', fontsize=10.5, fontweight='bold', color=style.INK)


def legend(figure: figure_lib.Figure, handles: Sequence, labels: Sequence[str]) -> None:
  """Adds a legend at the right of the figure."""
  figure.legend(
    handles,
    [style.plain(label) for label in labels],
    loc='outside right center',
    frameon=False,
    fontsize=9.5,
  )
