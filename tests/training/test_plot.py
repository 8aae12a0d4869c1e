"""The plot of a run: kinds of files, and ε in steps that never understate it."""

import matplotlib.pyplot as plt
import pytest

from fl_dpftrl.training import plot


@pytest.mark.parametrize(
  'kind, start',
  [
    ('png', b'\x89PNG'),
    pytest.param('svg', b'<?xml', marks=pytest.mark.slow),
    pytest.param('pdf', b'%PDF', marks=pytest.mark.slow),
  ],
)
def test_kinds_of_files_and_steps(tmp_path, monkeypatch, kind, start):
  closed = []
  monkeypatch.setattr(plt, 'close', closed.append)
  path = tmp_path / f'accuracy.{kind}'
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
  assert drawn[0].startswith(start) and drawn[0] == drawn[1]
  (line,) = closed[0].axes[2].lines
  assert line.get_drawstyle() == 'steps-pre'  # From round 5 on it is drawn as 3.
