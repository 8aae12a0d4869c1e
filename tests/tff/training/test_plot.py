"""The plot of a run: all of its title is seen, and no line is under the legend."""

from matplotlib.backends import backend_agg

from fl_dpftrl.tff.training import plot


def test_title_and_legend_are_beside_the_lines(tmp_path):
  figure = plot.accuracy_plot(
    tmp_path / 'accuracy.png',
    title=f'{"a-long-path/" * 9}run\nε = 2.1 at δ = 1e-6',
    num_rounds=9,
    accuracy={0: 0.02, 8: 0.08},
    others={'without noise': 0.09, 'start': 0.0},
  )
  canvas = backend_agg.FigureCanvasAgg(figure)
  canvas.draw()
  renderer = canvas.get_renderer()
  title, (legend,) = figure._suptitle.get_window_extent(renderer), figure.legends
  assert 0.0 <= title.x0 < title.x1 <= figure.bbox.width and title.y1 <= figure.bbox.height
  (axes,) = figure.axes
  lines, shown = axes.get_window_extent(renderer), legend.get_window_extent(renderer)
  assert not lines.overlaps(shown) and not lines.overlaps(title) and not shown.overlaps(title)
  assert 0.0 <= shown.x0 < shown.x1 <= figure.bbox.width and shown.y0 >= 0.0
