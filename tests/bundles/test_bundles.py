"""Bundles: written, verified, and changed in every way that one change can."""

import hashlib
import json
import os
import shutil

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.bundles import manifest as manifest_lib
from fl_dpftrl.bundles import writing
from fl_dpftrl.logs import keys, noise_record, reader
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.replaying import embedded
from fl_dpftrl.replaying import replay as replay_lib
from tests.commands import lines

STRATEGY = dpftrl.BLT([0.99, 0.7], [0.1, 0.3])
OTHER = dpftrl.BLT([0.99, 0.7], [0.1, 0.2])
NUM_ROUNDS = 24
SCHEMA = {
  'participation': 'min_sep',
  'num_rounds': NUM_ROUNDS,
  'min_sep': 6,
  'max_participations': 4,
}
ROWS = sorted((t, f'phone {i}') for i in range(30) for t in range(i % 6, NUM_ROUNDS, 6))
METADATA = noise_record.run_metadata(STRATEGY, 2.0, clip_norm=1.0)


def write_log(path, rows=ROWS, num_rounds=NUM_ROUNDS, metadata=METADATA):
  dpftrl.write_log(
    path,
    rounds=[t for t, _ in rows],
    device_ids=[device for _, device in rows],
    num_rounds=num_rounds,
    metadata=metadata,
  )
  return path


@pytest.fixture(scope='module', autouse=True)
def fixture_one_reader():
  """Reads all logs in one process: starting it takes most of the time of a small bundle."""
  shared = reader.Reader()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(log_lib.reader_lib, 'Reader', lambda: shared)
    patch.setattr(embedded, '_threads', lambda: 1)
    yield


@pytest.fixture(scope='module', name='written')
def fixture_written(tmp_path_factory):
  folder = tmp_path_factory.mktemp('run')
  run = dpftrl.open_run(write_log(folder / 'log.parquet'), STRATEGY, declared_min_sep=6)
  return folder / 'bundle', dpftrl.write_bundle(folder / 'bundle', run, deltas=[1e-6, 1e-9])


@pytest.fixture(name='bundle')
def fixture_bundle(written, tmp_path):
  return shutil.copytree(written[0], tmp_path / 'bundle')


def failed(folder, **arguments):
  """Returns the checks that failed, by name."""
  checks = dpftrl.verify(folder, **arguments).checks
  return {check.name: ' '.join(check.found) for check in checks if not check.passed}


def forge(folder, change=lambda manifest: None):
  """Changes the manifest, then corrects the digests of all files, as a forger would."""
  path = folder / manifest_lib.NAME
  manifest = json.loads(path.read_text())
  change(manifest)
  for name in manifest['files']:
    content = (folder / name).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    manifest['files'][name] = {'bytes': len(content), 'sha256': digest}
  content = (json.dumps(manifest, indent=2) + '\n').encode()
  path.write_bytes(content)
  (folder / manifest_lib.SEAL).write_bytes(manifest_lib.seal(content))


def test_a_bundle_fits_anywhere(written, bundle):
  digest = hashlib.sha256((bundle / manifest_lib.NAME).read_bytes()).hexdigest()
  result = dpftrl.verify(bundle, digest=digest.upper())
  assert result.passed and result.compared
  assert result.digest == digest == written[1].digest
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


def test_its_statement_is_that_of_replay(written):
  folder, bundle = written
  run = dpftrl.open_run(folder.with_name('log.parquet'), STRATEGY, declared_min_sep=6)
  expected = replay_lib.replay(run, deltas=[1e-6, 1e-9]).to_json()
  stored = json.loads((folder / manifest_lib.STATEMENT).read_text())
  assert stored.pop('log')[0]['sha256'] == expected.pop('log')[0]['sha256']
  assert stored == json.loads(json.dumps(expected))
  assert bundle.statement.worst_case.epsilon == expected['worst_case']['epsilon']


def test_only_its_owner_reads_it(written):
  assert written[0].stat().st_mode & 0o777 == 0o700
  assert {path.stat().st_mode & 0o777 for path in written[0].iterdir()} == {0o600}


def chained(rows, num_rounds=NUM_ROUNDS):
  """Returns the chained digests of rows by their definition, one round at a time."""
  before, digests = hashlib.sha256(b'fl_dpftrl.bundle.rounds.1').digest(), []
  for t in range(num_rounds):
    ids = sorted(device.encode() for at, device in rows if at == t)
    columns = (
      np.full(len(ids), t, '<i4').tobytes(),
      np.array([len(one) for one in ids], '<i4').tobytes(),
      b''.join(ids),
    )
    cohort = hashlib.sha256(b'text' + len(ids).to_bytes(8, 'little'))
    for column in columns:
      cohort.update(hashlib.sha256(column).digest())
    before = hashlib.sha256(before + t.to_bytes(8, 'little') + cohort.digest()).digest()
    digests.append(before.hex())
  return digests


def test_digests_are_chained_as_documented(tmp_path):
  rows = [row for row in ROWS if row[0] not in (0, 7, 23)]
  shuffled = [rows[i] for i in np.random.default_rng(1).permutation(len(rows))]
  run = dpftrl.open_run(write_log(tmp_path / 'log.parquet', shuffled), STRATEGY)
  assert list(writing.chained(run)) == chained(rows)


def test_digests_are_those_of_rounds_that_are_cut(monkeypatch, tmp_path):
  run = dpftrl.open_run(write_log(tmp_path / 'log.parquet'), STRATEGY)
  monkeypatch.setattr(writing.embedded, '_BATCH_ROWS', 3)
  assert list(writing.chained(run)) == chained(ROWS)


def random_change(folder, rng):
  """Makes one random change in a bundle; returns the name of the file."""
  names = sorted(os.listdir(folder))
  name = names[rng.integers(len(names))]
  path = folder / name
  content = bytearray(path.read_bytes())
  place = int(rng.integers(len(content)))
  kind = rng.integers(6)
  if kind == 0:
    content[place] ^= 1 << int(rng.integers(8))
  elif kind == 1:
    content[place] = int((content[place] + rng.integers(1, 256)) % 256)
  elif kind == 2:
    del content[place:]
  elif kind == 3:
    content.insert(place, int(rng.integers(256)))
  elif kind == 4:
    path.unlink()
    return name
  else:
    name = f'log-1-{rng.integers(2, 99)}.parquet'
    path = folder / name
  path.write_bytes(content)
  return name


@pytest.mark.slow
def test_each_of_200_random_changes_is_found(written, tmp_path):
  rng = np.random.default_rng(0)
  refused = 0
  for number in range(200):
    folder = shutil.copytree(written[0], tmp_path / f'{number}')
    name = random_change(folder, rng)
    try:
      found = failed(folder)
    except ValueError as error:
      assert name == manifest_lib.NAME and manifest_lib.NAME in str(error)
      refused += 1
      continue
    own = name in (manifest_lib.NAME, manifest_lib.SEAL)
    assert name in found['manifest' if own else 'files'], (number, name)
  assert refused < 50


def without_round(folder, t):
  path = folder / 'log-1-1.parquet'
  write_log(path, [row for row in ROWS if row[0] != t])


def other_strategy(folder):
  (folder / 'strategy-1.json').unlink()
  dpftrl.save_strategy(
    folder / 'strategy-1.json',
    OTHER,
    schema=dpftrl.MinSep(num_rounds=NUM_ROUNDS, min_sep=6, max_participations=4),
  )


@pytest.mark.parametrize('t', [0, 11, 23])
def test_a_round_that_was_removed_is_named(bundle, t):
  without_round(bundle, t)
  assert f'round {t} is the first' in failed(bundle)['rounds of run 1']
  forge(bundle)
  found = failed(bundle)
  assert found.keys() == {'rounds of run 1', 'statement', 'guarantee'}
  assert f'round {t} is the first' in found['rounds of run 1']


def test_a_device_that_was_replaced_by_another_is_found_by_the_round(bundle):
  rows = [(t, 'phone 7b' if (t, device) == (13, 'phone 7') else device) for t, device in ROWS]
  write_log(bundle / 'log-1-1.parquet', rows)
  forge(bundle)
  assert 'round 13 is the first' in failed(bundle)['rounds of run 1']


def test_a_log_of_fewer_rounds_is_found(bundle):
  rows = [row for row in ROWS if row[0] < 23]
  write_log(bundle / 'log-1-1.parquet', rows, num_rounds=23)
  forge(bundle)
  found = failed(bundle)
  assert 'more rounds than 23' in found['rounds of run 1']
  assert found['statement'] == 'declared is for 24 rounds, but the log has 23'
  forge(bundle, lambda manifest: manifest['runs'][0].update(num_rounds=24))
  assert 'num_rounds is 23, not 24' in failed(bundle)['rounds of run 1']


def test_another_strategy_is_found(bundle):
  other_strategy(bundle)
  forge(bundle)
  found = failed(bundle)
  assert found.keys() == {'statement', 'guarantee'}
  assert found['statement'].startswith('strategy.sha256 is')
  assert 'another strategy' in found['guarantee']


@pytest.mark.parametrize(
  'place, name, value, told',
  [
    ('guarantee', 'deltas', [1e-5, 1e-9], 'delta is'),
    ('guarantee', 'adjacency', 'replace_one', 'adjacency is'),
    ('guarantee', 'group_size', 2, 'group_size is'),
    ('guarantee', 'report_goal', 4, "'report_goal' is"),
    ('run', 'noise_multiplier', 2.5, 'noise_multiplier is 2.0'),
    ('run', 'changes', [[4, 3.0]], "'changes' is"),
    ('run', 'restarts', [12], "'restarts' is"),
    ('run', 'declared', None, "'declared' is"),
    ('run', 'declared', SCHEMA | {'min_sep': 5, 'max_participations': 5}, 'declared.min_sep is'),
  ],
)
def test_an_argument_that_was_changed_is_told_first(bundle, place, name, value, told):
  def change(manifest):
    (manifest['runs'][0] if place == 'run' else manifest['guarantee'])[name] = value

  forge(bundle, change)
  assert failed(bundle)['statement'].startswith(told)


@pytest.mark.parametrize(
  'name, value', [('noise_multiplier', 2.5), ('num_rounds', 25), ('min_sep', 12), ('delta', 1e-5)]
)
def test_a_number_of_the_statement_that_was_edited_is_told_alone(bundle, name, value):
  path = bundle / manifest_lib.STATEMENT
  statement = json.loads(path.read_text())
  path.write_text(json.dumps(statement | {name: value}))
  forge(bundle)
  found = failed(bundle)
  assert found.keys() == {'statement', 'guarantee'}
  given = f'{name} is {value}, but the log and the strategy give {statement[name]}'
  assert found['statement'] == given


@pytest.mark.parametrize(
  'name, value', [('noise_multiplier', 2.0), ('changes', []), ('restarts', []), ('num_rounds', 24)]
)
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


@pytest.mark.parametrize('name', ['epsilon', 'rho', 'sensitivity'])
def test_a_figure_of_the_statement_is_compared_to_the_last_digit(bundle, name):
  path = bundle / manifest_lib.STATEMENT
  statement = json.loads(path.read_text())
  figure = statement['worst_case'][name]
  statement['worst_case'][name] = float(np.nextafter(figure, 0.0))
  path.write_text(json.dumps(statement))
  forge(bundle)
  assert f'worst_case.{name} is' in failed(bundle)['statement']


def test_a_digest_from_elsewhere_finds_a_forgery_of_everything(bundle, written, tmp_path):
  shutil.rmtree(bundle)
  run = dpftrl.open_run(write_log(tmp_path / 'forged.parquet', ROWS[1:]), STRATEGY)
  dpftrl.write_bundle(bundle, run, deltas=1e-6)
  assert not failed(bundle)
  assert failed(bundle, digest=written[1].digest).keys() == {'manifest', 'guarantee'}


def edited(text, replacement):
  return lambda content: content.replace(text.encode(), replacement.encode(), 1)


HOSTILE = [
  (edited('"log-1-1.parquet"', '"../log.parquet"'), 'plain name'),
  (edited('"rounds-1.txt": {', '"../rounds-1.txt": {'), 'plain name'),
  (edited('"rounds-1.txt": {', '"rounds-2.txt": {'), "must have 'rounds-1.txt'"),
  (edited('"log-1-1.parquet": {', '"log-1-2.parquet": {'), "must have 'log-1-1.parquet'"),
  (edited('"log-1-1.parquet": {', '"log-2-1.parquet": {'), "must have 'log-1-1'"),
  (edited('"num_rounds": null', '"num_rounds": true'), 'num_rounds'),
  (edited('"first_round": 0', '"first_round": -1'), 'first_round'),
  (edited('"deltas": [', '"more": 1, "deltas": ['), 'unknown'),
  (edited('"version": 2', '"version": 1'), 'release 0.1 of fl_dpftrl'),
  (edited('"version": 2', '"version": 3'), 'version must be 2'),
  (edited('"version": 2', f'"version": {"9" * 5000}'), 'digits'),
  (lambda content: b'[' * 100_000, 'within each other'),
  (lambda content: b'[]', 'format'),
  (lambda content: content + b' ' * 2**24, 'more than'),
]


@pytest.mark.parametrize('change, told', HOSTILE)
def test_hostile_manifests_are_refused_in_one_line(bundle, change, told):
  path = bundle / manifest_lib.NAME
  path.write_bytes(change(path.read_bytes()))
  (bundle / manifest_lib.SEAL).write_bytes(manifest_lib.seal(path.read_bytes()))
  done = lines.run(['verify', bundle])
  assert done.returncode == 2 and not done.stdout
  (line,) = done.stderr.splitlines()
  assert told in line and len(line) <= 300


@pytest.mark.parametrize('name', ['log-1-1.parquet', 'manifest.json', 'more'])
def test_links_are_never_followed(bundle, name, tmp_path):
  target = tmp_path / 'elsewhere'
  target.write_bytes((bundle / name).read_bytes() if name != 'more' else b'')
  (bundle / name).unlink(missing_ok=True)
  (bundle / name).symlink_to(target)
  with pytest.raises(ValueError, match=f'{name}. is no regular file'):
    dpftrl.verify(bundle)


def test_what_is_no_bundle_is_refused(tmp_path):
  with pytest.raises(ValueError, match='no bundle'):
    dpftrl.verify(tmp_path)
  with pytest.raises(OSError):
    dpftrl.verify(tmp_path / 'missing')
  with pytest.raises(ValueError, match='digest=.* 64 hexadecimal'):
    dpftrl.verify(tmp_path, digest='f00')


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
      changes=((5, 4.0),),
      restarts=(12,),
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
  assert failed(tmp_path / 'bundle').keys() == {
    'files',
    'strategy of run 1',
    'rounds of run 1',
    'statement',
    'guarantee',
  }


def test_a_void_run_fits_and_fails_its_guarantee(tmp_path):
  metadata = {keys.VOID_KEY: 'the noise seed was given'}
  path = write_log(tmp_path / 'log.parquet', metadata=metadata)
  run = dpftrl.open_run(path, STRATEGY, noise_multiplier=2.0)
  dpftrl.write_bundle(tmp_path / 'bundle', run, deltas=1e-6)
  assert 'noise seed' in failed(tmp_path / 'bundle').pop('guarantee')
  assert failed(tmp_path / 'bundle').keys() == {'guarantee'}


@pytest.mark.slow
def test_logs_that_cannot_be_copied_are_refused(written, tmp_path):
  write_log(tmp_path / 'log.parquet')
  with pytest.raises(ValueError, match='exists already'):
    run = dpftrl.open_run(tmp_path / 'log.parquet', STRATEGY)
    dpftrl.write_bundle(written[0], run, deltas=1e-6)
  with pytest.raises(ValueError, match='logs in files'):
    table = next(run.log.tables())
    memory = log_lib.of_table(table, num_rounds=NUM_ROUNDS)
    run = replay_lib.runs_lib.Run.of(memory, STRATEGY, noise_multiplier=2.0)
    dpftrl.write_bundle(tmp_path / 'bundle', run, deltas=1e-6)
  with pytest.raises(ValueError, match='close the log first'):
    with dpftrl.LogWriter(tmp_path / 'open.parquet') as log:
      log.append(0, ['a'], timestamp=0)
      run = dpftrl.open_run(tmp_path / 'open.parquet', STRATEGY, noise_multiplier=2.0)
      dpftrl.write_bundle(tmp_path / 'bundle', run, deltas=1e-6)
  with pytest.raises(ValueError, match='delta'):
    run = dpftrl.open_run(tmp_path / 'log.parquet', STRATEGY)
    dpftrl.write_bundle(tmp_path / 'bundle', run, deltas=2.0)
  assert sorted(p.name for p in tmp_path.iterdir() if 'open' not in p.name) == ['log.parquet']


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
