"""Canaries take part beside the devices of a run, and change nothing for these."""

import dataclasses
import json
import shutil
import stat

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.claims import extra_coordinates
from fl_dpftrl.participation.accounting import arithmetics
from fl_dpftrl.prove.auditing import canary_records
from fl_dpftrl.run import observers
from fl_dpftrl.support.files import mark
from tests import made

SCHEMA = dpftrl.MinSep(num_rounds=12, min_sep=2, max_participations=3)
PLAIN = dict(participation=SCHEMA, delta=1e-6, template=np.zeros(9, np.float32))
ONES = np.full(9, 0.1, np.float32)


def opened(folder, number=8, norm=1.0, **options):
  return made.aggregator(folder, **PLAIN | dict(canaries=dpftrl.Canaries(number, norm)) | options)


def test_directions_are_orthonormal_and_coins_and_files_secret(tmp_path):
  opened(tmp_path / 'run').close()
  run = opened(tmp_path / 'run')
  run._records.coins[:] = True  # All send their updates then.
  updates = np.array([*run._records.updates(np.arange(8), 1.0)])
  np.testing.assert_allclose(updates @ updates.T, np.eye(8), atol=1e-6)
  assert updates.shape == (8, 9) and (updates == 0.0).all(axis=0).sum() == 1
  folder = tmp_path / 'run' / 'canaries'
  assert stat.S_IMODE((folder / 'secret.json').stat().st_mode) == 0o600
  assert stat.S_IMODE(folder.stat().st_mode) == 0o700
  made.release(run, ['a', 'b'], ONES)
  assert stat.S_IMODE((folder / 'release-000000000.npy').stat().st_mode) == 0o600
  run.close()
  texts = [p.read_text() for p in (tmp_path / 'run').glob('*.json')]
  assert not any(json.loads((folder / 'secret.json').read_text())['seed'] in text for text in texts)


def test_coins_are_fair_and_differ_from_run_to_run(tmp_path):
  template = np.zeros(4096, np.float32)
  coins = []
  for i in range(3):
    with opened(tmp_path / str(i), 4096, template=template) as run:
      coins.append(run._records.coins)
  assert all(abs(c.mean() - 0.5) < 5 * 0.5 / 64 for c in coins)
  assert abs((coins[0] == coins[1]).mean() - 0.5) < 5 * 0.5 / 64
  assert abs((coins[1] == coins[2]).mean() - 0.5) < 5 * 0.5 / 64


@made.cases('norm', 0.5, 1.0, 1000.0)
def test_means_differ_by_the_updates_of_coins_and_by_nothing_else(norm, tmp_path):
  """The same seed of noise, with canaries and without: people's releases, charges and meters."""
  rounds, statuses, figures, claims = [], [], [], []
  for name in ('with', 'without'):
    canaries = dpftrl.Canaries(8, norm) if name == 'with' else None
    with made.aggregator(tmp_path / name, **PLAIN, canaries=canaries, noise_seed=3) as run:
      cohorts = [['a', 'b'], ['c', 'd'], ['a', 'b'], ['c', 'd']]
      rounds.append([made.release(run, cohort, ONES).mean for cohort in cohorts])
      statuses.append(dataclasses.replace(run.status(), disk_left_bytes=0))
      claims.append(run.claim.guarantee(run.claim.participation, 1e-6))
      figures.append((run.max_rounds, run.claim.arithmetic))
      if name == 'with':
        records = run._records
        taken = [run.claim.canaries.numbers(t, SCHEMA) for t in range(4)]
  assert statuses[0] == statuses[1] and claims[0] == claims[1] and figures[0] == figures[1]
  for t, (one, other) in enumerate(zip(*rounds)):
    expected = min(1.0, 1.0 / norm) * sum(records.updates(taken[t], 1.0)) / 2
    np.testing.assert_allclose(one - other, expected, atol=1e-5)
  counts = [dpftrl.replay(tmp_path / name, delta=1e-6) for name in ('with', 'without')]
  for name in ('num_devices', 'num_participations', 'cohort_sizes', 'participations', 'observed'):
    assert counts[0].to_json()[name] == counts[1].to_json()[name], name
  assert counts[0].per_device == counts[1].per_device and counts[0].ids == counts[1].ids
  assert counts[0].to_json()['canaries'] == 8 and 'canaries' not in counts[1].to_json()


def test_canaries_are_charged_and_the_check_of_the_schema_has_them(tmp_path):
  with opened(tmp_path / 'run') as run:
    for t in range(12):
      made.release(run, [f'{t}-0', f'{t}-1'], ONES)
    log = run.guard.log
    ids = run.claim.canaries.ids(log.run, log.column(0).type).to_pylist()
    rounds = {i: [t for t in range(12) if i in log.column(t).to_pylist()] for i in ids}
  assert all(len(r) == 3 and SCHEMA.allows(np.array(r)) for r in rounds.values())
  statement = dpftrl.replay(tmp_path / 'run', delta=1e-6)
  assert statement.max_participations == 3 and statement.min_sep == 4  # Those of canaries.
  assert statement.num_devices == 24 and statement.counts[0].max_participations == 1
  assert statement.closest.device_id in ids
  assert statement.declared.holds
  # Canaries that broke a schema would be seen, although no person did.
  strict = dpftrl.open_run(
    tmp_path / 'run' / 'participation.parquet',
    made.BLT,
    declared_num_rounds=12,
    declared_min_sep=12,
  )
  broken = dpftrl.replay(strict, delta=1e-6)
  assert not broken.declared.holds and broken.violations.num_complied == 24


def test_canaries_stand_for_nobody(tmp_path):
  with opened(tmp_path / 'run', report_goal=3) as run:
    assert run.admissible(['a', 'b', 'c', 'd'], at_most=3).tolist() == ['a', 'b', 'c']
    with pytest.raises(ValueError, match='3 updates need as many devices, got 2'):
      with run.round(['a', 'b']):
        pass
    with (
      pytest.raises(ValueError, match='has 2 updates and needs 3'),
      run.round([*'abc']) as round_,
    ):
      round_.add(ONES)
      round_.add(ONES)
    assert round_.num_updates == 2
    with run.round(list('def')) as round_:
      assert round_.device_ids.tolist() == ['d', 'e', 'f']
      for _ in range(3):
        round_.add(ONES)
      with pytest.raises(ValueError, match='has 3 devices'):
        round_.add(ONES)
    assert (round_.num_updates, round_.clipped_count) == (3, 0)
  assert canary_records.released_rounds(tmp_path / 'run') == [1]


def test_counts_of_adaptive_clipping_and_metrics_are_of_devices_only(tmp_path):
  clip_norm = dpftrl.AdaptiveClipping(initial=1.0)
  measured = []
  for name, canaries in (('with', dpftrl.Canaries(8, norm=1000.0)), ('without', None)):
    options = dict(clip_norm=clip_norm, metrics={'loss': 1.0}, noise_seed=4)
    with made.aggregator(tmp_path / name, **PLAIN | options, canaries=canaries) as run:
      measured.append([made.release(run, cohort, ONES).metrics for cohort in ('ab', 'cd')])
  assert measured[0] == measured[1]


@made.cases('device', 'a', 7)
def test_no_device_passes_for_a_canary(device, tmp_path):
  with opened(tmp_path / 'run') as run:
    others = ['b', 'c'] if device == 'a' else [8, 9]
    name = run.claim.canaries.ids(run.guard.log.run, pa.array(others).type)[5].as_py()
    assert run.admissible([device, name, *others]).tolist() == [device, *others]
    turned_away = run.guard.check([device, name]).turned_away
    assert [each.reason for each in turned_away] == ['canary']
    assert 'has the name of a canary' in turned_away[0].sentence
    with (
      pytest.raises(ValueError, match='1 may not take part in round 0'),
      run.round([name, device]),
    ):
      pass
    made.release(run, [device, others[0]], ONES)
  assert dpftrl.replay(tmp_path / 'run', delta=1e-6).num_devices == 2


def test_another_run_has_other_canaries(tmp_path):
  """Two runs of one population: no canary of the one is a device of the other."""
  for name in ('one', 'other'):
    with opened(tmp_path / name) as run:
      made.release(run, ['a', 'b'], ONES)
  both = dpftrl.replay([tmp_path / 'one', tmp_path / 'other'], delta=1e-6)
  assert both.num_devices == 2 and both.most_over_runs == 2


def test_a_run_goes_on_with_its_coins_and_says_what_is_lost(tmp_path):
  folder = tmp_path / 'run'
  with opened(folder) as run:
    coins = run._records.coins.copy()
    made.release(run, ['a', 'b'], ONES)
  with opened(folder) as run:
    assert (run._records.coins == coins).all()
    made.release(run, ['c', 'd'], ONES)
  assert canary_records.released_rounds(folder) == [0, 1]
  with pytest.raises(ValueError, match='canaries'):
    opened(folder, 7)
  with pytest.raises(ValueError, match='is of another run: canaries'):
    opened(folder, canaries=None)
  secret = folder / 'canaries' / 'secret.json'
  content = secret.read_text()
  secret.write_text(content.replace('seed', 'deed'))
  with pytest.raises(mark.LostStateError, match='has the coins'):
    opened(folder)
  secret.unlink()
  with pytest.raises(mark.LostStateError, match='has the coins'):
    opened(folder)
  with pytest.raises(mark.LostStateError, match='has the coins'):
    dpftrl.audit_run(folder, delta=1e-6)
  secret.write_text(content)
  opened(folder).close()
  with opened(tmp_path / 'other'):
    pass
  secret.write_text((tmp_path / 'other' / 'canaries' / 'secret.json').read_text())
  with pytest.raises(ValueError, match='is of another run'):
    opened(folder)


def test_a_wrong_size_of_updates_is_named_and_locks_no_run_out(tmp_path):
  claim = dataclasses.replace(CLAIM, canaries=dpftrl.Canaries(16))
  for size in (20, 31, 9):
    options = dict(num_coordinates=size)
    if size < 16:
      with pytest.raises(ValueError, match='canaries=16 must be at most 8'):
        dpftrl.Run(tmp_path / 'run', claim, **options)
    else:
      dpftrl.Run(tmp_path / 'run', claim, **options).close()
  with dpftrl.Run(tmp_path / 'run', claim, num_coordinates=40) as run, run.round(['a']) as round_:
    assert all(update.shape == (40,) for update in round_.canary_updates())
    round_.released(noised_sum=np.zeros(40))
  with pytest.raises(ValueError, match='num_coordinates must be 40, as before, got 20'):
    dpftrl.Run(tmp_path / 'run', claim, num_coordinates=20)


def test_a_run_has_the_size_of_updates_that_its_claim_has(tmp_path):
  covered = dataclasses.replace(
    CLAIM,
    report_goal=2,
    private_metrics=extra_coordinates.PrivateMetrics({'loss': 1.0}),
    arithmetic=arithmetics.Arithmetic.covered(12),
  )
  with dpftrl.Run(tmp_path / 'run', covered) as run, run.round(['a']) as round_:
    round_.released(noised_sum=np.zeros(11))
  with pytest.raises(ValueError, match='num_coordinates must be 11, as the claim has it, got 12'):
    dpftrl.Run(tmp_path / 'run', covered, num_coordinates=12)


def test_rounds_that_are_reserved_have_their_canaries_and_evidence_verifies(tmp_path):
  with opened(tmp_path / 'run') as run:
    cohorts = [['a', 'b'], ['c', 'd'], ['e', 'f'], ['g', 'h']]
    for round_ in run.rounds(cohorts, reserve=3):
      with round_:
        for _ in round_.device_ids:
          round_.add(ONES)
    every = [run.guard.log.column(t).to_pylist() for t in range(4)]
  assert [len(cohort) for cohort in every] == [4, 4, 4, 4]
  assert canary_records.released_rounds(tmp_path / 'run') == [0, 1, 2, 3]
  dpftrl.write_evidence(tmp_path / 'evidence', tmp_path / 'run', delta=1e-6)
  verified = dpftrl.verify(tmp_path / 'evidence')
  assert verified.passed and verified.statement.num_devices == 8
  assert any('8 canaries are no devices' in text for text in verified.statement.assumptions)


def test_a_crash_between_product_and_release_loses_nothing(tmp_path, monkeypatch):
  """The round has failed, and its product with the directions is right all the same."""
  from fl_dpftrl.run import released

  with opened(tmp_path / 'run') as run:
    with monkeypatch.context() as patch:

      def killed(*arguments):
        raise KeyboardInterrupt

      patch.setattr(released.ReleasedTable, 'put', killed)
      with pytest.raises(KeyboardInterrupt):
        made.release(run, ['a', 'b'], ONES)
  with opened(tmp_path / 'run') as run:
    assert run.next_round == 1
    made.release(run, ['c', 'd'], ONES)
  assert dpftrl.audit_run(tmp_path / 'run', delta=1e-6).num_released == 2


def test_what_cannot_be_stored_is_not_released(tmp_path, monkeypatch):
  with opened(tmp_path / 'run') as run:
    with monkeypatch.context() as patch:

      def full(*arguments):
        raise OSError('the disk is full')

      patch.setattr(canary_records.CanaryRecords, 'put', full)
      with pytest.raises(OSError, match='disk is full'):
        made.release(run, ['a', 'b'], ONES)
    made.release(run, ['c', 'd'], ONES)
  assert canary_records.released_rounds(tmp_path / 'run') == [1]
  audit = dpftrl.audit_run(tmp_path / 'run', delta=1e-6)
  assert (audit.num_rounds, audit.num_released) == (2, 1)


@made.cases(
  'options, words',
  ({'noise_multiplier': 0.0}, 'canaries need noise'),
  ({'canaries': dpftrl.Canaries(9)}, 'canaries=9 must be at most 8, the largest power of 2'),
  (
    {'participation': dpftrl.LossBudget(min_sep=2, max_participations=3)},
    'and a MinSep of devices',
  ),
  ({'participation': None}, 'and a MinSep of devices'),
)
def test_runs_that_cannot_charge_canaries_are_refused(options, words, tmp_path):
  with pytest.raises(ValueError, match=words):
    opened(tmp_path / 'run', **options)


CLAIM = made.claim(clip_norm=0.5, participation=SCHEMA, canaries=dpftrl.Canaries(8))


def test_a_loop_adds_the_updates_of_canaries_and_tells_the_noised_sum(tmp_path):
  released = []

  class Watching(observers.Observer):
    def released(self, run, round_index, measurements):
      released.append((round_index, measurements))

  options = dict(num_coordinates=9, observers=[Watching()])
  with dpftrl.Run(tmp_path / 'run', CLAIM, **options) as run:
    records, noise = run._records, np.arange(9.0)
    for t in range(4):
      with run.round([f'{t}-a', f'{t}-b'], at_least=2) as round_:
        assert round_.device_ids.tolist() == [f'{t}-a', f'{t}-b']
        updates = list(round_.canary_updates())
        turn = CLAIM.canaries.numbers(t, SCHEMA)
        assert len(updates) == records.coins[turn].sum()
        assert np.array_equal(updates, [*records.updates(turn, 0.5)])
        assert all(np.linalg.norm(update) == pytest.approx(0.5) for update in updates)
        with pytest.raises(ValueError, match="noised_sum, .* and the claim's canaries need each"):
          round_.released({'loss': 1.0})
        noised_sum = np.sum(updates, axis=0) + noise if updates else noise
        round_.released({'loss': 1.0}, noised_sum=noised_sum)
        with pytest.raises(ValueError, match=f'round {t} is not open'):
          round_.released(noised_sum=noise)
      expected = [row @ noised_sum / (2.0 * 0.5) for row in _directions(records)]
      np.testing.assert_allclose(records.releases([t], slice(None))[0], expected, atol=1e-5)
  assert released == [(t, {'loss': 1.0}) for t in range(4)]


def _directions(records):
  coins, records.coins = records.coins, np.ones(8, bool)
  rows = [*records.updates(np.arange(8), 1.0)]
  records.coins = coins
  return rows


@made.cases(
  'noised_sum, error',
  (np.zeros(8), ValueError),
  (np.zeros((9, 1)), ValueError),
  (np.full(9, np.nan), ValueError),
  (np.full(9, 1e300), ValueError),
  (np.ones(9, complex), ValueError),
  (np.zeros(9), OSError),
)
def test_a_loop_whose_sum_cannot_be_stored_has_released_nothing(
  noised_sum, error, tmp_path, monkeypatch
):
  from fl_dpftrl.support.files import durable

  def full(*arguments, **options):
    raise OSError('the disk is full')

  with dpftrl.Run(tmp_path / 'run', CLAIM, num_coordinates=9) as run:
    with run.round(['a']) as round_:
      monkeypatch.setattr(durable, 'write_durably', full if error is OSError else None)
      with pytest.raises(error, match='disk is full|noised_sum must be 9 finite numbers'):
        round_.released(noised_sum=noised_sum)
      assert 'failed' in repr(round_)
    monkeypatch.undo()
    with run.round(['b']) as round_:
      round_.released(noised_sum=np.ones(9))
  assert canary_records.released_rounds(tmp_path / 'run') == [1]


@made.cases(
  'change, num_coordinates, words',
  ({}, None, 'num_coordinates, of an update, and .* need each other'),
  ({'canaries': None}, 9, 'num_coordinates, of an update, and .* need each other'),
  ({}, 0, 'num_coordinates must be at least 1'),
  ({}, 7, 'canaries=8 must be at most 4'),
  ({'clip_norm': None}, 9, 'clip_norm of a claim with canaries must be a number'),
  ({'clip_norm': dpftrl.AdaptiveClipping(initial=1.0), 'report_goal': 2}, 9, 'clip_norm of a'),
)
def test_a_run_that_cannot_add_canaries_is_refused(change, num_coordinates, words, tmp_path):
  with pytest.raises(ValueError, match=words):
    dpftrl.Run(
      tmp_path / 'run', dataclasses.replace(CLAIM, **change), num_coordinates=num_coordinates
    )


def test_a_loop_does_not_go_on_with_an_older_log(tmp_path):
  folder, older = tmp_path / 'run', tmp_path / 'older'
  for t in range(3):
    with dpftrl.Run(folder, CLAIM, num_coordinates=9) as run:
      with run.round(['ab'[t % 2]]) as round_:
        if t == 2:  # The rounds before it have no releases.
          round_.released(noised_sum=np.ones(9))
    if t == 1:
      shutil.copytree(folder, older)
  for name in ('.parquet', '.ledger', '.mark'):
    shutil.copyfile(older / f'participation{name}', folder / f'participation{name}')
  with pytest.raises(mark.LostStateError, match='canaries the release of round 2'):
    dpftrl.Run(folder, CLAIM, num_coordinates=9)


def test_a_run_without_canaries_has_no_updates_of_theirs(tmp_path):
  with dpftrl.Run(tmp_path / 'run', dataclasses.replace(CLAIM, canaries=None)) as run:
    with run.round(['a']) as round_:
      assert [*round_.canary_updates()] == []
      with pytest.raises(ValueError, match='need each other'):
        round_.released(noised_sum=np.zeros(9))
      round_.released()


def test_a_claim_of_canaries_has_no_population():
  with pytest.raises(
    ValueError, match='canaries need noise, and a MinSep of devices without a population'
  ):
    dataclasses.replace(CLAIM, population=32 * 'a')


@made.cases('number, norm', (0, 1.0), (1.5, 1.0), (4, 0.0), (4, float('nan')))
def test_bad_canaries_are_refused(number, norm):
  with pytest.raises(ValueError, match='canaries'):
    dpftrl.Canaries(number, norm)


@made.cases(
  'schema, period',
  (dpftrl.MinSep(14, 1, 1), 14),
  (dpftrl.MinSep(14, 14, 1), 14),
  (dpftrl.MinSep(2052, 342, 6), 342),
  (dpftrl.MinSep(100, 1), 1),
  (dpftrl.MinSep(100, 30, 4), 30),
  (dpftrl.MinSep(None, 5, 3), 5),
)
def test_turns_are_spread_over_the_rounds(schema, period):
  canaries = dpftrl.Canaries(1000)
  assert [canaries.numbers(t, schema)[0] for t in (0, period - 1, period)] == [0, period - 1, 0]
  assert sorted(np.concatenate([canaries.numbers(t, schema) for t in range(period)])) == list(
    range(1000)
  )


def test_spellings_are_those_of_people_beside_canaries_too(tmp_path):
  """What is admitted beside canaries can be replayed: they make no id other than a number."""
  options = {'participation': dpftrl.MinSep(9), 'canaries': dpftrl.Canaries(2)}
  with made.aggregator(tmp_path / 'run', **options) as run:
    made.release(run, ['1', '2'])
    with pytest.raises(ValueError, match='1 by spelling'), run.round(['3', '1e5']):
      pass
    made.release(run, ['3', '4'])
    assert run.statement(1e-6).num_devices == 4


def test_a_run_with_canaries_is_replayed_with_another_and_by_person(tmp_path):
  with dpftrl.Run(tmp_path / 'run', CLAIM, num_coordinates=9) as run:
    for t in range(6):
      with run.round([f'{t}-a', f'{t}-b']) as round_:
        round_.released(noised_sum=np.zeros(9))
  with dpftrl.Run(tmp_path / 'other', made.claim(clip_norm=0.5)) as run, run.round(['0-a']):
    pass
  both = dpftrl.replay([tmp_path / 'run', tmp_path / 'other'], delta=1e-6)
  one = dpftrl.replay(tmp_path / 'run', delta=1e-6)
  assert both.num_devices == one.num_devices == 12 and both.declared is None
  assert both.worst_case.epsilon() > one.worst_case.epsilon()
  rows = ''.join(f'{t}-{name},{t},0\n' for t in range(6) for name in 'ab')
  (tmp_path / 'owners.csv').write_text(f'device_id,unit_id,from_round\n{rows}')
  people = dpftrl.replay(
    dpftrl.open_run(tmp_path / 'run', units=tmp_path / 'owners.csv'), delta=1e-6
  )
  assert people.num_devices == 6 and people.declared is None
  assert any('8 canaries are no devices: numbers of' in text for text in people.assumptions)


def test_canaries_of_a_log_that_names_no_run_are_not_taken_for_devices(tmp_path):
  with opened(tmp_path / 'run') as run:
    made.release(run, ['a', 'b'], ONES)
  path, claim = tmp_path / 'run' / 'participation.parquet', tmp_path / 'run' / 'claim.json'
  table = pq.read_table(path).replace_schema_metadata({b'num_rounds': b'1'})
  for each in (tmp_path / 'run').glob('participation.*'):
    each.unlink()
  pq.write_table(table, path)
  facts = json.loads(claim.read_text())
  del facts['run']
  claim.write_text(json.dumps(facts))
  for read in (dpftrl.replay, dpftrl.audit_run):
    with pytest.raises(ValueError, match='names no run, by which its canaries are told from dev'):
      read(tmp_path / 'run', delta=1e-6)


def test_the_closest_pair_of_a_canary_is_named_as_one(tmp_path):
  with opened(tmp_path / 'run') as run:
    for t in range(6):
      made.release(run, [2 * t, 2 * t + 1], ONES)
  witness = dpftrl.replay(tmp_path / 'run', delta=1e-6).closest
  assert witness.device_id in [f'canary-{j}' for j in range(8)]
