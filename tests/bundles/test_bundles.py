"""Bundles that have logs: what is in them, and what each check finds."""

import hashlib
import json
import shutil

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.bundles import manifest as manifest_lib
from fl_dpftrl.logs import keys
from fl_dpftrl.replaying import replay as replay_lib
from tests.bundles.bundles import NUM_ROUNDS, ROWS, STRATEGY, failed, forge, write_log
from tests.commands import lines

OTHER = dpftrl.BLT([0.99, 0.7], [0.1, 0.2])


def test_a_bundle_fits_anywhere(written, bundle):
  digest = hashlib.sha256((bundle / manifest_lib.NAME).read_bytes()).hexdigest()
  result = dpftrl.verify(bundle, digest=digest.upper())
  assert result.passed and result.compared
  assert result.digest == digest == written.bundle.digest
  assert (bundle / manifest_lib.SEAL).read_text() == f'{digest}  manifest.json\n'
  assert result.other_releases == ()
  assert [check.name for check in result.checks] == [
    'manifest',
    'files',
    'strategy of run 1',
    'rounds of run 1',
    'statement',
    'guarantee',
  ]


def test_its_statement_is_that_of_replay_and_only_its_owner_reads_it(written):
  run = dpftrl.open_run(
    written.folder / 'log.parquet', STRATEGY, declared_num_rounds=30, declared_min_sep=6
  )
  expected = replay_lib.replay(run, deltas=[1e-6, 1e-9]).to_json()
  folder = written.folder / 'bundle'
  stored = json.loads((folder / manifest_lib.STATEMENT).read_text())
  assert stored.pop('log')[0]['sha256'] == expected.pop('log')[0]['sha256']
  assert stored == json.loads(json.dumps(expected))
  assert written.bundle.statement.worst_case.epsilon() == expected['worst_case']['epsilon']
  assert folder.stat().st_mode & 0o777 == 0o700
  assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


@pytest.mark.parametrize('t', [0, 11, 23])
def test_a_round_that_was_removed_is_named(bundle, t):
  write_log(bundle / 'log-1-1.parquet', [row for row in ROWS if row[0] != t])
  assert f'round {t} is the first' in failed(bundle)['rounds of run 1']
  forge(bundle)
  wrong = failed(bundle)
  assert wrong.keys() == {'rounds of run 1', 'statement', 'guarantee'}
  assert f'round {t} is the first' in wrong['rounds of run 1']


def test_a_device_that_was_replaced_by_another_is_found_by_the_round(bundle):
  rows = [(t, 'phone 7b' if (t, device) == (13, 'phone 7') else device) for t, device in ROWS]
  write_log(bundle / 'log-1-1.parquet', rows)
  forge(bundle)
  assert 'round 13 is the first' in failed(bundle)['rounds of run 1']


def test_a_log_of_fewer_rounds_is_found(bundle):
  rows = [row for row in ROWS if row[0] < 23]
  write_log(bundle / 'log-1-1.parquet', rows, num_rounds=23)
  forge(bundle)
  wrong = failed(bundle)
  assert 'more rounds than 23' in wrong['rounds of run 1']
  assert 'num_rounds is 24, but the log and the strategy give 23' in wrong['statement']
  forge(bundle, lambda manifest: manifest['runs'][0].update(num_rounds=24))
  assert 'num_rounds is 23, not 24' in failed(bundle)['rounds of run 1']


def test_another_strategy_is_found(bundle):
  (bundle / 'strategy-1.json').unlink()
  schema = dpftrl.MinSep(num_rounds=NUM_ROUNDS, min_sep=6, max_participations=4)
  dpftrl.save_strategy(bundle / 'strategy-1.json', OTHER, schema=schema)
  forge(bundle)
  wrong = failed(bundle)
  assert wrong.keys() == {'statement', 'guarantee'}
  assert wrong['statement'].startswith('strategy.sha256 is')
  assert 'another strategy' in wrong['guarantee']


@pytest.mark.parametrize('name, value', [('noise_multiplier', 2.0), ('num_rounds', 24)])
def test_what_the_log_states_is_not_in_the_manifest(bundle, name, value):
  manifest = json.loads((bundle / manifest_lib.NAME).read_text())
  assert manifest['runs'][0][name] is None
  forge(bundle, lambda manifest: manifest['runs'][0].update({name: value}))
  assert failed(bundle)['rounds of run 1'] == f'{name} must be null, as the log states it'


def test_arguments_that_the_log_does_not_state_are_in_the_manifest(tmp_path):
  path = tmp_path / 'log.csv'
  path.write_text('round,device_id\n' + ''.join(f'{t},{i}\n' for t, i in ROWS))
  run = dpftrl.open_run(path, STRATEGY, noise_multiplier=2.0, num_rounds=NUM_ROUNDS)
  dpftrl.write_bundle(tmp_path / 'bundle', run, deltas=1e-6)
  (entry,) = json.loads((tmp_path / 'bundle' / manifest_lib.NAME).read_text())['runs']
  assert (entry['noise_multiplier'], entry['num_rounds']) == (2.0, NUM_ROUNDS)
  assert not failed(tmp_path / 'bundle')
  forge(tmp_path / 'bundle', lambda manifest: manifest['runs'][0].update(num_rounds=None))
  assert failed(tmp_path / 'bundle')


def test_a_digest_from_elsewhere_finds_a_forgery_of_everything(bundle, written, tmp_path):
  shutil.rmtree(bundle)
  run = dpftrl.open_run(write_log(tmp_path / 'forged.parquet', ROWS[1:]), STRATEGY)
  dpftrl.write_bundle(bundle, run, deltas=1e-6)
  assert not failed(bundle)
  assert failed(bundle, digest=written.bundle.digest).keys() == {'manifest', 'guarantee'}


def test_several_runs_with_a_family_of_arrays_and_text_logs(tmp_path):
  coefficients = np.tril(np.full((NUM_ROUNDS, 3), 0.3))
  coefficients[:, 0] = 1.0
  for name, devices in (('a', range(8)), ('b', range(4, 12))):
    rows = [f'{t + 1},{i}\n' for i in devices for t in range(i % 6, NUM_ROUNDS, 6)]
    (tmp_path / f'{name}.csv').write_text('step,user\n' + ''.join(rows))
  runs = [
    dpftrl.open_run(
      tmp_path / f'{name}.csv',
      strategy,
      noise_multiplier=3.0,
      columns='round=step,device_id=user',
      first_round=1,
    )
    for name, strategy in (('a', dpftrl.Banded(coefficients)), ('b', dpftrl.TreeOnline()))
  ]
  written = dpftrl.write_bundle(tmp_path / 'bundle', runs, deltas=1e-6, group_size=2)
  assert any(str(tmp_path) in sentence for sentence in written.statement.warnings)
  for path in (tmp_path / 'bundle').iterdir():
    assert str(tmp_path).encode() not in path.read_bytes()
  assert not failed(shutil.copytree(tmp_path / 'bundle', tmp_path / 'elsewhere'))
  assert len(list((tmp_path / 'bundle').glob('strategy-1.*.npz'))) == 1
  next((tmp_path / 'bundle').glob('*.npz')).write_bytes(b'')
  wrong = {'files', 'strategy of run 1', 'rounds of run 1', 'statement', 'guarantee'}
  assert failed(tmp_path / 'bundle').keys() == wrong


def test_a_void_run_fits_and_fails_its_guarantee(tmp_path):
  metadata = {keys.VOID_KEY: 'the noise seed was given'}
  path = write_log(tmp_path / 'log.parquet', metadata=metadata)
  run = dpftrl.open_run(path, STRATEGY, noise_multiplier=2.0)
  dpftrl.write_bundle(tmp_path / 'bundle', run, deltas=1e-6)
  wrong = failed(tmp_path / 'bundle')
  assert wrong.keys() == {'guarantee'} and 'noise seed' in wrong['guarantee']


@pytest.mark.slow
def test_logs_that_cannot_be_copied_are_refused(written, tmp_path):
  run = dpftrl.open_run(write_log(tmp_path / 'log.parquet'), STRATEGY)
  with dpftrl.LogWriter(tmp_path / 'open.parquet') as log:
    log.append(0, ['a'], timestamp=0)
    growing = dpftrl.open_run(tmp_path / 'open.parquet', STRATEGY, noise_multiplier=2.0)
    for folder, given, delta, message in (
      (written.folder / 'bundle', run, 1e-6, 'exists already'),
      (tmp_path / 'bundle', growing, 1e-6, 'close the log first'),
      (tmp_path / 'bundle', run, 2.0, 'delta'),
    ):
      with pytest.raises(ValueError, match=message):
        dpftrl.write_bundle(folder, given, deltas=delta)
  assert {path.name for path in tmp_path.iterdir()} == {
    'log.parquet',
    'open.parquet',
    'open.ledger',
  }


@pytest.mark.parametrize('name', ['log-1-1.parquet', 'manifest.json', 'more'])
def test_links_are_never_followed(bundle, name, tmp_path):
  target = tmp_path / 'elsewhere'
  target.write_bytes((bundle / name).read_bytes() if name != 'more' else b'')
  (bundle / name).unlink(missing_ok=True)
  (bundle / name).symlink_to(target)
  with pytest.raises(ValueError, match=f'{name}. is no regular file'):
    dpftrl.verify(bundle)


def test_what_is_no_bundle_is_refused(tmp_path):
  (tmp_path / 'folder').mkdir()  # As in the folder of a run.
  with pytest.raises(ValueError, match='is no bundle: manifest.json is missing'):
    dpftrl.verify(tmp_path)
  with pytest.raises(OSError):
    dpftrl.verify(tmp_path / 'missing')
  with pytest.raises(ValueError, match='digest=.* 64 hexadecimal'):
    dpftrl.verify(tmp_path, digest='f00')


def test_replay_writes_a_bundle_that_verify_checks(tmp_path):
  write_log(tmp_path / 'log.parquet')
  dpftrl.save_strategy(
    tmp_path / 'strategy.json', STRATEGY, schema=dpftrl.MinSep(num_rounds=NUM_ROUNDS, min_sep=6)
  )
  flags = ['replay', '--log=log.parquet', '--strategy=strategy.json', '--delta=1e-6']
  plain = lines.run([*flags, '--json'], cwd=tmp_path)
  done = lines.run([*flags, '--json', '--bundle=bundle'], cwd=tmp_path)
  assert (done.returncode, done.stdout) == (0, plain.stdout)
  digest = done.stderr.split()[-1]
  again = lines.run([*flags, '--bundle=bundle'], cwd=tmp_path)
  assert again.returncode == 2 and 'exists already' in again.stderr

  checked = lines.run(['verify', 'bundle'], cwd=tmp_path)
  assert (checked.returncode, checked.stderr) == (0, '')
  assert f'digest  {digest}' in checked.stdout and 'forged together' in checked.stdout
  assert checked.stdout.count('\nok ') == 5 and 'FAILED' not in checked.stdout
  result = json.loads(
    lines.run(['verify', 'bundle', '--json', f'--digest={digest}'], cwd=tmp_path).stdout
  )
  assert result['passed'] and result['compared'] and result['caveat'] is None

  other = lines.run(['verify', 'bundle', f'--digest={"0" * 64}'], cwd=tmp_path)
  assert other.returncode == 4 and 'FAILED  manifest' in other.stdout
  assert 'FAILED  guarantee' in other.stdout and 'ε' not in other.stdout
  assert other.stderr == 'fl-dpftrl verify: the bundle does not fit: manifest, guarantee\n'
