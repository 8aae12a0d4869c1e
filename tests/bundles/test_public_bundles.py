"""Public bundles: nothing confidential in them, every change found, figures computed again."""

import json
import shutil

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.bundles import manifest as manifest_lib
from fl_dpftrl.logs import keys, noise_record
from tests.bundles import test_bundles as private
from tests.commands import lines

fixture_one_reader = private.fixture_one_reader
SALT = '0f' * 16


@pytest.fixture(scope='module', name='written')
def fixture_written(tmp_path_factory):
  """A bundle and its public form."""
  folder = tmp_path_factory.mktemp('run')
  private.write_log(folder / 'log.parquet')
  run = dpftrl.open_run(folder / 'log.parquet', private.STRATEGY, declared_min_sep=6)
  dpftrl.write_bundle(folder / 'bundle', run, deltas=[1e-6, 1e-9])
  found = dpftrl.write_public_bundle(folder / 'public', folder / 'bundle', salt=SALT)
  assert found.salt == SALT
  return folder / 'bundle', folder / 'public', found.digest


@pytest.fixture(name='public')
def fixture_public(written, tmp_path):
  return shutil.copytree(written[1], tmp_path / 'public')


def edit(folder, change):
  """Changes the statement."""
  path = folder / manifest_lib.STATEMENT
  statement = json.loads(path.read_text())
  change(statement)
  path.write_text(json.dumps(statement))


def test_it_fits_and_says_on_what_its_figures_rest(written):
  bundle, public, digest = written
  result = dpftrl.verify(public, digest=digest)
  assert result.passed and result.compared
  assert 'if n = 24, b = 6, k = 4 are those of the log' in result.checks[-1].detail
  assert 'asserts n, b and k' in result.to_json()['caveat']
  compared = dpftrl.verify(public, digest=digest, private=bundle, salt=SALT.upper())
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
  bundle, public, _ = written
  names = {path.name for path in public.iterdir()}
  assert names == {
    'manifest.json',
    'manifest.sha256',
    'statement.json',
    'strategy-1.json',
    'commitments-1.txt',
  }
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
  other = dpftrl.write_public_bundle(tmp_path / 'other', written[0])
  assert other.salt != SALT and other.digest != written[2]
  one, two = (
    (p / 'commitments-1.txt').read_text().split() for p in (written[1], tmp_path / 'other')
  )
  assert len(one) == len(two) == private.NUM_ROUNDS and not set(one) & set(two)
  assert 'private bundle' in private.failed(tmp_path / 'other', private=written[0], salt=SALT)


def test_each_of_200_random_changes_is_found(written, tmp_path):
  rng = np.random.default_rng(0)
  refused = 0
  for number in range(200):
    folder = shutil.copytree(written[1], tmp_path / f'{number}')
    name = private.random_change(folder, rng)
    try:
      found = private.failed(folder)
    except ValueError as error:
      assert name == manifest_lib.NAME and manifest_lib.NAME in str(error)
      refused += 1
      continue
    own = name in (manifest_lib.NAME, manifest_lib.SEAL)
    assert name in found['manifest' if own else 'files'], (number, name)
    assert 'guarantee' in found
  assert refused < 60


@pytest.mark.parametrize(
  'place, name, value, told',
  [
    ('guarantee', 'deltas', [1e-5, 1e-9], 'delta is'),
    ('guarantee', 'adjacency', 'replace_one', 'adjacency is'),
    ('guarantee', 'group_size', 2, 'group_size is'),
    ('run', 'noise_multiplier', 2.5, 'noise_multiplier is 2.0'),
    ('run', 'changes', [[4, 1.0]], "'changes' is missing"),
    ('run', 'restarts', [12], "'restarts' is missing"),
    ('run', 'declared', None, "'declared' is unknown"),
    ('run', 'num_rounds', 25, 'num_rounds is 24, but the parameters give 25'),
  ],
)
def test_a_forged_argument_is_told_first(public, place, name, value, told):
  def change(manifest):
    (manifest['runs'][0] if place == 'run' else manifest['guarantee'])[name] = value

  private.forge(public, change)
  assert private.failed(public)['statement'].startswith(told)


@pytest.mark.parametrize(
  'name, value, told',
  [
    ('noise_multiplier', 2.5, 'noise_multiplier is 2.5, but the parameters give 2.0'),
    ('num_rounds', 25, 'num_rounds is 25, but the parameters give 24'),
    ('min_sep', 12, 'strategy-1.json has another schema'),
    (
      'min_sep',
      7,
      'strategy-1.json has another schema, objective or workload than its run: min_sep',
    ),
    ('max_participations', 3, 'strategy-1.json has another schema'),
  ],
)
def test_an_edited_number_of_the_statement_is_told_first(public, name, value, told):
  edit(public, lambda statement: statement.update({name: value}))
  private.forge(public)
  found = private.failed(public)
  assert found.keys() == {'statement', 'guarantee'}
  assert found['statement'].startswith(told) and name in found['statement'].split('. ')[0]


@pytest.mark.parametrize(
  'change, told',
  [
    (lambda s: s['worst_case'].update(epsilon=1.0), 'worst_case.epsilon is 1.0'),
    (lambda s: s['declared'].update(holds=False), 'declared.holds'),
    (lambda s: s.update(num_devices=30), "'num_devices' is unknown"),
    (lambda s: s['assumptions'].pop(0), 'assumptions lack'),
    (lambda s: s.update(assumptions=3), 'assumptions must be'),
    (lambda s: s.update(void_reason='phone 3 left'), 'void_reason must be'),
    (lambda s: s.update(warnings=['phone 3 left']), 'warnings is'),
    (lambda s: s.pop('commitment'), 'commitment must have'),
    (lambda s: s['commitment'].update(salt=SALT), "'commitment.salt' is unknown"),
    (lambda s: s.update(confidential=True), 'confidential'),
  ],
)
def test_a_forged_statement_is_found(public, change, told):
  edit(public, change)
  private.forge(public)
  found = private.failed(public)
  assert told in found['statement'] and 'guarantee' in found


def test_figures_of_other_n_b_and_k_are_found_by_the_private_bundle_alone(written, tmp_path):
  """A forger writes everything anew, from a log with fewer participations."""
  rows = [(t, device) for t, device in private.ROWS if t < 12]
  path = private.write_log(tmp_path / 'log.parquet', rows)
  run = dpftrl.open_run(path, private.STRATEGY, declared_min_sep=6)
  dpftrl.write_bundle(tmp_path / 'bundle', run, deltas=[1e-6, 1e-9])
  public = tmp_path / 'public'
  dpftrl.write_public_bundle(public, tmp_path / 'bundle', salt=SALT)
  assert not private.failed(public)
  found = private.failed(public, private=written[0], salt=SALT)
  assert found.keys() == {'private bundle', 'guarantee'}
  assert 'max_participations is 2, but the logs give 4' in found['private bundle']
  assert 'round 12 of run 1 is the first' in found['private bundle']
  assert private.failed(public, digest=written[2]).keys() == {'manifest', 'guarantee'}


def test_restarts_with_other_strategies_changes_and_groups(tmp_path):
  metadata = noise_record.run_metadata(
    private.STRATEGY,
    2.0,
    clip_norm=1.0,
    changes=((5, 3.0, 1.0),),
    restarts=((12, dpftrl.TreeOnline()),),
  )
  private.write_log(tmp_path / 'log.parquet', metadata=metadata)
  private.write_log(tmp_path / 'more.parquet')
  runs = [
    dpftrl.open_run(tmp_path / f'{name}.parquet', private.STRATEGY) for name in ('log', 'more')
  ]
  dpftrl.write_bundle(tmp_path / 'bundle', runs, deltas=1e-6, group_size=2)
  salt = dpftrl.write_public_bundle(tmp_path / 'public', tmp_path / 'bundle').salt
  assert (tmp_path / 'public' / 'strategy-1-12.json').exists()
  result = dpftrl.verify(tmp_path / 'public', private=tmp_path / 'bundle', salt=salt)
  assert result.passed and 'for 2 devices together' in result.checks[-1].detail
  name = 'strategy-1-12.json'
  shutil.copy(tmp_path / 'public' / 'strategy-1.json', tmp_path / 'public' / name)
  private.forge(tmp_path / 'public')
  told = private.failed(tmp_path / 'public')['statement']
  assert told.startswith('runs[0].later_strategies[0].family')


def test_runs_with_schemas_of_their_own(tmp_path):
  runs = [
    dpftrl.open_run(
      private.write_log(tmp_path / f'{min_sep}.parquet'), private.STRATEGY, declared_min_sep=min_sep
    )
    for min_sep in (6, 5)
  ]
  dpftrl.write_bundle(tmp_path / 'bundle', runs, deltas=1e-6)
  public = tmp_path / 'public'
  salt = dpftrl.write_public_bundle(public, tmp_path / 'bundle').salt
  assert dpftrl.verify(public, private=tmp_path / 'bundle', salt=salt).passed
  with pytest.raises(ValueError, match='one with logs is needed'):
    dpftrl.verify(public, private=public, salt=salt)
  edit(public, lambda statement: statement['runs'][1].update(min_sep=5))
  private.forge(public)
  told = private.failed(public)['statement']
  assert 'strategy-2.json' in told.split('worst_case')[0] and 'min_sep is 6, not 5' in told


def test_a_schema_that_one_log_of_two_records_is_left_out(tmp_path):
  planned = keys.of_schema(dpftrl.MinSep(num_rounds=40, min_sep=6))
  for name, more in (('a', planned), ('b', {})):
    private.write_log(tmp_path / f'{name}.parquet', metadata=private.METADATA | more)
  runs = [dpftrl.open_run(tmp_path / f'{name}.parquet', private.STRATEGY) for name in 'ab']
  dpftrl.write_bundle(tmp_path / 'bundle', runs, deltas=1e-6)
  salt = dpftrl.write_public_bundle(tmp_path / 'public', tmp_path / 'bundle').salt
  assert dpftrl.verify(tmp_path / 'public', private=tmp_path / 'bundle', salt=salt).passed


def test_what_does_not_fit_is_not_published(written, tmp_path):
  bundle = shutil.copytree(written[0], tmp_path / 'bundle')
  private.without_round(bundle, 3)
  with pytest.raises(ValueError, match='does not fit, so it is not published: files, rounds'):
    dpftrl.write_public_bundle(tmp_path / 'public', bundle)
  with pytest.raises(ValueError, match='salt=.* must be 32 hexadecimal digits'):
    dpftrl.write_public_bundle(tmp_path / 'public', written[0], salt='f00')
  with pytest.raises(ValueError, match='exists already'):
    dpftrl.write_public_bundle(written[1], written[0])
  with pytest.raises(ValueError, match='go together'):
    dpftrl.verify(written[1], private=written[0])
  with pytest.raises(ValueError, match='for a public bundle'):
    dpftrl.verify(written[0], private=written[0], salt=SALT)
  assert sorted(path.name for path in tmp_path.iterdir()) == ['bundle']


HOSTILE = [
  (private.edited('"commitments-1.txt"', '"../commitments-1.txt"'), 'plain name'),
  (private.edited('"strategy-1.json"', '"strategy-1-3.json"'), "must have 'strategy-1.json'"),
  (private.edited('"num_rounds": 24', '"num_rounds": null'), 'num_rounds'),
  (private.edited('"layout": null', '"layout": {}'), 'missing'),
  (private.edited('"num_rounds": 24', '"phone": 1, "num_rounds": 24'), 'unknown'),
  (private.edited('"participation": "min_sep"', '"participation": "fixed_separation"'), 'min_sep'),
  (private.edited('"version": 2', '"version": 1'), 'release 0.1 of fl_dpftrl'),
]


@pytest.mark.parametrize('change, told', HOSTILE)
def test_hostile_manifests_are_refused(public, change, told):
  path = public / manifest_lib.NAME
  path.write_bytes(change(path.read_bytes()))
  with pytest.raises(ValueError, match=told):
    dpftrl.verify(public)


@pytest.mark.slow
def test_commands_write_and_check_public_bundles(tmp_path):
  private.write_log(tmp_path / 'log.parquet')
  dpftrl.save_strategy(
    tmp_path / 's.json',
    private.STRATEGY,
    schema=dpftrl.MinSep(num_rounds=private.NUM_ROUNDS, min_sep=6),
  )
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
  found = json.loads(again.stdout)['public_bundle']
  told = lines.run(['verify', 'p2', f'--digest={found["digest"]}'], cwd=tmp_path)
  assert told.returncode == 0 and 'asserts n, b and k' in told.stdout
  assert lines.run(['verify', 'p2', '--salt=00'], cwd=tmp_path).returncode == 2
