"""Public bundles: nothing confidential in them, and what the private bundle alone shows."""

import json

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import keys
from tests.bundles.bundles import (
  METADATA,
  NUM_ROUNDS,
  ROWS,
  SALT,
  STRATEGY,
  edit,
  failed,
  forge,
  write_log,
)
from tests.commands import lines


def test_it_fits_and_says_on_what_its_figures_rest(written):
  bundle, public = written.folder / 'bundle', written.folder / 'public'
  assert written.public.salt == SALT
  result = dpftrl.verify(public, digest=written.public.digest)
  assert result.passed and result.compared
  assert (
    'if n = 24, b = 6, k = 4, noise multiplier 2 are those of the run' in result.checks[-1].detail
  )
  assert 'asserts n, b and k' in result.to_json()['caveat']
  compared = dpftrl.verify(public, digest=written.public.digest, private=bundle, salt=SALT.upper())
  assert compared.passed and 'asserts' not in compared.to_json()['caveat']
  assert [check.name for check in compared.checks] == [
    'manifest',
    'files',
    'strategy of run 1',
    'commitments of run 1',
    'statement',
    'private bundle',
    'guarantee',
  ]


def test_nothing_confidential_is_in_it(written):
  bundle, public = written.folder / 'bundle', written.folder / 'public'
  names = 'commitments-1.txt manifest.json manifest.sha256 statement.json strategy-1.json'
  assert sorted(path.name for path in public.iterdir()) == names.split()
  content = ''.join(path.read_text() for path in public.iterdir())
  private_manifest = json.loads((bundle / 'manifest.json').read_text())
  digests = (bundle / 'rounds-1.txt').read_text().split()
  digests += [file['sha256'] for name, file in private_manifest['files'].items() if 'log' in name]
  for word in (*digests, 'phone', 'num_devices', 'witness', 'observed', 'log-1', SALT):
    assert word not in content
  statement = json.loads((public / 'statement.json').read_text())
  own = json.loads((bundle / 'statement.json').read_text())
  assert statement['worst_case'] == own['worst_case']
  assert statement['declared'] == own['declared'] and not statement['confidential']


def test_two_public_forms_have_nothing_in_common_that_the_log_gives(written, tmp_path):
  bundle, other = written.folder / 'bundle', tmp_path / 'other'
  result = dpftrl.write_public_bundle(other, bundle)
  assert result.salt != SALT and result.digest != written.public.digest
  one, two = (
    (p / 'commitments-1.txt').read_text().split() for p in (written.folder / 'public', other)
  )
  assert len(one) == len(two) == NUM_ROUNDS and not set(one) & set(two)
  assert 'private bundle' in failed(other, private=bundle, salt=SALT)


def test_figures_of_other_n_b_and_k_are_found_by_the_private_bundle_alone(written, tmp_path):
  """A forger writes everything anew, from a log with fewer participations."""
  path = write_log(tmp_path / 'log.parquet', [row for row in ROWS if row[0] < 12])
  run = dpftrl.open_run(path, STRATEGY, declared_num_rounds=30, declared_min_sep=6)
  dpftrl.write_bundle(tmp_path / 'bundle', run, deltas=[1e-6, 1e-9])
  public = tmp_path / 'public'
  dpftrl.write_public_bundle(public, tmp_path / 'bundle', salt=SALT)
  assert not failed(public)
  wrong = failed(public, private=written.folder / 'bundle', salt=SALT)
  assert wrong.keys() == {'private bundle', 'guarantee'}
  assert 'max_participations is 2, but the logs give 4' in wrong['private bundle']
  assert 'round 12 of run 1 is the first' in wrong['private bundle']
  assert failed(public, digest=written.public.digest).keys() == {'manifest', 'guarantee'}


def test_a_private_bundle_of_something_else_is_told(written, bundle, public, tmp_path):
  own = written.folder / 'bundle'
  run = dpftrl.open_run(
    written.folder / 'log.parquet', STRATEGY, declared_num_rounds=30, declared_min_sep=6
  )
  dpftrl.write_bundle(tmp_path / 'deltas', run, deltas=[1e-6])
  dpftrl.write_bundle(tmp_path / 'runs', [run, run], deltas=[1e-6, 1e-9])
  write_log(bundle / 'log-1-1.parquet', ROWS[1:])
  for private, told in (
    (bundle, 'it does not fit: files, rounds of run 1'),
    (tmp_path / 'deltas', 'its arguments of the guarantee are others'),
    (tmp_path / 'runs', 'it has 2 runs, not 1'),
  ):
    wrong = failed(public, private=private, salt=SALT)
    assert wrong.keys() == {'private bundle', 'guarantee'}
    assert told in wrong['private bundle']
  path = public / 'commitments-1.txt'
  path.write_text(path.read_text() + path.read_text()[:65])
  forge(public)
  wrong = failed(public, private=own, salt=SALT)
  assert 'there are 25, not one for each of 24 rounds' in wrong['commitments of run 1']
  assert 'run 1 has commitments to more rounds than 24' in wrong['private bundle']


def publish(folder, runs, **arguments):
  """Writes both bundles of runs; returns the salt."""
  dpftrl.write_bundle(folder / 'bundle', runs, deltas=1e-6, **arguments)
  return dpftrl.write_public_bundle(folder / 'public', folder / 'bundle').salt


def test_several_runs_and_groups(tmp_path):
  logs = [write_log(tmp_path / f'{i}.parquet') for i in range(2)]
  salt = publish(tmp_path, [dpftrl.open_run(log, STRATEGY) for log in logs], group_size=2)
  public = tmp_path / 'public'
  result = dpftrl.verify(public, private=tmp_path / 'bundle', salt=salt)
  assert result.passed and 'for 2 devices together' in result.checks[-1].detail
  assert 'noise multiplier 2 of the' in result.checks[-1].detail
  edit(public, lambda statement: statement['runs'][0].update(schema_in_log=True))
  assert 'and none is declared' in failed(public)['statement']


def test_runs_with_schemas_of_their_own(tmp_path):
  runs = [
    dpftrl.open_run(
      write_log(tmp_path / f'{b}.parquet'), STRATEGY, declared_num_rounds=30, declared_min_sep=b
    )
    for b in (6, 5)
  ]
  salt, public = publish(tmp_path, runs), tmp_path / 'public'
  assert dpftrl.verify(public, private=tmp_path / 'bundle', salt=salt).passed
  with pytest.raises(ValueError, match='one with logs is needed'):
    dpftrl.verify(public, private=public, salt=salt)
  edit(public, lambda statement: statement['runs'][1].update(min_sep=5))
  wrong = failed(public)['statement']
  assert 'strategy-2.json' in wrong.split('worst_case')[0] and 'min_sep is 6, not 5' in wrong


def test_a_schema_that_one_log_of_two_records_is_left_out(tmp_path):
  planned = keys.of_schema(dpftrl.MinSep(num_rounds=40, min_sep=6))
  logs = [
    write_log(tmp_path / f'{i}.parquet', metadata=METADATA | more)
    for i, more in enumerate((planned, {}))
  ]
  salt = publish(tmp_path, [dpftrl.open_run(log, STRATEGY) for log in logs])
  assert dpftrl.verify(tmp_path / 'public', private=tmp_path / 'bundle', salt=salt).passed


def test_what_does_not_fit_is_not_published(written, bundle, tmp_path):
  own, public = written.folder / 'bundle', written.folder / 'public'
  write_log(bundle / 'log-1-1.parquet', ROWS[1:])
  with pytest.raises(ValueError, match='does not fit, so it is not published: files, rounds'):
    dpftrl.write_public_bundle(tmp_path / 'public', bundle)
  with pytest.raises(ValueError, match='salt=.* must be 32 hexadecimal digits'):
    dpftrl.write_public_bundle(tmp_path / 'public', own, salt='f00')
  with pytest.raises(ValueError, match='exists already'):
    dpftrl.write_public_bundle(public, own)
  with pytest.raises(ValueError, match='go together'):
    dpftrl.verify(public, private=own)
  with pytest.raises(ValueError, match='for a public bundle'):
    dpftrl.verify(own, private=own, salt=SALT)
  assert sorted(path.name for path in tmp_path.iterdir()) == ['bundle']


@pytest.mark.slow
def test_commands_write_and_check_public_bundles(tmp_path):
  write_log(tmp_path / 'log.parquet')
  schema = dpftrl.MinSep(num_rounds=NUM_ROUNDS, min_sep=6)
  dpftrl.save_strategy(tmp_path / 's.json', STRATEGY, schema=schema)
  flags = ['replay', '--log=log.parquet', '--strategy=s.json', '--delta=1e-6']
  alone = lines.run([*flags, '--public_bundle=p'], cwd=tmp_path)
  assert alone.returncode == 2 and 'give --bundle too' in alone.stderr
  done = lines.run(
    [*flags, '--json', '--bundle=b', '--public_bundle=p', '--public_report=r.html'], cwd=tmp_path
  )
  assert done.returncode == 0
  commitment = json.loads(done.stdout)['commitment']
  assert commitment['hmac_sha256'] in (tmp_path / 'r.html').read_text()
  checked = lines.run(
    ['verify', 'p', '--private=b', f'--salt={commitment["salt"]}', '--json'], cwd=tmp_path
  )
  assert checked.returncode == 0 and json.loads(checked.stdout)['passed']
  again = lines.run(['verify', 'b', '--public_bundle=p2', '--json'], cwd=tmp_path)
  digest = json.loads(again.stdout)['public_bundle']['digest']
  told = lines.run(['verify', 'p2', f'--digest={digest}'], cwd=tmp_path)
  assert told.returncode == 0 and 'asserts n, b and k' in told.stdout
  assert lines.run(['verify', 'p2', '--salt=00'], cwd=tmp_path).returncode == 2
