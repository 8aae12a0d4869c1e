"""Evidence is verified, and every forgery of it is found."""

import functools
import hashlib
import json
import shutil

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import log_tables as log_schema
from fl_dpftrl.logs import participation_log
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.prove.replaying import evidence, opened_runs
from tests import every_family, made
from tests.commands import lines

STRATEGY = dpftrl.BLT([0.9, 0.5], [0.3, 0.2])
NUM_ROUNDS = 24
FORGED = 'ε = 0.1 holds for every device'


def claim(**changes):
  stated = dict(
    strategy=STRATEGY,
    noise_multiplier=2.0,
    clip_norm=dpftrl.AdaptiveClipping(1.0),
    report_goal=3,
    participation=dpftrl.MinSep(num_rounds=40, min_sep=6),
  )
  return dpftrl.Claim(**stated | changes)


def write_log(path, num_rounds=NUM_ROUNDS, own=None):
  rows = [(t, f'phone {d}') for t in range(num_rounds) for d in range(4) if t % 6 == d]
  rounds, ids = map(list, zip(*rows))
  metadata = (own or claim()).to_metadata()
  log_schema.write_log(
    path, rounds=rounds, device_ids=ids, num_rounds=num_rounds, metadata=metadata
  )
  return path


@pytest.fixture(scope='module', name='written')
def fixture_written(tmp_path_factory):
  folder = tmp_path_factory.mktemp('evidence')
  (folder / 'model.npz').write_bytes(b'a model')
  run = dpftrl.open_run(write_log(folder / 'log.parquet'), STRATEGY)
  digest = dpftrl.write_evidence(
    folder / 'one', run, delta=[1e-6, 1e-9], group_size=2, model=folder / 'model.npz'
  )
  assert digest == hashlib.sha256((folder / 'one' / 'SHA256SUMS').read_bytes()).hexdigest()
  return folder


@pytest.fixture(name='folder')
def fixture_folder(written, tmp_path):
  return shutil.copytree(written / 'one', tmp_path / 'one')


def seal(folder):
  """Writes the digests again, as a forger does."""
  paths = sorted(path for path in folder.iterdir() if path.name != 'SHA256SUMS')
  text = ''.join(f'{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n' for p in paths)
  (folder / 'SHA256SUMS').write_text(text)


def edit(folder, name, change):
  document = json.loads((folder / name).read_text())
  change(document)
  (folder / name).write_text(json.dumps(document, indent=2) + '\n')
  seal(folder)


def wrong(folder, **given):
  """The checks that fail, with the first sentence of each."""
  return {c.name: c.found[0] for c in dpftrl.verify(folder, **given).checks if c.found}


def test_evidence_fits_and_is_private(written, folder):
  assert {path.name for path in folder.iterdir()} == {
    *('SHA256SUMS', 'certificate.json', 'claim.json', 'log-1.parquet', 'statement.json'),
    'strategy.json',
  }
  found = dpftrl.verify(folder, model=written / 'model.npz')
  assert found.passed and found.to_json()['passed']
  assert [c.name for c in found.checks] == [
    *('files', 'claim', 'statement', 'certificate', 'proof', 'model', 'guarantee')
  ]
  assert (written / 'one').stat().st_mode & 0o777 == 0o700
  assert all(path.stat().st_mode & 0o777 == 0o600 for path in (written / 'one').iterdir())
  statement = json.loads((folder / 'statement.json').read_text())
  run = dpftrl.open_run(written / 'log.parquet', STRATEGY)
  own = dpftrl.replay(run, delta=[1e-6, 1e-9], group_size=2)
  assert statement['worst_case'] == own.to_json()['worst_case']
  assert (
    run_claim.Claim.from_json(json.loads((folder / 'claim.json').read_text()), STRATEGY) == claim()
  )
  (written / 'other').write_bytes(b'another model')
  assert wrong(folder, model=written / 'other').keys() == {'model', 'guarantee'}


def test_evidence_of_several_runs_and_of_logs_of_other_systems(tmp_path):
  own = write_log(tmp_path / 'a.parquet', own=claim(participation=None))
  other = tmp_path / 'b.csv'
  other.write_text('step,phone\n3,phone 0\n7,phone 9\n')
  given = [
    dpftrl.open_run(own, STRATEGY),
    dpftrl.open_run(
      *(other, 'tree_online'),
      noise_multiplier=3.0,
      num_rounds=9,
      columns='round=step,device_id=phone',
      first_round=2,
    ),
  ]
  dpftrl.write_evidence(tmp_path / 'two', given, delta=1e-6, adjacency='replace_one')
  found = dpftrl.verify(tmp_path / 'two')
  assert found.passed, found.checks
  details = {check.name: check.detail for check in found.checks}
  assert details['run-1-claim'] == 'it is that of the log, and of its strategy'
  assert details['run-2-claim'] == 'the log states none: it is that of whoever replayed'
  edit(tmp_path / 'two', 'run-2-claim.json', lambda c: c.update(noise_multiplier=4.0))
  assert wrong(tmp_path / 'two').keys() == {'statement', 'certificate', 'guarantee'}
  (tmp_path / 'two' / 'certificate.json').unlink()
  assert 'no certificate' in wrong(tmp_path / 'two')['proof']
  (tmp_path / 'two' / 'run-1-claim.json').write_text('{}')
  found = wrong(tmp_path / 'two')
  assert found['certificate'] == found['proof'] == 'not checked, as no figure was computed'


def test_verify_shows_the_statement_and_the_warnings_of_the_replay(tmp_path):
  log = tmp_path / 'log.csv'
  log.write_text('round,device_id\n0,a\n4,b\n')
  args = ['replay', '--log', log, '--strategy=identity', '--noise_multiplier=4', '--claim=2@0.5']
  shown = lines.run([*args, '--evidence', tmp_path / 'evidence']).stderr.splitlines()
  warned = [line for line in shown if 'warning: ' in line]
  done = lines.run(['verify', tmp_path / 'evidence'])
  assert done.returncode == 0 and len(warned) == 3
  assert 'zero-out adjacency; ε ≤ 2 at δ = 0.5 is held, by worst case' in done.stdout
  assert 'ε at δ = 0.5' in done.stdout and '- the log is complete' in done.stdout
  assert [
    line.replace(f'{tmp_path / "evidence" / "log-1.csv"}', str(log))
    for line in done.stderr.splitlines()
  ] == warned


def test_a_folder_that_is_no_evidence_is_refused_in_one_line(folder, tmp_path):
  (tmp_path / 'empty').mkdir()
  with pytest.raises(ValueError, match='empty.* holds no SHA256SUMS: it is no evidence$'):
    dpftrl.verify(tmp_path / 'empty')
  with pytest.raises(ValueError, match='and has 0: it is evidence, which `verify` reads$'):
    dpftrl.open_run(folder)
  (folder / 'link').symlink_to('log-1.parquet')
  with pytest.raises(ValueError, match="'link' is no regular file"):
    dpftrl.verify(folder)


@pytest.mark.slow
def test_each_of_60_random_changes_is_found(written, tmp_path):
  rng = np.random.default_rng(0)
  for number in range(60):
    folder = shutil.copytree(written / 'one', tmp_path / f'{number}')
    path = rng.choice(sorted(folder.iterdir()))
    content = bytearray(path.read_bytes())
    kind = rng.integers(4)
    if kind == 0:
      content[rng.integers(len(content))] ^= 1 << rng.integers(8)
    elif kind == 1:
      del content[rng.integers(len(content)) :]
    elif kind == 2:
      content.insert(rng.integers(len(content) + 1), rng.integers(256))
    path.write_bytes(content)
    if kind == 3:
      path.unlink()
      if path.name == 'SHA256SUMS':
        with pytest.raises(ValueError, match='no SHA256SUMS'):
          dpftrl.verify(folder)
        continue
    found = wrong(folder)
    changed = hashlib.sha256((folder / 'SHA256SUMS').read_bytes()).hexdigest()
    original = hashlib.sha256((written / 'one' / 'SHA256SUMS').read_bytes()).hexdigest()
    assert found or changed != original, (number, path.name)
    if path.name != 'SHA256SUMS':
      assert path.name in found['files']


@pytest.mark.parametrize('name, change, check, told', [
  ('statement.json', lambda s: s.update(noise_multiplier=2.5), 'statement', 'noise_multiplier is'),
  ('statement.json', lambda s: s.update(num_rounds=24.0), 'statement', 'num_rounds is 24.0'),
  ('statement.json', lambda s: s.update(min_sep=7), 'statement', 'min_sep is 7'),
  ('statement.json', lambda s: s.update(note=FORGED), 'statement', "'note' is unknown"),
  ('statement.json', lambda s: s.pop('declared'), 'statement', "'declared' is missing"),
  ('statement.json', lambda s: s['declared'].update(holds=0), 'statement', 'declared.holds'),
  ('statement.json', lambda s: s['assumptions'].pop(), 'statement', 'assumptions is'),
  ('statement.json', lambda s: s['assumptions'].append(FORGED), 'statement', 'assumptions is'),
  ('statement.json', lambda s: s.update(void_reason=FORGED), 'statement', 'void_reason is'),
  ('statement.json', lambda s: s.update(warnings=[FORGED]), 'statement', 'warnings[0] is'),
  ('statement.json', lambda s: s['asked'].update(deltas=[1e-5, 1e-9]), 'statement', 'curve'),
  ('statement.json', lambda s: s['asked'].update(adjacency='replace_one'), 'statement', ''),
  ('statement.json', lambda s: s['asked'].update(group_size=1), 'statement', ''),
  ('statement.json', lambda s: s['asked'].update(note=FORGED), 'statement', 'asked must have'),
  ('statement.json', lambda s: s['asked'].update(claim='4'), 'statement', 'must be ε@δ'),
  ('statement.json', lambda s: s['asked'].update(claim='1@1e-6'), 'guarantee', 'is not held, by'),
  ('statement.json', lambda s: s['asked'].update(group_size=True), 'statement', 'not be True'),
  ('statement.json', lambda s: s['asked']['runs'][0].update(num_rounds=25), 'claim', 'not 25'),
  ('statement.json', lambda s: s['asked']['runs'][0].update(first_round=1), 'statement', ''),
  ('claim.json', lambda c: c.update(noise_multiplier=4.0), 'claim',
   'claim.json: the log is of a run with the noise_multiplier 2.0, not 4.0'),
  ('claim.json', lambda c: c.update(clip_norm=2.0), 'claim', 'the clip_norm'),
  ('claim.json', lambda c: c['arithmetic'].update(kind='lattice'), 'claim', 'the arithmetic'),
  ('claim.json', lambda c: c['participation'].update(min_sep=7, max_participations=6), 'claim',
   'declared schema allows'),
  ('claim.json', lambda c: c.update(participation=None), 'statement', "'declared' is unknown"),
  ('claim.json', lambda c: c['participation'].update(min_sep=5), 'statement', 'declared'),
  ('claim.json', lambda c: c.update(report_goal=2), 'claim', 'report_goal'),
  ('claim.json', lambda c: c.update(note=FORGED), 'claim', 'a claim must have'),
  ('claim.json', lambda c: c['strategy'].update(sha256='0' * 64), 'claim', 'strategy'),
  ('strategy.json', lambda s: s.update(note=FORGED), 'claim', "'note', which is not known"),
  ('strategy.json', lambda s: s.update(objective='rms'), 'statement', 'strategy.json.objective'),
  ('strategy.json', lambda s: s['schema'].update(min_sep=3), 'claim', 'strategy file'),
  ('strategy.json', lambda s: s['parameters'].update(output_scale=[0.3, 0.1]), 'claim', ''),
  ('strategy.json', lambda s: s.update(sensitivity=s['sensitivity'] * (1 + 1e-8)),
   *('claim', 'strategy file')),
])  # fmt: skip
def test_a_forgery_whose_digests_fit_is_found(folder, name, change, check, told):
  edit(folder, name, change)
  found = wrong(folder)
  assert check in found and 'guarantee' in found and 'files' not in found
  assert told in ' '.join(next(c for c in dpftrl.verify(folder).checks if c.name == check).found)


@pytest.mark.parametrize('name', ['epsilon', 'sensitivity'])
def test_a_figure_is_compared_up_to_rounding(folder, name):
  """The last digits are those of the processor that computed them."""

  def change(factor, statement):
    statement['worst_case'][name] *= factor

  for factor in (1 + 1e-12, 1 - 1e-12):
    edit(folder, 'statement.json', functools.partial(change, factor))
  assert not wrong(folder)
  edit(folder, 'statement.json', functools.partial(change, 1 - 1e-8))
  assert wrong(folder)['statement'].startswith(f'worst_case.{name} is')


def leaves(document):
  """Yields each copy with one leaf deleted, added or edited."""
  if isinstance(document, dict):
    yield {**document, 'note': FORGED}
    for name, value in document.items():
      yield {other: v for other, v in document.items() if other != name}
      yield from ({**document, name: changed} for changed in leaves(value))
  elif isinstance(document, list):
    yield [*document, FORGED]
    for i, value in enumerate(document[:3]):
      yield document[:i] + document[i + 1 :]
      yield from ([*document[:i], changed, *document[i + 1 :]] for changed in leaves(value))
  elif isinstance(document, bool) or document is None:
    yield not document
    yield 'ε = 0.1'
  elif isinstance(document, (int, float)):
    yield from (document + 1, document * 2 + 1, str(document))
  else:
    yield from (f'{document} ε = 0.1', '')


@pytest.mark.slow
def test_every_leaf_of_a_statement_that_is_changed_is_found(written, folder, monkeypatch):
  computed = evidence._replayed(
    [dpftrl.open_run(folder / 'log-1.parquet', STRATEGY)],
    dict(deltas=[1e-6, 1e-9], adjacency='zero_out', group_size=2, disjoint=False, local_ids=False),
    lambda text: None,
  )
  monkeypatch.setattr(evidence, '_replayed', lambda *given: computed)
  document = json.loads((folder / 'statement.json').read_text())
  free = document.pop('asked')  # Other arguments are other replays; a model may be any.
  passed = []
  for changed in leaves(document):
    (folder / 'statement.json').write_text(json.dumps(changed | {'asked': free}))
    seal(folder)
    passed += [] if wrong(folder) else [changed]
  assert not passed


@pytest.mark.parametrize('name', ['epsilon-is-0.1', 'strategy.0123456789abcdef.npz', 'log-2.csv'])
def test_files_that_nothing_names_are_found(folder, name):
  (folder / name).write_text(FORGED)
  assert name in wrong(folder)['files']
  seal(folder)
  assert 'guarantee' in wrong(folder)


@pytest.mark.slow
# Parameters that are numbers, arrays in a file, and another strategy.
@pytest.mark.parametrize('name', ['blt', 'dense', 'stamped'])
def test_evidence_of_families_holds_what_follows(name, tmp_path):
  strategy = every_family.example(name, NUM_ROUNDS)
  own = claim(strategy=strategy, participation=None)
  log = write_log(tmp_path / 'log.parquet', own=own)
  run = opened_runs.RecordedRun.of(participation_log.read_log(log), strategy)
  dpftrl.write_evidence(tmp_path / 'evidence', run, delta=1e-6)
  assert dpftrl.verify(tmp_path / 'evidence').passed
  path = tmp_path / 'evidence' / files.NAME
  path.write_text(path.read_text().replace('"format"', '"note": 1, "format"', 1))
  seal(path.parent)
  assert "the key 'note', which is not known" in wrong(path.parent)['claim']


@made.cases(
  'name, content, told',
  ('SHA256SUMS', f'{"0" * 64}  ../log-1.parquet\n', 'is no digest and name'),
  ('SHA256SUMS', f'{"1" * 64}  claim.json\n' * 2, "line 2: '1111"),
  ('SHA256SUMS', 'x' * 10**6, 'is no digest and name'),
  ('statement.json', '[' * 100_000, 'within each other'),
  ('statement.json', '[]', 'asked must have'),
  ('statement.json', ' ' * 2**24 + '{}', 'more than'),
  ('claim.json', '[' * 100_000, 'within each other'),
  ('claim.json', '{"noise_multiplier": 1e999}', ''),
  ('log-1.parquet', 'PAR1', ''),
  ('strategy.json', '{}', 'strategy file'),
  ids=lambda text: text[:20],
)
def test_hostile_files_are_found_in_one_line(folder, name, content, told):
  (folder / name).write_text(content)
  done = lines.run(['verify', folder])
  assert done.returncode == 4 and told in done.stdout
  *warnings, last = done.stderr.splitlines()
  assert 'the evidence does not fit' in last and all('warning: ' in line for line in warnings)


def test_what_evidence_cannot_hold_is_refused_before_anything_is_written(tmp_path, path):
  log = dpftrl.LogWriter(path, claim())
  log.append(0, ['a'], 86400)
  with pytest.raises(ValueError, match='open it with its own program and close it'):
    dpftrl.write_evidence(tmp_path / 'e', dpftrl.open_run(path, STRATEGY), delta=1e-6)
  log.close()
  run = dpftrl.open_run(path, STRATEGY)
  (tmp_path / 'there').mkdir()
  for name, told in (('there', 'exists already'), ('no/evidence', 'does not exist')):
    with pytest.raises(ValueError, match=told):
      dpftrl.write_evidence(tmp_path / name, run, delta=1e-6)
  assert {p.name for p in tmp_path.iterdir()} == {'log.ledger', 'log.mark', 'log.parquet', 'there'}
