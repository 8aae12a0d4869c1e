"""The figure of a comparison has what was compared, with labels on its axes."""

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.planning import figures

NAMES = ['identity', 'tree_online', 'blt-b400']


@pytest.mark.parametrize('axis, label, fields', [
  ('num_rounds', 'rounds', [dict(num_rounds=n, min_sep=4) for n in (8, 16)]),
  ('min_sep', 'min-sep (rounds)', [dict(num_rounds=16, min_sep=b) for b in (2, 4)]),
  ('max_participations', 'participations of one device',
   [dict(num_rounds=16, min_sep=2, max_participations=k) for k in (2, 4)]),
])  # fmt: skip
def test_a_line_for_each_candidate(axis, label, fields):
  found = dpftrl.compare(NAMES, [dpftrl.MinSep(**one) for one in fields])
  figure = figures.draw(found.entries, axis)
  assert [axes.get_xlabel() for axes in figure.axes] == [label] * 2
  assert [axes.get_ylabel() for axes in figure.axes] == [
    'RmsLoss (clip norms)',
    'MaxLoss (clip norms)',
  ]
  for axes, name in zip(figure.axes, ('rms_loss', 'max_loss')):
    lines = {line.get_label(): line for line in axes.lines}
    for entry in found.entries:
      xs, ys = lines[entry.candidate.label].get_data()
      at = xs.tolist().index(entry.row[axis])
      assert ys[at] == entry.row[name]


def test_at_equal_epsilon_noise_and_errors_are_drawn():
  found = dpftrl.compare(NAMES, dpftrl.MinSep(16, 4), epsilon=2.0, delta=1e-6, report_goal=10)
  panels = found.plot().axes
  assert [axes.get_xlabel() for axes in panels] == [
    'noise multiplier',
    'RMS error of the mean (clip norms)',
    'largest error of the mean (clip norms)',
  ]
  for axes, name in zip(panels, ('noise_multiplier', 'rms_error_of_mean', 'max_error_of_mean')):
    assert [line.get_xdata()[0] for line in axes.lines] == [row[name] for row in found.rows]
