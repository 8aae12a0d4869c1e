"""fl-dpftrl replay: what it reads, prints and writes, and its exit statuses."""

import json
import math
import shutil
import types

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.claims import run_claim
from fl_dpftrl.commands import replay_text
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.participation.accounting import arithmetics, gaussian
from fl_dpftrl.participation.rules import sampling
from fl_dpftrl.planning.simulation import partition
from tests import made

COHORTS = ['ac', 'b', '', '', 'a', '', 'b', '', '', 'a', '', '']
GUARANTEE = dpftrl.account('identity', dpftrl.MinSep(2), noise_multiplier=3.0, delta=1e-6)
NOISE = '--strategy=identity --noise_multiplier=3 --delta=1e-6'


@pytest.fixture(name='log')
def fixture_log(tmp_path):
  return made.log(tmp_path / 'log.parquet', COHORTS)


@pytest.fixture
def replayed(run):
  """Replays a log; gives the exit status, stdout and stderr."""
  return lambda log, flags='': run(f'replay --log={log} {NOISE} {flags}')


@pytest.fixture
def stated(replayed):
  """Replays a log; gives the statement."""
  return lambda log, flags='': json.loads(replayed(log, f'{flags} --json')[1])


def test_json_is_all_there_is_on_stdout(log, replayed):
  status, out, err = replayed(log, '--json')
  (warning,) = err.splitlines()
  assert status == 0 and '7 of 12 rounds have no participants' in warning
  found = json.loads(out)
  assert found['worst_case']['epsilon'] == pytest.approx(gaussian.epsilon(math.sqrt(3), 1e-6))
  assert 'declared' not in found


@pytest.mark.parametrize('flag', ['report', 'public_report', 'write_counts', 'registry'])
def test_no_file_that_is_read_or_written_is_replaced(tmp_path, run, flag):
  claim = dpftrl.Claim(strategy='identity', noise_multiplier=3.0, participation=dpftrl.MinSep(9))
  with dpftrl.LogWriter(tmp_path / 'participation.parquet', claim) as written:
    written.append(0, ['a'], 0)
  claim.save(tmp_path)
  kept = {path: path.read_bytes() for path in tmp_path.iterdir()}
  flags = f'--log={tmp_path}/participation.parquet --strategy={tmp_path}/strategy.json'
  for runs in (str(tmp_path), flags):
    ends = 'parquet', 'ledger', 'mark', *['html'] * (runs != flags)  # A folder has one log.
    for name in ('strategy.json', *(f'participation.{end}' for end in ends)):
      status, out, err = run(f'replay {runs} --delta=1e-6 --{flag}={tmp_path / name}')
      assert (status, out) == (2, '') and 'must be another file than those that are read' in err
  both = f'--report={tmp_path / "page"} --{flag}={tmp_path}/./page'
  assert flag == 'report' or run(f'replay {tmp_path} --delta=1e-6 {both}')[0] == 2
  assert {path: path.read_bytes() for path in tmp_path.iterdir()} == kept


@pytest.mark.parametrize('flag', ['log', 'units', 'evidence', 'operator', 'from_counts'])
def test_an_empty_name_is_refused_in_a_line(log, replayed, flag):
  status, out, err = replayed(log, f'--{flag}=')
  assert (status, out, err.count('\n')) == (2, '', 1) and 'unpack' not in err


def test_what_a_population_charged_for_rounding_adds_nothing_more():
  terms = {'rounding': arithmetics.Rounding(chance=1e-9), 'worst_case': GUARANTEE}
  whole = types.SimpleNamespace(planned=types.SimpleNamespace(is_of_population=True), **terms)
  assert 'whose rounding was charged to the budget, and adds' in replay_text.arithmetic(whole)


def test_table_for_people(log, replayed):
  _, out, _ = replayed(log, '--declared_num_rounds=15 --declared_min_sep=4 --delta=1e-9')
  lines = out.splitlines()
  assert "min-sep b           4  (device 'a', rounds 0 and 4)" in lines
  head = next(line for line in lines if 'worst case' in line)
  assert head.split('  ')[-1] == 'declared'
  values = next(line for line in lines if line.startswith('ε at δ = 1e-09'))
  assert len(values.split()) == 5 + 3
  assert 'have ε ≤' in out and 'for the operator' in out and 'VOID' not in out


@pytest.mark.parametrize('name, title', [('participation', 'autumn'), ('log', 'log.parquet')])
def test_a_report_has_the_name_of_its_run(tmp_path, replayed, name, title):
  folder = tmp_path / 'autumn'
  folder.mkdir()
  log = made.log(folder / f'{name}.parquet', COHORTS)
  replayed(log, f'--report={tmp_path / "page.html"}')
  assert f'<h1>Privacy report: {title}</h1>' in (tmp_path / 'page.html').read_text()


def test_a_void_log_is_loud(tmp_path, replayed):
  claim = made.claim('identity', noise_multiplier=3.0, void_reason='the noise seed was given')
  path = made.log(tmp_path / 'log.parquet', COHORTS, metadata=claim.to_metadata())
  status, out, err = replayed(path, '--json')
  assert status == 4
  assert json.loads(out)['void_reason'] == 'the noise seed was given'
  assert 'THE GUARANTEE IS VOID: the noise seed was given' in err
  assert '\nVOID: share of participating devices' in replayed(path)[1]


def test_several_runs(log, tmp_path, run):
  report, folders = tmp_path / 'public.html', []
  claim = run_claim.Claim(strategy='identity', noise_multiplier=3.0)
  for name in 'ab':
    folders.append(tmp_path / name)
    folders[-1].mkdir()
    shutil.copy(log, folders[-1] / 'participation.parquet')
    claim.save(folders[-1])
    files.save_strategy(folders[-1] / 'strategy.json', 'identity', schema=dpftrl.MinSep(12))
  given = ' '.join(map(str, folders))
  status, out, err = run(f'replay {given} --delta=0.4 --json --public_report={report}')
  found = json.loads(out)
  assert (status, len(found['runs'])) == (0, 2)
  assert found['worst_case']['rho'] == pytest.approx(1 / 3)
  assert '--delta=0.4 is not below 1 / 3' in err
  assert 'the log of run 2 is that of run 1, byte for byte' in err
  assert 'run 2' in run(f'replay {given} --delta=1e-6')[1]
  assert 'per_device' not in report.read_text()


BATCHES = '--num_examples=600 --batch_size=25 --num_parts=3 --sampling'


@pytest.fixture(name='drawn', scope='module')
def fixture_drawn(tmp_path_factory):
  """Gives the log of a sampling scheme by the scheme's name."""
  folder = tmp_path_factory.mktemp('logs')
  sizes = dict(num_rounds=90, num_examples=600, batch_size=25, num_parts=3)
  for name, kind in sampling.BATCHES.items():
    cohorts = list(partition.rounds(kind(**sizes), 1))
    made.log(folder / f'{name}.parquet', [cohort.device_ids for cohort in cohorts])
  return lambda name: folder / f'{name}.parquet'


@pytest.mark.parametrize('name', ['poisson', 'fixed_size'])
def test_parts_of_a_log_are_never_guessed(drawn, replayed, name):
  """With one part, as a strategy without bands needs, ε of three would be too small by half."""
  flags = f'--sampling={name} --num_examples=600 --batch_size=25'
  status, _, err = replayed(drawn(name), flags)
  assert status == 2 and '--num_parts is needed: no log shows of how many parts' in err


def test_a_contradiction_is_loud(drawn, tmp_path, replayed):
  page = tmp_path / 'p.html'
  status, out, err = replayed(drawn('poisson'), f'{BATCHES}=fixed_size --report={page}')
  assert status == 4
  line, verdict = err.splitlines()
  assert verdict == 'fl-dpftrl replay: the log contradicts --sampling=fixed_size'
  assert 'THE LOG CONTRADICTS --sampling=fixed_size' in line
  assert 'rounds do not have batch_size=25 examples' in line
  head = next(l for l in out.splitlines() if 'worst case' in l)
  assert head.split('  ')[-1] == 'amplified: VOID'
  value = next(l for l in out.splitlines() if l.startswith('ε at'))
  assert value.split()[-1] == 'unbounded'
  text = page.read_text()
  assert 'The log contradicts the stated sampling' in text
  assert '--sampling=fixed_size --num_examples=600' in text


def test_nothing_of_secret_draws_is_published(drawn, tmp_path, replayed):
  page = tmp_path / 'p.html'
  status, out, err = replayed(drawn('poisson'), f'{BATCHES}=poisson --public_report={page}')
  assert status == 2 and not out and not page.exists()
  assert 'drawn in secret has no public report' in err
  shown = {name: replayed(drawn(name), f'{BATCHES}={name}')[1] for name in ('poisson', 'shuffled')}
  words = 'Quote the worst case to those who may see the log, and to others only amplified'
  assert words in shown['poisson'] and 'Quote the worst case. If' in shown['shuffled']


def test_ids_and_columns_are_described_without_any_id(tmp_path, replayed, stated):
  ids = ['Ann', 'ann', '07x', '7x', 'a-much-longer-one']
  lines = [f'{t},{device},v{t}\n' for t, device in enumerate(ids)]
  path = tmp_path / 'log.csv'
  path.write_text('step,device_id,firmware\n' + ''.join(lines))
  flags = '--num_rounds=5 --columns=round=step'
  _, out, _ = replayed(path, flags)
  assert 'device ids          text of 2 to 17 bytes; 2 differ from another only in case or' in out
  assert "columns not used    'firmware': neither read nor checked" in out
  statement = stated(path, flags)
  assert statement['ids'] == {'is_text': True, 'shortest': 2, 'longest': 17, 'mergeable': 2}
  assert statement['unused_columns'] == ['firmware']
  page = tmp_path / 'public.html'
  replayed(path, f'{flags} --public_report={page}')
  assert not [word for word in ('firmware', '17 bytes') if word in page.read_text()]
  evidence = tmp_path / 'evidence'
  status, _, _ = replayed(path, f'{flags} --evidence={evidence}')
  assert status == 0 and dpftrl.verify(evidence).passed


def test_whole_numbers_are_described_by_their_digits(tmp_path, stated):
  found = stated(made.log(tmp_path / 'log.parquet', [[7], [12345]]))['ids']
  assert found == {'is_text': False, 'shortest': None, 'longest': 5, 'mergeable': 0}
