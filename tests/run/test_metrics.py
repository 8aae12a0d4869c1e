"""Metrics and counts that are released beside the mean, under the same guarantee."""

import fractions
import math

import numpy as np
import pytest
import scipy.stats

import fl_dpftrl as dpftrl
from fl_dpftrl.claims import extra_coordinates
from fl_dpftrl.logs import refusals
from fl_dpftrl.mechanisms import lattice
from fl_dpftrl.participation.accounting import gaussian
from fl_dpftrl.run import release, released, sums
from tests import made

TEMPLATE = {'weights': np.zeros(3, np.float32), 'bias': np.zeros(2, np.float32)}
BOUNDS = {'loss': 10.0, 'accuracy': 1.0}


def opened(folder, **changes):
  options = dict(template=TEMPLATE, report_goal=4, noise_seed=3, metrics=BOUNDS)
  return made.aggregator(folder, **options | changes)


def update(scale):
  return {name: np.full_like(part, scale) for name, part in TEMPLATE.items()}


def coordinates(num_coordinates, **changes):
  """A release of coordinates, with others beside it."""
  attributes = dict(noise_multiplier=3.0, clip_norm=1.0, report_goal=5) | changes
  return release.Release(made.claim(**attributes), num_coordinates)


def vector(releasing, size, counts, values):
  """What one device adds, in whole units: an update of a size, and extra coordinates."""
  total = sums.Sum(releasing.size, unit=releasing.unit)
  total.begin(1.0)
  total.add([np.full((1, 3), size, np.float32)])
  total.add_last(releasing.extra(counts, values))
  return total.total


ADAPTIVE = dpftrl.AdaptiveClipping(1.0, clipped_count_stddev=7.0)


@pytest.mark.parametrize('clip_norm', [1.0, ADAPTIVE])
@pytest.mark.parametrize('num_metrics', [1, 2, 3, 7])
@pytest.mark.parametrize('stddev', [None, 3.5, 40.0])
def test_a_device_adds_a_vector_of_the_accounted_norm_at_most(clip_norm, num_metrics, stddev):
  metrics = extra_coordinates.PrivateMetrics({f'm{i}': 2.0**i for i in range(num_metrics)}, stddev)
  releasing = coordinates(3, clip_norm=clip_norm, private_metrics=metrics)
  hostile = [0.0, 1.0, np.inf, -np.inf, np.nan, -5.0, 1e300]
  largest = 0
  for size in (0.0, 0.5, 1e30):
    for counts in [[0, 0, 0], *(np.eye(3, dtype=int).tolist() if clip_norm is ADAPTIVE else ())]:
      for value in hostile:
        added = vector(releasing, size, counts, np.full((1, num_metrics), value))
        assert (added[3:] >= 0).all()
        largest = max(largest, sum(int(k) ** 2 for k in added))
  # ‖v‖ ≤ 1/z in whole numbers, and nearly met.
  most = fractions.Fraction(4) ** (lattice.BITS - releasing.unit.shift) / 9
  assert 0.9999 * most <= largest <= most


def test_the_guarantee_is_met_and_wrong_versions_exceed_it():
  """δ at ε = 0.5 of a device in three rounds, C = (1, .5, .25), z = 3, s = 4.5."""
  sensitivity = np.linalg.norm(np.cumsum([1.0, 0.5, 0.25]))
  multiplier, stddev = 3.0, 4.5

  def delta(*inverse_stddevs):
    effective = 1.0 / (sensitivity * math.hypot(*inverse_stddevs))
    shift = 1.0 / effective
    normal = scipy.stats.norm.cdf
    return normal(shift / 2 - 0.5 / shift) - math.exp(0.5) * normal(-shift / 2 - 0.5 / shift)

  metrics = extra_coordinates.PrivateMetrics({'accuracy': 1.0}, stddev)
  of_update = extra_coordinates.update_noise_multiplier(multiplier, [metrics.group(multiplier)])
  assert of_update == pytest.approx(4.02492, abs=5e-6)
  claimed = delta(1 / multiplier)
  assert claimed == pytest.approx(0.17391, abs=5e-6)
  assert gaussian.epsilon(multiplier / sensitivity, claimed) == pytest.approx(0.5, rel=1e-6)
  assert delta(1 / of_update, 1 / stddev) == pytest.approx(claimed, rel=1e-9)
  # Outside the norm of the updates; two of norm 1 on one s.
  assert delta(1 / multiplier, 1 / stddev) == pytest.approx(0.2410, abs=1e-4)
  assert delta(1 / of_update, 1 / stddev, 1 / stddev) == pytest.approx(0.2410, abs=1e-4)
  # What a device in fact adds to three rounds has the claimed norm.
  releasing = coordinates(1, noise_multiplier=multiplier, report_goal=1, private_metrics=metrics)
  total = sums.Sum(releasing.size, unit=releasing.unit)
  total.begin(1.0)
  total.add([np.full((1, 1), 1e9, np.float32)])
  total.add_last(releasing.extra([1, 0, 0], np.full((1, 1), 1e9)))
  norm = float(np.linalg.norm(total.total.astype(np.float64)))
  sent = norm * 2.0 ** (releasing.unit.shift - lattice.BITS)
  assert delta(sent) == pytest.approx(claimed, rel=1e-5) and delta(sent) <= claimed


@made.cases(
  'rounds, percent',
  (range(1000, 1001), 1.286),
  (range(10), 0.152),
  (range(1000, 1010), 0.188),
  (range(1000, 1050), 0.0442),
  (sorted({*range(1000, 1050)} - {1016, 1033}), 0.0591),
  (range(1000, 2000), 0.0027),
)
def test_deviations_of_means_over_windows(rounds, percent):
  """6,500 devices, 0.5 % more noise in the updates."""
  metrics = extra_coordinates.PrivateMetrics({'accuracy': 1.0})
  releasing = coordinates(
    1, strategy='blt-b400', noise_multiplier=7.379, report_goal=6500, private_metrics=metrics
  )
  assert releasing.unit.size * 2.0**lattice.BITS == pytest.approx(1.005 * 7.379, rel=1e-6)
  assert 100 * releasing.stddevs(list(rounds))['accuracy'] == pytest.approx(percent, rel=0.03)


def test_means_are_those_of_the_values_without_noise(tmp_path):
  values = {'loss': [2.5, 30.0, np.nan, -1.0], 'accuracy': [0.25, 1.0, 0.5, np.inf]}
  with opened(tmp_path, noise_multiplier=0.0) as aggregator:
    with aggregator.round(range(4)) as single:
      for i in range(4):
        single.add(update(0.1), metrics={name: column[i] for name, column in values.items()})
    with aggregator.round(range(4, 8)) as batch:
      stacked = {
        name: np.full((4, *part.shape), 0.1, np.float32) for name, part in TEMPLATE.items()
      }
      batch.add_batch(stacked, metrics=values)
    assert single.metrics == batch.metrics
    assert single.metrics == pytest.approx({'loss': 12.5 / 4, 'accuracy': 2.75 / 4}, abs=1e-5)
    for name, part in single.mean.items():
      np.testing.assert_array_equal(part, batch.mean[name])
    assert aggregator.metrics()['loss'].stddev == 0.0


def test_updates_have_the_same_mean_with_metrics_of_others(tmp_path):
  means = []
  for i, metrics in enumerate([None, {'loss': 9.0, 'accuracy': 1.0}]):
    with opened(tmp_path / str(i)) as aggregator:
      with aggregator.round(range(4)) as round_:
        for _ in range(4):
          round_.add(update(0.1), metrics=metrics)
      means.append((round_.mean, round_.metrics))
  for name, part in means[0][0].items():
    np.testing.assert_array_equal(part, means[1][0][name])
  shift = {name: means[1][1][name] - means[0][1][name] for name in BOUNDS}
  assert shift == pytest.approx({'loss': 9.0, 'accuracy': 1.0}, abs=1e-4)


@made.cases(
  'metrics, message',
  ({'loss': 1.0}, 'metrics must have exactly the names of the run: accuracy, loss'),
  ({'loss': 1.0, 'accuracy': 0.5, 'f1': 1.0}, 'metrics must have exactly the names'),
  ({'loss': 'much', 'accuracy': 0.5}, 'metrics: loss must be a number for each device'),
  ({'loss': [1.0, 2.0], 'accuracy': 0.5}, 'metrics: loss must have one number for each of 1'),
  ([1.0, 0.5], 'metrics must have exactly the names'),
)
def test_other_metrics_are_refused_and_nothing_is_added(metrics, message, tmp_path):
  with opened(tmp_path, noise_multiplier=0.0) as aggregator:
    with aggregator.round(range(4)) as round_:
      with pytest.raises(ValueError, match=message) as raised:
        round_.add(update(0.1), metrics=metrics)
      assert 'much' not in str(raised.value)
      for _ in range(4):
        round_.add(update(0.1))
    assert round_.metrics == {'loss': 0.0, 'accuracy': 0.0}


def run_rounds(aggregator, num_rounds, *, fail=()):
  """Runs rounds of clipped and other updates; returns what they released."""
  seen = []
  for _ in range(num_rounds):
    t = aggregator.next_round
    try:
      with aggregator.round(range(4 * t, 4 * t + 4)) as round_:
        for i in range(4):
          round_.add(update(1.0 if i < 3 else 1e-3), metrics={'loss': 5.0, 'accuracy': i / 4})
        if t in fail:
          raise KeyError(t)
    except KeyError:
      continue
    seen.append((t, round_.clip_norm, round_.metrics, round_.mean['bias'].tolist()))
  return seen


def test_a_run_that_is_opened_again_goes_on_as_one_that_was_not(tmp_path):
  changes = dict(clip_norm=dpftrl.AdaptiveClipping(0.3, rounds=6))
  with opened(tmp_path / 'whole', **changes) as aggregator:
    expected = run_rounds(aggregator, 8, fail={2, 5})
    estimates = aggregator.metrics(last=3)
  assert len({clip_norm for _, clip_norm, _, _ in expected}) == 5  # Failed rounds change none.
  seen = []
  for part in ((3, {2}), (1, ()), (4, {5})):
    with opened(tmp_path / 'parts', **changes) as aggregator:
      seen += run_rounds(aggregator, part[0], fail=part[1])
  assert seen == expected
  with opened(tmp_path / 'parts', **changes) as aggregator:
    assert aggregator.metrics(last=3) == estimates
    assert [e.num_rounds for e in aggregator.metrics().values()] == [6, 6]


def test_no_claim_covers_metrics_with_less_noise_than_it_states():
  for changes in (
    dict(private_metrics=extra_coordinates.PrivateMetrics(BOUNDS, 1.9)),
    dict(clip_norm=dpftrl.AdaptiveClipping(1.0, clipped_count_stddev=1.9)),
    dict(
      clip_norm=dpftrl.AdaptiveClipping(1.0, clipped_count_stddev=2.1),
      private_metrics=extra_coordinates.PrivateMetrics(BOUNDS, 2.1),
    ),
  ):
    with pytest.raises(ValueError, match='use up the guarantee'):
      made.claim(**changes)


@pytest.mark.parametrize(
  'participation, is_covered',
  [(dpftrl.MinSep(9), True), (dpftrl.SecretBins(9, 2), False), (None, False)],
)
def test_an_end_by_metrics_is_covered_where_rounds_were_declared(
  participation, is_covered, tmp_path
):
  with opened(tmp_path, strategy=dpftrl.Identity(), participation=participation) as aggregator:
    run_rounds(aggregator, 2)
    sentences = [s for s in aggregator.statement(1e-6).assumptions if 'a run that ended by' in s]
  assert [('all declared rounds' in s, 'none of these' in s) for s in sentences] == [
    (is_covered, not is_covered)
  ]


ADAPTING = dict(clip_norm=dpftrl.AdaptiveClipping(0.3))


def test_a_line_that_was_not_written_whole_is_left_out(tmp_path):
  with opened(tmp_path, **ADAPTING) as aggregator:
    run_rounds(aggregator, 3)
    means = aggregator.metrics()
  path = tmp_path / released.NAME
  path.write_bytes(path.read_bytes() + b'3,0.2')
  with opened(tmp_path, **ADAPTING) as aggregator:
    assert aggregator.metrics() == means
    (line,) = run_rounds(aggregator, 1)
  lines = path.read_text().splitlines()
  assert [text.split(',')[0] for text in lines] == ['round', '0', '1', '2', '3']
  assert float(lines[-1].split(',')[1]) == line[1]


@pytest.mark.parametrize('place', ['before the line', 'before the mark'])
def test_a_round_that_was_killed_as_it_was_written_leaves_a_table(tmp_path, place, monkeypatch):
  with opened(tmp_path, **ADAPTING) as aggregator:
    run_rounds(aggregator, 2)
    with monkeypatch.context() as patch:
      if place == 'before the line':
        patch.setattr(released.os, 'fsync', lambda *_: (_ for _ in ()).throw(OSError(5, 'no')))
      else:
        patch.setattr(
          aggregator._noised.table._mark,
          'write',
          lambda *_, **__: (_ for _ in ()).throw(OSError(5)),
        )
      with pytest.raises(OSError):
        run_rounds(aggregator, 1)
    if place == 'before the line':
      run_rounds(aggregator, 1)
  with opened(tmp_path, **ADAPTING) as aggregator:
    run_rounds(aggregator, 1)
    rounds = list(aggregator._noised.table.columns()['loss'])
  assert rounds == ([0, 1, 3, 4] if place == 'before the line' else [0, 1, 2, 3])


def test_a_table_that_was_cut_is_older_or_of_another_run_is_refused(tmp_path):
  folders = [tmp_path / name for name in ('own', 'other')]
  path, other = (folder / released.NAME for folder in folders)
  versions = []
  for folder in folders:
    with opened(folder, **ADAPTING) as aggregator:
      for _ in range(4):
        run_rounds(aggregator, 1)
        if folder == folders[0]:
          versions.append((path.read_bytes(), path.with_suffix('.mark').read_bytes()))
  whole, marked = versions[-1]
  lines = whole.splitlines(keepends=True)
  wrong = [whole[:-1], whole[: whole.rfind(b'4')], b'', *(table for table, _ in versions[:-1])]
  wrong += [other.read_bytes(), whole + lines[-1], b''.join([*lines[:2], *lines[3:]])]
  wrong += [whole.replace(b'0,0.3', text) for text in (b'7,0.3', b'0,1e-310', b'0,1e7')]
  for content in wrong:
    path.write_bytes(content)
    with pytest.raises(ValueError, match='released.csv'):
      opened(folders[0], **ADAPTING)
  path.write_bytes(whole)
  others_mark = other.with_suffix('.mark').read_bytes()
  for content in (b'', others_mark, *(mark_ for _, mark_ in versions[:-2])):
    path.with_suffix('.mark').write_bytes(content)
    with pytest.raises(ValueError, match='and released.mark is of'):
      opened(folders[0], **ADAPTING)
  path.with_suffix('.mark').write_bytes(marked)
  opened(folders[0], **ADAPTING).close()
  path.unlink()
  path.with_suffix('.mark').unlink()
  with opened(folders[0], **ADAPTING) as aggregator:
    assert aggregator.clip_norm == pytest.approx(0.3)
    run_rounds(aggregator, 1)


@pytest.mark.parametrize('sample', [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_flipped_bit_of_the_table_is_refused_or_harmless(tmp_path, sample):
  with opened(tmp_path, **ADAPTING) as aggregator:
    run_rounds(aggregator, 3)
    expected = aggregator.metrics(), aggregator.clip_norm
    run, releasing = aggregator.guard.log.run, aggregator._noised.coordinates
  for path in (tmp_path / released.NAME, tmp_path / 'released.mark'):
    content = path.read_bytes()
    bits = np.random.default_rng(0).permutation(8 * len(content))[:sample]
    for bit in bits.tolist():
      flipped = bytearray(content)
      flipped[bit // 8] ^= 1 << bit % 8
      path.write_bytes(flipped)
      try:
        table = released.ReleasedTable(tmp_path / released.NAME, releasing, run, 3)
      except ValueError:
        continue
      assert (releasing.estimates(table.columns(), None), table.clip_norm) == expected
      table.close()
    path.write_bytes(content)


def test_the_clip_norm_follows_as_in_federated(tmp_path):
  """The rule is one function; here with the counts that were released."""
  rule = dpftrl.AdaptiveClipping(0.3, target_quantile=0.5, learning_rate=0.4, rounds=5)
  with opened(tmp_path, clip_norm=rule) as aggregator:
    seen = run_rounds(aggregator, 8)
    assert aggregator.clip_norm == seen[-1][1]
  for (t, clip_norm, metrics, _), (_, following, _, _) in zip(seen, seen[1:]):
    share = metrics['clipped_count'] / 4
    moved = clip_norm * math.exp(0.4 * (share - 0.5)) if t < 5 else clip_norm
    assert following == pytest.approx(moved, rel=1e-6)
  assert seen[0][1] != seen[4][1] and seen[6][1] == seen[7][1]


@pytest.mark.parametrize('window', [range(2, 3), range(3, 9), range(12)])
def test_released_means_have_the_stated_deviation(window, tmp_path):
  """Windows of 400 metrics of zeros accept σ, and reject ⅔ and 1.5 of it."""
  bounds = {f'm{i}': 3.0 for i in range(400)}
  with opened(tmp_path, metrics=bounds, noise_seed=11) as aggregator:
    for t in range(12):
      with aggregator.round(range(4 * t, 4 * t + 4)) as round_:
        for _ in range(4):
          round_.add(update(0.0))
    rows = aggregator._noised.table._rounds
    values = np.array([np.mean([rows[t][name] for t in window]) for name in bounds])
    stddev = aggregator._noised.coordinates.stddevs(list(window))['m0']
  square = (values**2).sum() / stddev**2
  low, high = scipy.stats.chi2(400).interval(1 - 1e-6)
  assert low < square < high
  assert not low < square * 1.5**2 < high and not low < square / 1.5**2 < high


def test_a_claim_states_the_metrics(tmp_path):
  with opened(tmp_path, noise_seed=None) as aggregator:
    run_rounds(aggregator, 1)
    claim = aggregator.guard.claim
  document = claim.to_json()
  assert document['private_metrics'] == {'bounds': BOUNDS, 'stddev': None}
  assert dpftrl.Claim.from_json(document, made.BLT) == claim
  with pytest.raises(refusals.LogError, match='private_metrics'):
    opened(tmp_path, noise_seed=None, metrics={'loss': 10.0, 'f1': 1.0})


def test_statement_and_report_say_what_was_released(tmp_path):
  options = dict(participation=dpftrl.MinSep(8, 1), delta=1e-6, noise_seed=None)
  with opened(tmp_path / 'run', **options) as aggregator:
    run_rounds(aggregator, 2)
    statement = aggregator.statement()
    aggregator.report(tmp_path / 'report.html')
  assert any('means of the metrics accuracy, loss' in text for text in statement.assumptions)
  assert statement.to_json()['private_metrics'] == BOUNDS
  assert 'metrics released' in (tmp_path / 'report.html').read_text()
  assert statement.publishable().to_json()['private_metrics'] == BOUNDS


def test_the_price_in_noise_is_shown(tmp_path):
  with opened(tmp_path / 'metrics') as aggregator:
    assert 'noise_multiplier=2 (updates +0.5 % for 2 further figures)' in repr(aggregator)
  with opened(tmp_path / 'plain', metrics=None) as aggregator:
    assert 'noise_multiplier=2, round 0' in repr(aggregator)


@pytest.mark.parametrize('metrics', [{}, {'loss': 1.0}])
def test_metrics_of_a_run_without_any_are_refused(metrics, tmp_path):
  with opened(tmp_path, metrics=None) as aggregator, aggregator.round(range(4)) as round_:
    with pytest.raises(ValueError, match='metrics must be left out'):
      round_.add(update(0.1), metrics=metrics)
    for _ in range(4):
      round_.add(update(0.1))
