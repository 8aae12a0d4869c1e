"""Audits of runs by canaries: right runs pass, and each fault is found or shown."""

import dataclasses
import json

import numpy as np
import pytest
import scipy

import fl_dpftrl as dpftrl
from fl_dpftrl.prove.auditing import canary_records
from tests import made
from tests.commands import lines
from tests.prove.auditing import canary_runs
from tests.prove.auditing.canary_runs import DELTA, FAULTS, GOAL, ROUNDS, SIZE


def audited(folder, fault, **options):
  """Returns the audit of a run with a fault."""
  change, norm = FAULTS[fault]
  with change():
    return canary_runs.audited(folder, norm, **options)


@canary_runs.every_kind
def test_a_right_run_passes_and_what_failed_is_left_out(kind, number, tmp_path):
  folder = tmp_path / 'run'
  audit = canary_runs.audited(folder, number=number, kind=kind, skipped=(3, 8))
  assert audit.passed and not audit.failed
  assert (audit.num_rounds, audit.num_released) == (ROUNDS, ROUNDS - 2)
  assert audit.num_canaries == number and audit.num_guesses == number // 10
  assert audit.guarantee.mu == pytest.approx(0.9157, abs=1e-4)
  assert any('2 of 14 rounds have no release here' in hint for hint in audit.hints)
  assert not any('were added' in hint for hint in audit.hints)
  assert 0.0 <= audit.sure_mu <= audit.lower_mu < audit.guarantee.mu
  assert 0.95 < audit.noise_limit < 1.1 and audit.energy > 1e-3
  assert abs(audit.signal - 1.0) < 5.0 * audit.signal_error
  # Canaries are of the log and the claim, and are no people.
  statement = dpftrl.replay(folder, delta=DELTA)
  assert statement.num_devices == statement.num_participations == GOAL * ROUNDS
  assert statement.declared.holds and set(statement.to_json()['cohort_sizes'].values()) == {GOAL}
  rows = sum(table.num_rows for table in dpftrl.open_run(folder).log.tables())
  assert rows == GOAL * ROUNDS + number
  dpftrl.write_evidence(tmp_path / 'evidence', folder, delta=DELTA)
  assert dpftrl.verify(tmp_path / 'evidence').passed


@canary_runs.every_kind
def test_noise_that_is_too_small_is_found_in_every_kind_of_run(kind, number, tmp_path):
  with canary_runs.smaller_noise(0.8):
    audit = canary_runs.audited(tmp_path / 'run', number=number, kind=kind)
  assert [check.name for check in audit.failed] == ['energy'] and audit.noise_limit < 0.9
  assert lines.run(['audit', tmp_path / 'run', '--delta=1e-6']).returncode == 4
  lines.run(['replay', tmp_path / 'run', '--delta=1e-6', f'--report={tmp_path}/page.html'])
  assert 'less noise than claimed' in (tmp_path / 'page.html').read_text()


@canary_runs.every_kind
@made.cases('is_stored', False, True)
def test_a_killed_run_goes_on_and_is_audited(kind, number, is_stored, tmp_path):
  """A round that is killed before its products are stored is left out, and one after it is not."""

  def killed(put, records, t, *arguments):
    if t != 2 or is_stored:
      put(records, t, *arguments)
    if t == 2:
      raise KeyboardInterrupt

  options = dict(kind=kind, number=number)
  with canary_runs.changed(canary_records.CanaryRecords, 'put', killed):
    with pytest.raises(KeyboardInterrupt):
      canary_runs.audited(tmp_path / 'run', **options)
  audit = canary_runs.audited(tmp_path / 'run', **options)
  assert audit.passed and audit.num_rounds == ROUNDS
  assert audit.num_released == ROUNDS - (not is_stored)
  assert abs(audit.signal - 1.0) < 5.0 * audit.signal_error


def test_canaries_that_are_not_added_show(tmp_path):
  audit = canary_runs.audited(tmp_path / 'run', kind=canary_runs.any_loop, are_added=False)
  assert audit.passed and abs(audit.signal) < 4.0 * audit.signal_error < 1.0
  assert 'as if no canaries were added' in audit.hints[-1]


def test_energy_is_that_of_releases_in_units_of_their_fresh_noise(tmp_path):
  """A row less what rows on record tell of it, by least squares, over what no earlier row tells."""
  canary_runs.run(tmp_path / 'run', dpftrl.Canaries(1), skipped=(2, 3, 12))
  rounds = canary_records.released_rounds(tmp_path / 'run')
  assert rounds == [t for t in range(ROUNDS) if t not in (2, 3, 12)]
  opened = dpftrl.open_run(tmp_path / 'run')
  identity = opened.log.metadata['fl_dpftrl.run']
  records = canary_records.CanaryRecords(tmp_path / 'run', opened.claim, identity)
  released = records.releases(rounds, slice(None))
  noising, energy = made.BLT.noising_matrix(ROUNDS), 0.0
  covariance = noising @ noising.T
  for place, t in enumerate(rounds):
    earlier, before = rounds[:place], covariance[:t, t]
    weights = np.linalg.solve(covariance[np.ix_(earlier, earlier)], covariance[earlier, t])
    fresh = covariance[t, t] - before @ np.linalg.solve(covariance[:t, :t], before)
    energy += np.square(released[place] - weights @ released[:place]).sum() / fresh
  limit = dpftrl.audit_run(tmp_path / 'run', delta=DELTA).noise_limit
  degrees = len(rounds) * SIZE
  assert limit**2 * scipy.stats.chi2.ppf(0.05, degrees) == pytest.approx(energy, rel=1e-5)
  with_zeros = np.zeros((ROUNDS, SIZE))
  with_zeros[rounds] = released
  wrong = np.square(made.BLT.strategy_matrix(ROUNDS) @ with_zeros).sum(axis=1)
  assert scipy.stats.chi2.cdf(wrong, SIZE).min() < 1e-20  # Zeros in place of rounds that failed.


@made.cases('lost', [5], [3, 6, 9])
def test_a_release_that_was_used_and_is_not_on_record_is_no_lack_of_noise(lost, tmp_path):
  """Updates follow the last release, which a loop lost between its model and `released`."""
  claim = made.claim(
    noise_multiplier=2.0,
    clip_norm=1.0,
    participation=canary_runs.SCHEMA,
    canaries=dpftrl.Canaries(64),
  )
  rows, size, last = made.BLT.noising_matrix(ROUNDS), 1 << 14, 0.0
  rows = rows @ np.random.default_rng(7).normal(size=(rows.shape[1], size))
  with dpftrl.Run(tmp_path / 'run', claim, num_coordinates=size) as run:
    for t in range(ROUNDS):
      with run.round([str(t)]) as round_:
        noised_sum = 0.4 * last + sum(round_.canary_updates()) + 2.0 * rows[t]
        if t not in lost:
          round_.released(noised_sum=noised_sum)
        last = 2.0 * rows[t]
  audit = dpftrl.audit_run(tmp_path / 'run', delta=DELTA)
  assert audit.passed and audit.energy > 0.01 and audit.num_released == ROUNDS - len(lost)


@made.cases(
  'fault, failed, hints',
  ('noise 10 % too small', {'energy'}, 0),
  ('noise 20 % too small', {'energy'}, 0),
  ('clip not applied', set(), 2),
  ('a row used twice', set(), 1),
  ('independent noise', set(), 1),
)
def test_faults_are_found_or_shown(fault, failed, hints, tmp_path):
  audit = audited(tmp_path / 'run', fault)
  assert {check.name for check in audit.failed} == failed
  assert len(audit.hints) >= hints
  assert (audit.lower_mu > audit.guarantee.mu) == (fault == 'clip not applied')
  if fault == 'clip not applied':
    assert audit.signal > 3.0 and 'clip norm' in audit.hints[1]
    assert 'with more canaries' in audit.hints[0]
  elif hints:
    assert 'audit --strategy' in audit.hints[-1]


@pytest.mark.slow
def test_runs_without_clipping_fail_by_guesses_of_more_canaries(tmp_path):
  with canary_runs.no_clipping():
    template = np.zeros(4096, np.float32)
    with dpftrl.PrivateAggregator(
      made.BLT,
      **canary_runs.PLAIN | {'template': template, 'folder': tmp_path / 'run'},
      participation=canary_runs.SCHEMA,
      canaries=dpftrl.Canaries(4096, norm=10.0),
    ) as aggregator:
      for t in range(ROUNDS):
        made.release(aggregator, [f'{t}-{i}' for i in range(4)], template)
  audit = dpftrl.audit_run(tmp_path / 'run', delta=DELTA)
  assert audit.sure_mu > audit.guarantee.mu
  assert [check.name for check in audit.failed] == ['guesses']


@pytest.mark.slow
@made.cases('kind', canary_runs.private, canary_runs.any_loop)
def test_40_right_runs_are_below_their_claim(kind, tmp_path):
  audits = [canary_runs.audited(tmp_path / f'{i}', seed=i, kind=kind) for i in range(40)]
  assert all(audit.passed for audit in audits)
  assert sum(audit.lower_mu > audit.guarantee.mu for audit in audits) == 0
  assert 0.3 < np.mean([audit.lower_mu for audit in audits]) < 0.6


@made.cases(
  'kind, number',
  pytest.param(canary_runs.private, SIZE, id='aggregator'),
  pytest.param(canary_runs.trained, 256, id='train', marks=[pytest.mark.tff, pytest.mark.slow]),
)
def test_adaptive_clipping_and_metrics_leave_the_scale_of_the_noise(kind, number, tmp_path):
  """Counts and metrics raise the noise of the updates, which the audit must know."""
  clip_norm = dpftrl.AdaptiveClipping(initial=0.5, clipped_count_stddev=3.0)
  options = dict(clip_norm=clip_norm, metrics={'loss': 2.0}, metrics_stddev=4.0)
  audit = canary_runs.audited(tmp_path / 'run', number=number, kind=kind, **options)
  assert audit.passed and 0.97 < audit.noise_limit < 1.08
  assert abs(audit.signal - 1.0) < 5.0 * audit.signal_error


@made.cases('ids_are_text', True, False)
def test_the_command_prints_and_exits_by_what_it_found(ids_are_text, tmp_path):
  folder = tmp_path / 'run'
  with canary_runs.smaller_noise(0.7 if ids_are_text else 1.0):
    canary_runs.run(folder, dpftrl.Canaries(SIZE))
  done = lines.run(['audit', str(folder), '--delta=1e-6', '--json'])
  result = json.loads(done.stdout)
  assert (done.returncode, result['passed']) == ((4, False) if ids_are_text else (0, True))
  assert {'stated_epsilon', 'lower_epsilon', 'noise_limit', 'signal', 'variance'} <= result.keys()
  text = lines.run(['audit', str(folder), '--delta=1e-6'])
  assert 'lower_epsilon' in text.stdout and text.returncode == done.returncode
  assert ('failed checks: energy' in text.stderr) == ids_are_text


def test_limits_are_rounded_to_the_side_on_which_they_hold(tmp_path):
  audit = canary_runs.audited(tmp_path / 'run')
  said = dataclasses.replace(audit, lower_mu=0.99999, noise_limit=1.00001).summary
  assert 'μ at least 0.9999 of' in said['lower_epsilon'] and 'at most 1.001 of' in said['noise']


def test_a_run_that_guarantees_nothing_states_no_epsilon(tmp_path):
  audit = canary_runs.audited(tmp_path / 'run', noise_seed=3)
  assert audit.to_json()['stated_epsilon'] is None and audit.to_json()['void_reason']
  assert audit.summary['stated_epsilon'].startswith('none: the noise seed')
  done = lines.run(['audit', str(tmp_path / 'run'), '--delta=1e-6'])
  assert done.returncode == 4 and 'the run is void: the noise seed' in done.stderr
  assert 'verdict         the run is void' in done.stdout
  lines.run(['replay', tmp_path / 'run', '--delta=1e-6', f'--report={tmp_path}/page.html'])
  page = (tmp_path / 'page.html').read_text()
  assert 'What canaries show' in page and 'rounds so far, proven' not in page


def test_a_damaged_release_is_named(tmp_path):
  canary_runs.run(tmp_path / 'run', dpftrl.Canaries(SIZE))
  path = tmp_path / 'run' / 'canaries' / 'release-000000003.npy'
  path.write_bytes(path.read_bytes()[:700])
  with pytest.raises(ValueError, match=r'release-000000003\.npy: is damaged'):
    dpftrl.audit_run(tmp_path / 'run', delta=DELTA)
  path.unlink()
  (path.parent / 'release-000000004.npy').rename(path)
  assert dpftrl.audit_run(tmp_path / 'run', delta=DELTA).num_released == ROUNDS - 1


def test_what_is_no_release_is_left_alone(tmp_path):
  canary_runs.run(tmp_path / 'run', dpftrl.Canaries(SIZE))
  (tmp_path / 'run' / 'canaries' / 'release-00000000x.npy').touch()
  assert dpftrl.audit_run(tmp_path / 'run', delta=DELTA).num_released == ROUNDS


def test_a_report_without_both_kinds_of_coins_has_no_signal(tmp_path):
  canary_runs.run(tmp_path / 'run', dpftrl.Canaries(1))
  lines.run(['replay', tmp_path / 'run', '--delta=1e-6', f'--report={tmp_path}/page.html'])
  page = (tmp_path / 'page.html').read_text()
  assert 'What canaries show' in page and 'signal of a canary' not in page


def test_other_folders_are_refused(tmp_path):
  with pytest.raises(ValueError, match='canaries must be a Canaries, got 64'):
    made.aggregator(tmp_path / 'number', canaries=64)
  with made.aggregator(tmp_path / 'plain') as run:
    made.release(run, ['a', 'b'])
  with pytest.raises(ValueError, match='without canaries'):
    dpftrl.audit_run(tmp_path / 'plain', delta=DELTA)
  made.aggregator(
    tmp_path / 'new', canaries=dpftrl.Canaries(2), participation=dpftrl.MinSep(9)
  ).close()
  with pytest.raises(ValueError, match='has no round yet'):
    dpftrl.audit_run(tmp_path / 'new', delta=DELTA)


def test_the_report_has_one_box_and_a_public_one_none(tmp_path):
  from fl_dpftrl.prove.reports import privacy, settings

  audit = audited(tmp_path / 'run', 'noise 20 % too small')
  statement = dpftrl.replay(tmp_path / 'run', delta=DELTA)
  setting = settings.Setting(canaries=audit)
  page = privacy.report(statement, setting)
  assert page.count('What canaries show') == 1 and 'less noise than claimed' in page
  assert 'What canaries show' not in privacy.report(statement.publishable(), setting)
