"""Runs with secret bins, from the draw to the statement, and logs that contradict them."""

import json

import numpy as np
import pytest
from scipy import stats

import fl_dpftrl as dpftrl
from fl_dpftrl.commands import main
from fl_dpftrl.participation import registry
from fl_dpftrl.participation.rules import sampling
from fl_dpftrl.planning.simulation import partition
from fl_dpftrl.prove.replaying import opened_runs, replays
from fl_dpftrl.prove.reports import privacy
from tests import drawn

SCHEME = dpftrl.SecretBins(60, 12)
BLT = dpftrl.BLT((0.9, 0.5), (0.3, 0.2))


def cohorts():
  return drawn.batches(SCHEME, num_devices=6000)


def stated(rounds, scheme=SCHEME, **kwargs):
  run = opened_runs.RecordedRun.of(
    drawn.log_of(rounds), BLT, noise_multiplier=4.0, participation=scheme
  )
  return replays.replay(run, **{'delta': 1e-6, **kwargs})


def contradictions(rounds, scheme=SCHEME):
  return stated(rounds, scheme).drawn.reason


def test_devices_keep_a_bin_each_and_all_bins_are_alike():
  rounds = cohorts()
  np.testing.assert_array_equal(rounds[3], rounds[15])
  members = np.concatenate(rounds[:12])
  assert sorted(members) == list(range(6000))
  assert min(map(len, rounds)) > 400 and max(map(len, rounds)) < 600
  shuffled = sampling.Shuffled(num_rounds=3, num_examples=9, batch_size=3)
  for wrong in ({'num_devices': None}, {'num_devices': 0}, {'scheme': shuffled}):
    with pytest.raises(ValueError, match='num_devices'):
      partition.rounds(**{'scheme': SCHEME, 'seed': 0, 'num_devices': 5, **wrong})


def test_a_statement_has_the_figure_of_account():
  found = stated(cohorts())
  account = dpftrl.account(BLT, SCHEME, noise_multiplier=4.0, delta=1e-6)
  amplified = found.to_json()['amplified']
  assert amplified['epsilon'] == account.epsilon() < found.worst_case.epsilon()
  assert [amplified[name] for name in ('sampling', 'num_bins')] == ['bins', 12]
  assert amplified['holds'] and amplified['reason'] is None
  assert {f'amplified: {s}' for s in account.assumptions} < set(found.assumptions)
  assert json.loads(json.dumps(amplified, allow_nan=False)) == amplified
  with pytest.raises(ValueError, match='has no public report: least separation and most'):
    found.publishable()


def test_drop_outs_are_free_and_a_short_run_counts_a_round_of_each_bin():
  rng = np.random.default_rng(0)
  rounds = [members[rng.random(len(members)) < 0.7] for members in cohorts()]
  assert contradictions(rounds) is None
  for num_rounds in (1, 5, 11, 12, 17):
    short = stated([ids[::2] for ids in rounds[:num_rounds]]).drawn
    assert short.participation == dpftrl.SecretBins(max(num_rounds, 12), 12) and short.holds


def test_bins_of_a_key_are_uniform_and_kept():
  key, ids = bytes(range(32)), np.arange(60_000)
  bins = SCHEME.bins(ids, key)
  assert stats.chisquare(np.bincount(bins, minlength=12)).pvalue > 1e-3
  np.testing.assert_array_equal(SCHEME.bins(ids[:9].astype(str), key), bins[:9])
  alike = int((bins == SCHEME.bins(ids, key[:31])).sum())  # Two keys agree by chance alone.
  assert stats.binomtest(alike, ids.size, 1 / 12).pvalue > 1e-3
  for wrong in (b'short', 'k' * 32, None):
    with pytest.raises(ValueError, match='^key must have 16 to 64 bytes$'):
      SCHEME.bins(ids, wrong)
  for wrong in ('12', [1.0], [True], [None], [b'7']):
    with pytest.raises(ValueError, match='^device_ids must be text or whole numbers$'):
      SCHEME.bins(wrong, key)


def test_a_device_in_two_bins_contradicts_them():
  rounds = cohorts()
  assert 7 not in rounds[20]
  rounds[20] = np.append(rounds[20], 7)
  found = stated(rounds)
  assert 'in another bin' in found.drawn.reason and not found.drawn.holds
  assert found.drawn.guarantee.epsilon() == np.inf
  assert any('CONTRADICTS' in sentence for sentence in found.assumptions)


def test_the_page_says_what_bins_are(tmp_path):
  setting = privacy.Setting(run='', command='')
  for name, rounds in (('kept', cohorts()), ('broken', cohorts()[:12] + cohorts()[1:3])):
    found = stated(rounds)
    path = tmp_path / f'{name}.html'
    privacy.write_report(path, found, setting=setting)
    text = path.read_text()
    assert '12 secret bins' in text and 'every device' in text
    assert ('The log contradicts' in text) == (name == 'broken')


def test_any_loop_runs_with_bins(tmp_path):
  """A round of no devices counts, none fails, and the folder proves the figure."""
  options = dict(template=np.zeros(3), noise_multiplier=4.0, clip_norm=1.0, report_goal=4)
  scheme = dpftrl.SecretBins(6, 3)
  with dpftrl.PrivateAggregator(
    BLT, folder=tmp_path, participation=scheme, **options
  ) as aggregator:
    for t in range(6):
      ids = [[1, 4], [], [2]][t % 3]
      if t > 2:  # Devices keep the bins of their first rounds.
        assert aggregator.admissible([1, 2, 4]).tolist() == ids
        with pytest.raises(ValueError, match=r'1 may not .*1 by (bin|max_participations)'):
          with aggregator.round([[2], [2], [4]][t % 3]):
            pass
      with aggregator.round(ids) as round_:
        for _ in ids:
          round_.add(np.full(3, 0.1))
    account = dpftrl.account(BLT, scheme, noise_multiplier=4.0, delta=1e-6)
    assert aggregator.privacy_loss(1e-6).epsilon() == account.epsilon()
    with pytest.raises(ValueError, match='at_least is refused'):
      aggregator.round([1], at_least=1)
    with pytest.raises(dpftrl.BudgetSpentError):
      with aggregator.round([1]):
        pass
  stated_there = replays.replay(opened_runs.open_run(tmp_path), delta=1e-6)
  assert stated_there.drawn.participation == scheme and stated_there.drawn.holds


def test_bins_are_a_scheme_in_a_file():
  document = registry.to_json(SCHEME)
  assert document == {'kind': 'bins', 'num_rounds': 60, 'num_bins': 12}
  assert registry.from_json(document) == SCHEME


@pytest.mark.parametrize(
  'options, words',
  [({'group_size': 2}, 'bounds no group'), ({'adjacency': 'replace_one'}, 'no bound is known')],
)
def test_what_is_not_bounded_is_refused(options, words):
  with pytest.raises(ValueError, match=words):
    stated(cohorts(), **options)


def test_runs_that_share_bins_do_not_compose():
  run = opened_runs.RecordedRun.of(
    drawn.log_of(cohorts()), BLT, noise_multiplier=4.0, participation=SCHEME
  )
  with pytest.raises(ValueError, match='sampling is for one run'):
    replays.replay([run, run], delta=1e-6)


@pytest.mark.parametrize('given', ['units', 'declared'])
def test_a_log_of_secret_bins_has_no_public_report_whatever_is_claimed(given, tmp_path):
  """A table of units, or declared limits, take the place of the draws in what is claimed."""
  bins = dpftrl.SecretBins(12, 3)
  claim = dpftrl.Claim(strategy=dpftrl.Identity(), noise_multiplier=4.0, participation=bins)
  path = tmp_path / 'participation.parquet'
  with dpftrl.LogWriter(path, claim) as log:
    for t in range(12):
      log.append(t, ['abc'[t % 3]], 86400)
  claim.save(tmp_path)
  table = tmp_path / 'units.csv'
  table.write_text('device_id,unit_id,from_round\na,x,0\nb,x,0\nc,y,0\n')
  if given == 'units':
    statement = dpftrl.replay(dpftrl.open_run(tmp_path, units=table), delta=1e-6)
  else:
    run = dpftrl.open_run(path, tmp_path / 'strategy.json', declared_num_rounds=12)
    statement = dpftrl.replay(run, delta=1e-6)
  with pytest.raises(ValueError, match='has no public report: least separation and most'):
    statement.publishable()
  flags = [str(tmp_path), f'--units={table}']
  if given != 'units':
    flags = [f'--log={path}', f'--strategy={tmp_path}/strategy.json', '--declared_num_rounds=12']
  command = ['replay', *flags, '--delta=1e-6', f'--public_report={tmp_path}/page.html']
  with pytest.raises(SystemExit) as ended:
    main.main(command)
  assert ended.value.code == 2
  assert not (tmp_path / 'page.html').exists()
