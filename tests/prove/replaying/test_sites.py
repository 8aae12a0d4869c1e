"""Sites that each train over people of their own, and one statement of all of them."""

import json
import math

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import refusals
from fl_dpftrl.prove.reports import privacy, settings
from tests import made
from tests.commands import lines

BLT = dpftrl.BLT([0.7], [0.5])
DELTA = 1e-6


def site(folder, ids, noise_multiplier, seed, num_rounds=10):
  """Trains a site over its patients, and returns its folder."""
  generator = np.random.default_rng(seed)
  options = dict(noise_multiplier=noise_multiplier, report_goal=1)
  options['participation'] = dpftrl.MinSep(num_rounds, 2, 3)
  with made.aggregator(folder, BLT, **options) as aggregator:
    for _ in range(num_rounds):
      admitted = aggregator.admissible(generator.permutation(ids)[:3])
      if len(admitted):
        with aggregator.round(admitted) as round_:
          round_.add(np.ones(3))
  return folder


def test_sites_with_logs_of_other_systems(tmp_path):
  claim = dpftrl.Claim(strategy='identity', noise_multiplier=4.0, clip_norm=1.0)
  folders = [tmp_path / 'one', tmp_path / 'two']
  for folder in folders:
    folder.mkdir()
    claim.save(str(folder))
    rows = ''.join(f'{t},{folder.name},x\n' for t in range(2))
    (folder / 'participation.csv').write_text(f'step,user,model\n{rows}')
  columns = 'round=step,device_id=user'
  flags = ['--num_rounds=3', f'--columns={columns}', '--sites=disjoint', f'--delta={DELTA}']
  done = lines.run(['replay', *map(str, folders), *flags])
  out, err = done.stdout, done.stderr
  assert done.returncode == 0 and out.count('run 1: ') == out.count('run 2: ') == 1  # Columns.
  each = [dpftrl.open_run(f, columns=columns, num_rounds=3) for f in folders]
  expected = dpftrl.replay(each, delta=DELTA, disjoint=True)
  assert 'rounds n            6' in out and err.splitlines() == [
    f'fl-dpftrl: warning: {warning}' for warning in expected.warnings
  ]
  begins = [warning[:7] for warning in expected.warnings]
  assert begins == ['run 1: ', 'run 2: ']  # Two rounds without anybody.


@pytest.fixture(name='sites')
def fixture_sites(tmp_path):
  noises = [(range(9), 4.0), (range(9, 14), 2.5), (range(14, 30), 6.0)]
  return [site(tmp_path / f'site{i}', [*ids], z, i) for i, (ids, z) in enumerate(noises)]


def test_disjoint_sites_have_the_loss_of_the_costliest_one(sites):
  each = [dpftrl.replay(folder, delta=DELTA) for folder in sites]
  together = dpftrl.replay(sites, delta=DELTA, disjoint=True)
  for name in ('worst_case', 'declared', 'observed'):
    single = max(statement.part(name).guarantee.epsilon() for statement in each)
    assert together.part(name).guarantee.epsilon() == pytest.approx(single, rel=1e-6)
    assert together.part(name).guarantee.epsilon() >= single * (1 - 1e-12)
  assert together.observed.epsilon() <= together.worst_case.epsilon()
  page = privacy.report(together, settings.Setting())
  assert 'those of the costliest of these runs' in page and 'ρ adds up' not in page
  words = ' '.join(page.split())
  assert 'all declared rounds of the costliest run, as every device is in one of them only' in words
  for part in together.parts:  # The page says that all are in units of the largest noise.
    assert part.guarantee.noise_multiplier == 6.0
  assert 'runs together,' not in words and '3 runs, of which every device is in one only.' in words
  assert together.disjoint and together.to_json()['disjoint']
  assert 'every device is in one of the runs only' in ' '.join(together.assumptions)


def test_shared_sites_add_up(sites):
  each = [dpftrl.replay(folder, delta=DELTA).worst_case for folder in sites]
  together = dpftrl.replay(sites, delta=DELTA)
  square = sum(guarantee.mu**2 for guarantee in each)
  assert together.worst_case.mu == pytest.approx(math.sqrt(square), rel=1e-6)
  assert 'disjoint' not in together.to_json()


def test_a_patient_of_two_sites_refutes_that_they_are_disjoint(sites, tmp_path):
  other = site(tmp_path / 'other', [0, 40, 41, 42], 4.0, 7)
  for order in ([sites[0], other], [other, *sites]):
    with pytest.raises(
      refusals.LogError, match='disjoint: at least one device is in the logs of several runs'
    ):
      dpftrl.replay(order, delta=DELTA, disjoint=True)


def test_evidence_and_command_of_sites(sites, tmp_path):
  runs = [dpftrl.open_run(folder) for folder in sites]
  dpftrl.write_evidence(tmp_path / 'evidence', runs, delta=DELTA, disjoint=True)
  result = dpftrl.verify(tmp_path / 'evidence')
  assert result.passed and result.statement.disjoint
  flags = ['--sites=disjoint', '--delta=1e-6']
  done = lines.run(['replay', *map(str, sites), *flags])
  assert done.returncode == 0 and 'in one of the runs only' in done.stdout
  done = lines.run(['replay', str(sites[0]), *flags])
  assert done.returncode == 2
  assert '--sites=disjoint is for the folders of several runs' in done.stderr


@pytest.fixture(name='numbered', scope='module')
def fixture_numbered(tmp_path_factory):
  """Sites whose patients are numbered from 0 at each, and in one of which numbers are text."""
  parent = tmp_path_factory.mktemp('numbered')
  ids = [*range(9)], [*range(5)], [f'{i}' for i in range(6)]
  return [site(parent / f'{i}', own, 4.0 + i, i) for i, own in enumerate(ids)]


def test_patients_that_each_site_numbers_by_itself_may_be_said_to_be_local(numbered, tmp_path):
  for folders in (numbered[:2], numbered[::2]):
    with pytest.raises(refusals.LogError, match='is in the logs of several runs|of another type'):
      dpftrl.replay(folders, delta=DELTA, disjoint=True)
  with pytest.raises(ValueError, match='local_ids is for disjoint runs'):
    dpftrl.replay(numbered, delta=DELTA, local_ids=True)
  each = [dpftrl.replay(folder, delta=DELTA) for folder in numbered]
  together = dpftrl.replay(numbered, delta=DELTA, disjoint=True, local_ids=True)
  assert together.num_devices == sum(statement.num_devices for statement in each) == 20
  for name in ('worst_case', 'declared', 'observed'):
    single = max(statement.part(name).guarantee.epsilon() for statement in each)
    assert together.part(name).guarantee.epsilon() == pytest.approx(single, rel=1e-6)
  assert 'each run has ids of its own, by which nothing can be seen' in str(together.assumptions)
  assert together.to_json()['local_ids']
  runs = [dpftrl.open_run(folder) for folder in numbered]
  options = dict(delta=DELTA, disjoint=True, local_ids=True)
  dpftrl.write_evidence(tmp_path / 'evidence', runs, **options)
  assert dpftrl.verify(tmp_path / 'evidence').passed
  done = lines.run(['replay', *map(str, numbered), '--sites=local', f'--delta={DELTA}'])
  assert done.returncode == 0 and 'each run has ids of its own' in done.stdout


def test_spellings_are_of_one_site(tmp_path):
  """Two at one site are refused or counted as before; those of two sites are not."""
  claim, folders = dpftrl.Claim(strategy='identity', noise_multiplier=4.0, clip_norm=1.0), []
  for name, ids in (('a', ('7', 'x')), ('b', ('x', 'X')), ('c', ('07', '7'))):
    folders.append(tmp_path / name)
    folders[-1].mkdir()
    claim.save(folders[-1])
    rows = ''.join(f'{t},{device}\n' for t, device in enumerate(ids))
    (folders[-1] / 'participation.csv').write_text(f'round,device_id\n{rows}')
  options = dict(delta=DELTA, disjoint=True, local_ids=True)
  assert dpftrl.replay(folders[:2], **options).tally.mergeable == 1
  with pytest.raises(refusals.LogError, match='a number that is an id too'):
    dpftrl.replay(folders, **options)


def test_each_site_may_have_a_table_of_units_of_its_own(tmp_path):
  folders, flags = [tmp_path / 'a', tmp_path / 'b'], []
  for folder in folders:
    table = tmp_path / f'{folder.name}.csv'
    table.write_text('device_id,unit_id,from_round\n0,ann,0\n1,ann,0\n2,bob,0\n')
    schema = dpftrl.PerUnit(dpftrl.MinSep(10, 2, 3), max_rows=2, name='patient')
    options = dict(report_goal=1, participation=schema, units=table)
    with made.aggregator(folder, BLT, **options) as aggregator:
      for ids in (['0', '1'], ['2']):
        with aggregator.round(ids) as round_:
          round_.add(np.ones(3))
    flags.append(f'--units={table}')
    with table.open('a') as file:  # Tables of sites differ.
      file.write(f'{len(folder.name) + 9},cid,2\n')
  (tmp_path / 'b.csv').write_text((tmp_path / 'b.csv').read_text().replace('cid', 'dan'))
  command = ['replay', *map(str, folders), f'--delta={DELTA}']
  done = lines.run([*command, *flags, '--sites=local', '--json'])
  assert done.returncode == 0, done.stderr
  figures = json.loads(done.stdout)
  one = dpftrl.open_run(folders[0], units=str(tmp_path / 'a.csv'))
  epsilon = dpftrl.replay(one, delta=DELTA).observed.epsilon()
  assert figures['declared']['holds'] and figures['local_ids']
  assert figures['observed']['epsilon'] == pytest.approx(epsilon, rel=1e-6)
  done = lines.run([*command, *flags, flags[0], '--sites=disjoint'])
  assert done.returncode == 2 and '--units must be one table for all 2 folders' in done.stderr


def summed_noise(folder, cohort, seed):
  """Returns the noise in the sums of the means that a site released, shape [rounds, size]."""
  means, updates = [], np.zeros((cohort, 4000), np.float32)
  options = dict(template=updates[0], report_goal=cohort, noise_seed=seed)
  with made.aggregator(folder, BLT, **options) as aggregator:
    for _ in range(6):
      with aggregator.round(range(cohort)) as round_:
        round_.add_batch(updates)
      means.append(round_.mean)
  return np.cumsum(means, axis=0)


@pytest.mark.parametrize(
  'num_sites', [2, 4, *(pytest.param(n, marks=pytest.mark.slow) for n in (8, 16))]
)
def test_sites_add_the_square_root_of_their_number_times_the_noise_of_one(tmp_path, num_sites):
  one = summed_noise(tmp_path / 'server', 32, seed=100).std()
  sites = [summed_noise(tmp_path / f'{i}', 32 // num_sites, seed=i) for i in range(num_sites)]
  assert np.mean(sites, axis=0).std() / one == pytest.approx(math.sqrt(num_sites), rel=0.03)
