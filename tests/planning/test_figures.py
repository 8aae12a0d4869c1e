"""The figure of a comparison has what was compared, with labels on its axes."""

import dataclasses

import pytest
from matplotlib import text

import fl_dpftrl as dpftrl
from fl_dpftrl.planning import comparison_figures
from fl_dpftrl.study import result_tables as study_results
from fl_dpftrl.study import study_figures
from tests import made

NAMES = ['identity', 'tree_online', 'blt-b400']


@made.cases(
  'axis, label, fields',
  ('num_rounds', 'rounds', [dict(num_rounds=n, min_sep=4) for n in (8, 16)]),
  ('min_sep', 'min-sep (rounds)', [dict(num_rounds=16, min_sep=b) for b in (2, 4)]),
  (
    'max_participations',
    'participations of one device',
    [dict(num_rounds=16, min_sep=2, max_participations=k) for k in (2, 4)],
  ),
)
def test_a_line_for_each_candidate(axis, label, fields):
  found = dpftrl.compare(NAMES, [dpftrl.MinSep(**one) for one in fields])
  figure = comparison_figures.draw(found.entries, axis)
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


@pytest.mark.parametrize('num_settings', [1, 2])
def test_at_equal_epsilon_errors_are_drawn_on_a_log_scale(num_settings):
  schemas = [dpftrl.MinSep(16, min_sep) for min_sep in (4, 8)[:num_settings]]
  found = dpftrl.compare(NAMES, schemas, epsilon=2.0, delta=1e-6, report_goal=10)
  panels, rows = found.plot().axes, found.rows
  for axes, name in zip(panels, ('rms_error_of_mean', 'max_error_of_mean'), strict=True):
    scale, label = axes.xaxis, axes.get_xlabel()
    if num_settings > 1:
      scale, label = axes.yaxis, axes.get_ylabel()
    assert scale.get_scale() == 'log' and 'error of the mean' in label
    low, high = scale.get_view_interval()
    assert len([tick for tick in scale.get_ticklocs() if low <= tick <= high]) >= 3
    points = [line for line in axes.lines if line.get_marker() not in ('', 'None')]
    drawn = [line.get_data()[num_settings > 1][0] for line in points]
    assert sorted(drawn) == sorted(row[name] for row in rows)


def texts_beyond(figure):
  """Returns the texts of a figure that its edges cut."""
  figure.draw_without_rendering()
  inside = figure.bbox.padded(1.0)
  boxes = {t.get_text(): t.get_window_extent() for t in figure.findobj(text.Text) if t.get_text()}
  return [t for t, box in boxes.items() if not all(map(inside.contains, *box.get_points().T))]


@pytest.mark.parametrize('epsilon', [None, 2.0])
@pytest.mark.parametrize('num_settings', [1, 2])
def test_long_labels_leave_all_texts_within_the_figure(num_settings, epsilon):
  delta = epsilon and 1e-6
  names = [*NAMES, f'{"a long label of a strategy " * 4}=blt-b100']
  schemas = [dpftrl.MinSep(16, min_sep) for min_sep in (4, 8)[:num_settings]]
  found = dpftrl.compare(names, schemas, epsilon=epsilon, delta=delta)
  axis = 'min_sep' if num_settings > 1 else None
  assert not texts_beyond(
    comparison_figures.draw(found.entries, axis, 'as many participations as fit; ' * 8)
  )


@pytest.mark.parametrize('metric', ['accuracy', 'a' * 36 + ' bcd'])
def test_long_labels_leave_all_texts_within_the_figures_of_a_study(metric):
  lower = None if metric == 'accuracy' else True
  rows = [
    study_results.Result(
      mechanism=mechanism * 15, epsilon=epsilon, server_learning_rate=1.0, seed=seed, status='done',
      validation=0.5, test=0.5 + 0.01 * seed * epsilon, epsilon_of_run=epsilon, noise_multiplier=2,
    ) for mechanism in ('ab', 'cd') for epsilon in (1.0, 2.0) for seed in range(3)
  ]  # fmt: skip
  metric = study_results.Metric(metric, lower_is_better=lower)
  drawn = study_figures.draw(study_results.rows(rows, metric), metric)
  assert len(drawn) == 2 and not [t for figure in drawn.values() for t in texts_beyond(figure)]


@pytest.mark.parametrize('sizes', [(2, 4), (4,)])
def test_draws_of_several_sizes_have_a_line_each(sizes):
  found = dpftrl.compare(['identity'], dpftrl.MinSep(16, 4), epsilon=(1, 2, 8), delta=1e-6)
  entries = [
    dataclasses.replace(entry, participation=dpftrl.SecretBins(16, size))
    for size in sizes
    for entry in found.entries
  ]
  panel, _ = dataclasses.replace(found, entries=(*found.entries, *entries)).plot().axes
  drawn = [line for line in panel.lines if not line.get_label().startswith('_')]
  bins = [f'bins, num_bins {size}' for size in sizes] if len(sizes) > 1 else ['bins']
  assert [line.get_label() for line in drawn] == [f'identity, {k}' for k in ('min-sep', *bins)]
  assert all(line.get_xdata().tolist() == [1, 2, 8] for line in drawn)


@pytest.mark.slow
def test_a_sweep_of_epsilon_has_a_line_for_each_mechanism_and_participation():
  participations = [dpftrl.MinSep(16, 4), dpftrl.SecretBins(16, 4)]
  found = dpftrl.compare(NAMES[:2], participations, epsilon=(1, 2, 8), delta=1e-6)
  figure = found.plot()
  lines = [f'{name}, {kind}' for name in NAMES[:2] for kind in ('min-sep', 'bins')]
  for axes, name in zip(figure.axes, ('rms_error_of_mean', 'max_error_of_mean')):
    assert (axes.get_xlabel(), axes.get_xscale()) == ('ε', 'log')
    drawn = {line.get_label(): line for line in axes.lines if not line.get_label().startswith('_')}
    assert list(drawn) == lines
    ys = [row[name] for row in found.rows if row['mechanism'] == NAMES[0]]
    assert drawn[lines[0]].get_data()[0].tolist() == [1, 2, 8]
    assert drawn[lines[0]].get_data()[1].tolist() == ys[:3]
  with pytest.raises(ValueError, match='epsilon and num_rounds varying'):
    schemas = [dpftrl.MinSep(n, 4) for n in (8, 16)]
    dpftrl.compare(NAMES, schemas, epsilon=(1, 2), delta=1e-6).plot()
