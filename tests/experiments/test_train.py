"""The training command from outside: its flags and what it leaves."""

import csv
import json
import pathlib
import stat
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from experiments.stackoverflow import evaluate
from fl_dpftrl.bundles import verification
from fl_dpftrl.optimization import registry
from fl_dpftrl.simulation import cohorts
from tests import pages
from tests.experiments import starts

pytestmark = [pytest.mark.tff, pytest.mark.slow]

SYNTHETIC = [
  '--flagfile=experiments/stackoverflow/flags/synthetic.flags',
  '--num_rounds=12',
  '--report_goal=10',
  '--noise_multiplier=2',
  '--timer_rounds=5',
  '--rounds_per_evaluation=4',
]


def train(*arguments: str, **kwargs) -> starts.Start:
  start = starts.Start(*arguments, **kwargs)
  start.wait()
  return start


def command(*arguments: str) -> subprocess.CompletedProcess:
  return subprocess.run(
    [*starts.COMMAND, *arguments], cwd=starts.ROOT, capture_output=True, text=True, timeout=300
  )


@pytest.fixture(scope='module')
def run(tmp_path_factory) -> tuple[pathlib.Path, subprocess.CompletedProcess]:
  """A run of the true command line, to its end."""
  folder = tmp_path_factory.mktemp('train') / 'run'
  done = command(*SYNTHETIC, f'--output_dir={folder}')
  assert done.returncode == 0, done.stderr
  return folder, done


def test_leaves_the_files_of_the_contract(run):
  folder, _ = run
  assert {path.name for path in folder.iterdir()} == {
    'accuracy.png',
    'bundle',
    'checkpoints',
    'hparams.json',
    'lock',
    'metrics.csv',
    'model.npz',
    'participation.parquet',
    'privacy.html',
    'privacy.json',
    'strategy.json',
    'summary.json',
    'tensorboard',
  }
  # TensorBoard names a run after the folder of its events.
  (events,) = (folder / 'tensorboard' / folder.name).glob('events.out.tfevents.*')
  assert b'server_learning_rate' in events.read_bytes()  # Of its page HParams.
  assert (folder / 'accuracy.png').read_bytes().startswith(b'\x89PNG')
  assert json.loads((folder / 'hparams.json').read_text())['num_rounds'] == 12


def test_counts_equal_a_recount_of_the_log_by_hand(run):
  folder, _ = run
  log = pq.read_table(folder / 'participation.parquet')
  assert log.schema.metadata[b'num_rounds'] == b'12'
  rounds_of = {}
  for row in log.to_pylist():
    rounds_of.setdefault(row['device_id'], []).append(row['round'])
  separations = [
    later - earlier
    for rounds in rounds_of.values()
    for earlier, later in zip(sorted(rounds), sorted(rounds)[1:])
  ]
  statement = json.loads((folder / 'privacy.json').read_text())
  assert statement['num_rounds'] == 12
  assert statement['num_participations'] == log.num_rows == 12 * 10
  assert statement['num_devices'] == len(rounds_of)
  assert statement['min_sep'] == min(separations) >= 5
  assert statement['max_participations'] == max(map(len, rounds_of.values()))
  assert statement['declared']['holds'] is True


def test_the_bundle_is_verified_and_its_digest_is_told(run):
  folder, done = run
  found = verification.verify(folder / 'bundle')
  assert found.passed, found.checks
  line = next(l for l in done.stdout.splitlines() if l.startswith('  digest, to keep'))
  assert line.split()[-1] == found.digest
  assert (folder / 'bundle').stat().st_mode & 0o777 == 0o700


def test_simulated_days_are_those_of_the_log(run):
  folder, _ = run
  log = pq.read_table(folder / 'participation.parquet').to_pylist()
  closed = {row['round']: row['timestamp'].timestamp() for row in log}
  with (folder / 'metrics.csv').open(newline='') as file:
    rows = [row for row in csv.DictReader(file) if row['simulated_days']]
  assert rows
  for row in rows:
    seconds = closed[int(row['round'])] - cohorts.START
    assert float(row['simulated_days']) == pytest.approx(seconds / 86400, abs=1e-4)


def test_replay_gives_the_figures_of_the_report(run):
  folder, done = run
  line = next(l for l in done.stdout.splitlines() if l.startswith('Check it'))
  words = line.removeprefix('Check it').split()
  assert words[0].endswith('fl-dpftrl') and words[1] == 'replay'
  replay = subprocess.run(
    [sys.executable, '-m', 'fl_dpftrl.commands.main', *words[1:], '--json'],
    cwd=starts.ROOT,
    capture_output=True,
    text=True,
    check=True,
  )
  statement = json.loads((folder / 'privacy.json').read_text())
  assert json.loads(replay.stdout) == statement
  assert statement['worst_case']['epsilon'] > 0
  page = (folder / 'privacy.html').read_text()
  assert repr(statement['worst_case']['epsilon']) in page


def test_summary_and_progress_say_what_matters(run):
  _, done = run
  for words in (
    'unigram baseline',
    'best possible',
    'min-sep b',
    'sensitivity',
    'ρ = ',
    'ε = ',
    'hypothetical deployment',
  ):
    assert words in done.stdout
  assert 'round 12/12' in done.stderr and 'ε so far' in done.stderr
  assert 'Traceback' not in done.stderr and 'tensorflow' not in done.stderr


def check_permissions(folder: pathlib.Path, umask: int) -> None:
  read_by = pages.read_by()
  for path in folder.rglob('*'):
    mode = stat.S_IMODE(path.stat().st_mode)
    top = path.relative_to(folder).parts[0]
    owner = read_by[f'{top}/' if (folder / top).is_dir() else top]
    if path.is_dir():
      assert mode == 0o700, path
    elif owner == 'owner':
      assert mode == 0o600, path
    elif owner == 'umask':
      assert mode == 0o666 & ~umask, path
    else:  # TensorFlow sets no permissions; its folder keeps others out.
      assert owner == 'owner, by the folder'


def test_who_may_read_what_a_run_leaves(run):
  check_permissions(run[0], 0o022)


def test_the_seed_of_the_noise_is_in_the_checkpoints_alone(run):
  folder, done = run
  checkpoints = sorted((folder / 'checkpoints').glob('round-*.npz'))
  assert stat.S_IMODE((folder / 'checkpoints').stat().st_mode) == 0o700
  assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in checkpoints)
  with np.load(checkpoints[-1]) as archive:
    seed = next(
      archive[name]
      for name in archive.files
      if (archive[name].dtype, archive[name].shape) == (np.int64, (2,))
    )
  secrets = [seed.tobytes(), seed.astype('>i8').tobytes()]
  secrets += [str(int(word)).encode() for word in seed]
  assert any(secrets[0] in p.read_bytes() for p in checkpoints)
  elsewhere = [p for p in folder.rglob('*') if p.is_file()]
  elsewhere = [p for p in elsewhere if p.parent.name != 'checkpoints']
  for secret in secrets:
    assert not any(secret in path.read_bytes() for path in elsewhere)
    assert secret not in (done.stdout + done.stderr).encode()


def test_two_runs_without_a_noise_seed_have_different_noise(run, tmp_path):
  folder, _ = run
  again = train(*SYNTHETIC, f'--output_dir={tmp_path / "again"}')
  assert again.returncode == 0, again.err
  logs = [(f / 'participation.parquet').read_bytes() for f in (folder, tmp_path / 'again')]
  tables = [(f / 'metrics.csv').read_text() for f in (folder, tmp_path / 'again')]
  assert logs[0] == logs[1] and tables[0] != tables[1]


def test_a_finished_run_is_reported_again(run):
  folder, done = run
  again = train(*SYNTHETIC, f'--output_dir={folder}', '--resume')
  assert again.returncode == 0, again.err
  assert again.out == done.stdout


def test_a_given_noise_seed_voids_the_guarantee(tmp_path):
  folder = tmp_path / 'run'
  flags = ('--num_rounds=3', '--noise_seed=4711', f'--output_dir={folder}')
  done = train(*SYNTHETIC, *flags, umask=0o077)
  assert done.returncode == 0, done.err
  check_permissions(folder, 0o077)
  assert 'none: the noise seed was given' in done.out
  statement = json.loads((tmp_path / 'run' / 'privacy.json').read_text())
  assert 'noise seed' in statement['void_reason']
  assert not (tmp_path / 'run' / 'bundle').exists()
  assert 'noise seed was given' in (tmp_path / 'run' / 'privacy.html').read_text()
  assert '4711' not in (tmp_path / 'run' / 'hparams.json').read_text()


def test_without_noise_there_is_no_guarantee_and_the_cost_is_shown(run, tmp_path):
  folder, _ = run
  silent = tmp_path / 'silent'
  done = train(*SYNTHETIC, '--noise_multiplier=0', f'--output_dir={silent}')
  assert done.returncode == 0, done.err
  assert 'none: noise is off' in done.out
  statement = json.loads((silent / 'privacy.json').read_text())
  assert statement['worst_case']['epsilon'] is None
  compared = train(*SYNTHETIC, f'--output_dir={folder}', '--resume', f'--compare_with={silent}')
  own, other = (
    json.loads((f / 'summary.json').read_text())['test']['accuracy'] for f in (folder, silent)
  )
  other, own = round(100 * other, 2), round(100 * own, 2)
  assert f'{other:.2f} %: the noise cost {other - own:.2f} points' in compared.out


@pytest.mark.parametrize(
  'arguments, words',
  [
    (['--report_goal=600', '--timer_rounds=1'], ['--report_goal', '500']),
    (['--num_rounds=0'], ['--num_rounds=0', 'at least 1']),
    (['--num_rounds=many'], ['--num_rounds=many']),
    (['--num_round=3'], ['num_round']),
    (['--noise_multiplier=-1'], ['--noise_multiplier=-1']),
    (['--clip_norm=0'], ['--clip_norm=0']),
    (['--timer_hours=5'], ['--timer_rounds', '--timer_hours']),
    (['--mechanism=matrix'], ['--mechanism=matrix', 'blt']),
    (['--strategy=nowhere.json'], ['nowhere.json']),
    (['--mechanism=banded', '--strategy=blt-b400'], ['--mechanism=banded']),
    (['--population=100000'], ['--population=100000', '500']),
    (['--population=40'], ['--timer_rounds=5', '50 devices', '40']),
    (['--dataset=stackoverflow', '--data_dir=nowhere'], ['stackoverflow']),
    (['--delta=1'], ['--delta=1']),
    (['extra'], ['extra']),
    (['--flagfile=nowhere.flags'], ['nowhere.flags']),
  ],
)
def test_bad_flags_get_one_line(tmp_path, arguments, words):
  done = train(*SYNTHETIC, f'--output_dir={tmp_path / "run"}', *arguments)
  lines = [l for l in done.err.splitlines() if l.startswith('train: ')]
  assert done.returncode == 2, done.err
  assert len(lines) == 1 and all(word in lines[0] for word in words)
  assert 'Traceback' not in done.err
  assert not done.out and not (tmp_path / 'run').exists()


def test_flags_are_checked_before_tensorflow_is_loaded(tmp_path):
  program = (
    "import sys; sys.modules['tensorflow'] = sys.modules['tensorflow_federated'] = None;"
    ' from experiments.stackoverflow import train;'
    " train.app.run(train.main, argv=['train', *sys.argv[1:]], flags_parser=train._parse)"
  )
  for flag in ('--num_rounds=0', '--population=100000', '--mechanism=matrix'):
    done = subprocess.run(
      [sys.executable, '-c', program, *SYNTHETIC, f'--output_dir={tmp_path / "run"}', flag],
      cwd=starts.ROOT,
      capture_output=True,
      text=True,
      timeout=60,
    )
    assert done.returncode == 2 and done.stderr.startswith(f'train: {flag}'), done.stderr


def test_summary_holds_what_a_table_needs(run):
  folder, _ = run
  summary = json.loads((folder / 'summary.json').read_text())
  stated = json.loads((folder / 'privacy.json').read_text())
  assert summary['mechanism'] == stated['strategy']['family'] == 'blt'
  assert summary['strategy_digest'] == stated['strategy']['sha256']
  assert (summary['noise_multiplier'], summary['server_learning_rate']) == (2.0, 0.5)
  assert (summary['num_rounds'], summary['num_devices'], summary['seed']) == (12, 500, 0)
  assert summary['epsilon'] == stated['worst_case']['epsilon']
  assert summary['declared'] == stated['declared']
  assert summary['hypothetical_deployment']['epsilon'] < summary['epsilon']
  assert set(summary['validation']) == set(summary['test'])
  assert summary['seconds'] > 0


def test_the_exported_model_is_that_of_the_summary(run, capsys, monkeypatch):
  folder, _ = run
  summary = json.loads((folder / 'summary.json').read_text())
  for split in ('test', 'validation'):
    assert evaluate.evaluate(folder, split)['accuracy'] == summary[split]['accuracy']
  with np.load(folder / 'model.npz') as archive:
    assert sum(archive[name].size for name in archive.files) == summary['num_parameters']
  monkeypatch.setattr(sys, 'argv', ['evaluate', 'nowhere'])
  with pytest.raises(SystemExit) as ended:
    evaluate.main()
  assert ended.value.code == 2 and capsys.readouterr().err.startswith('evaluate: ')


def test_a_run_starts_from_the_weights_of_another(run, tmp_path):
  start = run[0] / 'model.npz'
  folder = tmp_path / 'run'
  done = train(
    *SYNTHETIC,
    '--num_rounds=1',
    '--noise_multiplier=0',
    '--client_optimizer=adamw',
    '--server_optimizer=adam',
    '--client_learning_rate=0.01',
    '--server_learning_rate=0.000001',
    f'--initial_weights={start}',
    f'--output_dir={folder}',
  )
  assert done.returncode == 0, done.err
  summary = json.loads((folder / 'summary.json').read_text())
  assert (summary['client_optimizer'], summary['server_optimizer']) == ('adamw', 'adam')
  with np.load(start) as before, np.load(folder / 'model.npz') as after:
    for name in before.files:
      np.testing.assert_allclose(after[name], before[name], atol=1e-5)
    assert any((after[name] != before[name]).any() for name in before.files)


def test_calibrated_noise_is_that_of_the_first_start(tmp_path):
  folder = tmp_path / 'run'
  flags = [a for a in SYNTHETIC if not a.startswith('--noise')]
  flags = [*flags, '--num_rounds=2', '--strategy=identity', '--epsilon=4']
  done = train(*flags, f'--output_dir={folder}')
  assert done.returncode == 0, done.err
  summary = json.loads((folder / 'summary.json').read_text())
  assert summary['mechanism'] == 'identity'
  assert 3.9 < summary['declared']['epsilon'] <= 4.0
  recorded = json.loads((folder / 'hparams.json').read_text())
  assert recorded['noise_multiplier'] == summary['noise_multiplier']
  again = train(*flags, f'--output_dir={folder}', '--resume')
  assert (again.returncode, again.out) == (0, done.out)
  other = train(*flags, '--epsilon=5', f'--output_dir={folder}', '--resume')
  assert other.returncode == 2 and '--epsilon=5.0 differs' in other.err


def test_a_folder_in_use_is_left_alone(run, tmp_path):
  folder, _ = run
  before = {p: p.read_bytes() for p in folder.rglob('*') if p.is_file()}
  done = train(*SYNTHETIC, f'--output_dir={folder}')
  assert done.returncode == 2 and '--resume' in done.err
  done = train(*SYNTHETIC, f'--output_dir={folder}', '--resume', '--seed=5')
  assert done.returncode == 2 and '--seed=5 differs' in done.err
  (tmp_path / 'thesis.txt').write_text('precious')
  done = train(*SYNTHETIC, f'--output_dir={tmp_path}')
  assert done.returncode == 2 and 'holds other files' in done.err
  assert before == {p: p.read_bytes() for p in folder.rglob('*') if p.is_file()}


def test_help_has_an_example():
  done = command('--help')
  assert done.returncode == 0
  assert '--flagfile=experiments/stackoverflow/flags/docstrings.flags' in (done.stdout)
  assert '--noise_multiplier' in done.stdout
  assert set(registry.OPTIMIZERS) <= set(done.stdout.replace(',', ' ').replace('.', ' ').split())
