"""The plot of a run: equal bytes, one panel, and all that the run is compared with."""

from fl_dpftrl.training import plot


def test_equal_bytes_and_everything_that_it_is_compared_with(tmp_path):
  path = tmp_path / 'accuracy.png'
  drawn = []
  for _ in range(2):
    figure = plot.accuracy_plot(
      path,
      title='10 rounds\nε = 3 at δ = 1e-06',
      num_rounds=10,
      accuracy={4: 0.1, 9: 0.2},
      test_accuracy=0.19,
      others={'without noise': 0.21, 'public start': 0.12, 'always "."': 0.05},
    )
    drawn.append(path.read_bytes())
  assert drawn[0].startswith(b'\x89PNG') and drawn[0] == drawn[1]
  (axes,) = figure.axes
  assert axes.get_xlabel() == 'rounds'
  assert 'ε = 3' in axes.get_title(loc='left')
  _, shown = axes.get_legend_handles_labels()
  compared = ['without noise: 21.0 %', 'public start: 12.0 %', 'always ".": 5.0 %']
  assert shown == [*compared, 'this run, validation', 'this run, test: 19.0 %']
  lost = plot.accuracy_plot(path, title='', num_rounds=10, accuracy={}, test_accuracy=0.19)
  assert lost.axes[0].get_legend_handles_labels()[1] == shown[-1:]
