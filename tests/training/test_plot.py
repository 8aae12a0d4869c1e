"""The plot of a run: equal bytes, and ε in steps that never understate it."""

import matplotlib.pyplot as plt

from fl_dpftrl.training import plot


def test_equal_bytes_and_steps(tmp_path, monkeypatch):
  closed = []
  monkeypatch.setattr(plt, 'close', closed.append)
  path = tmp_path / 'accuracy.png'
  drawn = []
  for _ in range(2):
    plot.accuracy_plot(
      path,
      title='a run',
      accuracy={4: 0.1, 9: 0.2},
      epsilon={4: 1.0, 9: 3.0},
      days={4: 0.5, 9: 1.0},
      baseline=0.05,
      test_accuracy=0.19,
      delta=1e-6,
    )
    drawn.append(path.read_bytes())
  assert drawn[0].startswith(b'\x89PNG') and drawn[0] == drawn[1]
  across = [axes.get_xlabel() for axes in closed[0].axes]
  assert across[-2:] == ['rounds', 'simulated days']
  (line,) = closed[0].axes[2].lines
  assert line.get_drawstyle() == 'steps-pre'  # From round 5 on it is drawn as 3.
