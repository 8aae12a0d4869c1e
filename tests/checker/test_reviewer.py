"""A reviewer with the checker and a folder of evidence sees whether the folder is honest."""

import hashlib
import json
import shutil
import subprocess
import sys

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.participation.accounting import gaussian
from fl_dpftrl.prove.replaying import certificates
from tests import made
from tests.checker import certified
from tests.commands import lines

M = dpftrl.MinSep
CLAIMS = {
  'one run': [certified.claim(made.BLT, M(60, 6, 5), 4.0, 1000)],
  'an array': [certified.claim(certified.FALLING, M(40, 2, 5))],
  'blocks': [certified.claim(*certified.FAMILIES['stamped blt'])],
  'three runs': [
    certified.claim(made.BLT, M(60, 6, 5), 9.0),
    certified.claim('tree_online', M(64, 8, 4), 20.0),
    certified.claim(made.BLT, dpftrl.LossBudget(squared=7.5), 9.0),
  ],
}


@pytest.fixture(scope='module', name='written')
def fixture_written(tmp_path_factory):
  folder = tmp_path_factory.mktemp('reviewer')
  for name, claims in CLAIMS.items():
    runs = []
    for place, claim in enumerate(claims):
      log = made.ledger(folder / f'{name} {place}.parquet', [['a', 'b'], ['c']], claim)
      runs.append(dpftrl.open_run(log, claim.strategy))
    dpftrl.write_evidence(folder / name, runs, delta=[1e-6, 1e-9])
  shutil.copy(certified.PATH, folder / 'prove.py')
  return folder


def edit(folder, name, change):
  """Changes a file, and writes the digests again, as a forger does."""
  document = json.loads((folder / name).read_text())
  change(document)
  (folder / name).write_text(json.dumps(document, indent=2) + '\n')
  paths = sorted(path for path in folder.iterdir() if path.name != 'SHA256SUMS')
  text = ''.join(f'{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n' for p in paths)
  (folder / 'SHA256SUMS').write_text(text)


def verdict(written, folder):
  """The two commands of a reviewer: status of each, and what the checker prints."""
  sums = subprocess.run(['sha256sum', '--check', '--quiet', 'SHA256SUMS'], cwd=folder)
  command = [sys.executable, '-I', str(written / 'prove.py'), str(folder)]
  done = subprocess.run(command, capture_output=True, encoding='utf-8')
  assert not done.stderr
  return sums.returncode, done.returncode, done.stdout


@pytest.mark.parametrize('name', CLAIMS)
def test_an_honest_folder(name, written):
  assert verdict(written, written / name)[:2] == (0, 0)
  out = verdict(written, written / name)[2]
  assert out.count('declared: proved: ε = ') == 2 and 'not proved: ε' not in out
  assert dpftrl.verify(written / name).passed


def smaller_epsilon(folder):
  """Writes another ε in certificate and statement."""
  small = {'epsilon': 0.5}

  def certificate(document):
    for figure in document['figures']:
      figure['guarantees'][0]['epsilon'] = (0.5).hex()

  def statement(document):
    for part in ('declared', 'worst_case'):
      document[part] |= small
      document[part]['curve'][0] |= small

  edit(folder, 'certificate.json', certificate)
  edit(folder, 'statement.json', statement)


def smaller_participation(folder):
  """Writes an ε of k = 1 in certificate and statement, and leaves the claim."""
  entry = {}

  def certificate(document):
    entry.update(certified.figure(document)['participations'][0])
    for figure in document['figures']:
      figure['participations'][0]['max_participations'] = 1

  edit(folder, 'certificate.json', certificate)


def other_kind(folder):
  """Says that a gate kept a small budget, where the claim has a schema."""

  def certificate(document):
    entry = certified.figure(document)['participations'][0]
    rounding, rows = entry['rounding'], entry['noise_rows']
    entry.clear()
    entry |= {'kind': 'loss_budget', 'squared': (0.1).hex()}
    entry |= {'rounding': rounding, 'noise_rows': rows}

  edit(folder, 'certificate.json', certificate)


def fewer_runs(folder):
  """Leaves out a run of the statement."""

  def statement(document):
    document['runs'] = [dict(document, runs=None) for _ in range(2)]

  for name in ('claim.json', 'strategy.json'):
    shutil.copy(folder / name, folder / f'run-1-{name}')
  edit(folder, 'statement.json', statement)


def more_noise(name):
  def change(document):
    runs = document.get('runs', [document])
    runs[0]['noise_multiplier'] = (8.0).hex() if name == 'certificate.json' else 8.0

  return lambda folder: edit(folder, name, change)


def other_strategy(name):
  def change(document):
    if name == 'certificate.json':
      document['runs'][0]['strategy']['output_scale'] = [(0.1).hex(), (0.1).hex()]
    else:
      document['parameters']['output_scale'] = [0.1, 0.1]

  return lambda folder: edit(folder, name, change)


def other_terms(**values):
  return lambda folder: edit(folder, 'certificate.json', lambda d: d.update(values))


DISHONEST = {
  'a smaller ε': (smaller_epsilon, 'not proved: ε = 0.5'),
  'fewer participations': (smaller_participation, 'participation of declared differs'),
  "the claim's noise": (more_noise('claim.json'), 'noise_multiplier of claim.json differs'),
  "the certificate's noise": (
    more_noise('certificate.json'),
    'noise_multiplier of claim.json differs',
  ),
  "the file's strategy": (other_strategy('strategy.json'), 'strategy.json differs'),
  "the certificate's strategy": (
    other_strategy('certificate.json'),
    'strategy of claim.json differs',
  ),
  'no certificate': (lambda folder: (folder / 'certificate.json').unlink(), 'FileNotFound'),
  'another group': (other_terms(group_size=2), 'group_size of statement.json differs'),
  'disjoint runs': (other_terms(disjoint=True), 'disjoint of statement.json differs'),
  'a budget in place of a schema': (lambda folder: other_kind(folder), 'participation of declared'),
  'another run that is left out': (lambda folder: fewer_runs(folder), 'number of runs'),
  'fewer coordinates': (other_terms(num_coordinates=10), 'num_coordinates of statement.json'),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', DISHONEST)
def test_a_dishonest_folder(name, written, tmp_path):
  change, words = DISHONEST[name]
  folder = shutil.copytree(written / 'one run', tmp_path / 'folder')
  change(folder)
  sums, proof, out = verdict(written, folder)
  assert proof == 4 and words in out, out
  assert (sums == 0) == (name != 'no certificate')
  failed = dpftrl.verify(folder).failed
  assert {'certificate', 'claim', 'statement'} & set(failed), failed


@pytest.mark.slow
def test_a_claim_that_all_files_but_the_log_agree_on_is_for_verify(written, tmp_path):
  folder = shutil.copytree(written / 'an array', tmp_path / 'folder')
  edit(folder, 'claim.json', lambda document: document.update(noise_multiplier=8.0))
  stated = json.loads((folder / 'statement.json').read_text())

  def epsilon(name, delta):
    return gaussian.epsilon(8.0 / stated[name]['sensitivity'], delta)

  def statement(document):
    for name in ('declared', 'worst_case'):
      curve = [{'delta': d, 'epsilon': epsilon(name, d)} for d in (1e-6, 1e-9)]
      document[name] |= {'epsilon': curve[0]['epsilon'], 'curve': curve}

  def certificate(document):
    document['runs'][0]['noise_multiplier'] = (8.0).hex()
    for figure in document['figures']:
      for point in figure['guarantees']:
        point['epsilon'] = epsilon(figure['name'], float.fromhex(point['delta'])).hex()

  edit(folder, 'statement.json', statement)
  edit(folder, 'certificate.json', certificate)
  assert verdict(written, folder)[:2] == (0, 0)
  assert 'claim' in dpftrl.verify(folder).failed


def test_the_command(written, tmp_path):
  path = written / 'one run' / 'certificate.json'
  done = lines.run(['prove', path, written / 'blocks'])
  assert done.returncode == 0 and done.stdout.count('declared: proved: ε = ') == 4
  result = json.loads(lines.run(['prove', path, '--json']).stdout)
  assert result['proved'] and result['lines'][0] == str(path)
  wrong = tmp_path / 'wrong.json'
  wrong.write_text(path.read_text().replace('"version": 1', '"version": 2'))
  done = lines.run(['prove', wrong])
  assert done.returncode == 4 and 'not a certificate of version 1' in done.stdout
  assert done.stderr.splitlines() == ['fl-dpftrl prove: not all figures are proved']
  done = lines.run(['prove', tmp_path / 'absent'])
  assert done.returncode == 2 and 'absent' in done.stderr and len(done.stderr.splitlines()) == 1


def test_verify_names_the_figures_without_a_proof(written):
  checks = {check.name: check for check in dpftrl.verify(written / 'one run').checks}
  assert 'not proved: observed: it follows from the rows' in checks['proof'].detail
  statement = json.loads((written / 'one run' / 'statement.json').read_text())
  assert [line.split(':')[0] for line in statement['not_proved']] == ['observed']


@pytest.mark.slow
@pytest.mark.parametrize('failure', ['missing', 'endless', 'crash'])
def test_a_checker_that_fails_proves_nothing(failure, written, monkeypatch, tmp_path):
  path = tmp_path / 'checker' / 'prove.py'
  path.parent.mkdir()
  (tmp_path / 'fl_dpftrl').mkdir()
  if failure != 'missing':
    path.write_text({'endless': 'while True: pass', 'crash': '1 / 0'}[failure])
  monkeypatch.setattr(certificates.fl_dpftrl, '__file__', str(tmp_path / 'fl_dpftrl' / 'x.py'))
  monkeypatch.setattr(certificates, '_SECONDS', 1)
  certificates.proof_of.cache_clear()
  checks = {check.name: check for check in dpftrl.verify(written / 'one run').checks}
  certificates.proof_of.cache_clear()
  assert checks['proof'].found and checks['certificate'].found and checks['guarantee'].found
