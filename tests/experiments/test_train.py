"""The training command from outside: its flags and what it leaves."""

import dataclasses
import json
import pathlib
import shutil
import stat
import sys
import types

import numpy as np
import pyarrow.parquet as pq
import pytest

from experiments.stackoverflow import configuration, evaluate
from experiments.stackoverflow import train as command
from fl_dpftrl.commands import main
from fl_dpftrl.prove.replaying import certificates, evidence, opened_runs
from fl_dpftrl.support.files import durable
from tests import made, pages
from tests.experiments import runs, starts

pytestmark = [pytest.mark.tff, pytest.mark.slow]

SYNTHETIC = runs.GUARANTEED


def train(*arguments: str, **kwargs) -> starts.Start:
  start = starts.Start(*arguments, **kwargs)
  start.wait()
  return start


def test_leaves_the_files_of_the_contract(guaranteed):
  folder = guaranteed.folder
  assert {path.name for path in folder.iterdir()} == {
    'README.md',
    'accuracy.png',
    'checkpoints',
    'claim.json',
    'hparams.json',
    'lock',
    'metrics.csv',
    'model.npz',
    'participation.ledger',
    'participation.mark',
    'participation.parquet',
    'privacy.html',
    'privacy.json',
    'registry.json',
    'strategy.json',
    'summary.json',
    'tensorboard',
  }
  # TensorBoard names a run after the folder of its events.
  (events,) = (folder / 'tensorboard' / folder.name).glob('events.out.tfevents.*')
  assert b'server_learning_rate' in events.read_bytes()  # Of its page HParams.
  assert (folder / 'accuracy.png').read_bytes().startswith(b'\x89PNG')
  assert runs.read(folder, 'hparams.json')['num_rounds'] == 12


def test_evidence_of_its_folder_is_verified(guaranteed, tmp_path):
  run = opened_runs.open_run(guaranteed.folder)
  model = guaranteed.folder / 'model.npz'
  digest = evidence.write_evidence(tmp_path / 'evidence', run, delta=1e-6, model=model)
  found = evidence.verify(tmp_path / 'evidence', model=model)
  assert found.passed and found.digest == digest, found.checks
  assert certificates.prove([tmp_path / 'evidence'])[0]
  stored = json.loads((tmp_path / 'evidence' / certificates.NAME).read_text())
  assert [figure['name'] for figure in stored['figures']] == ['worst_case', 'declared']


def test_replay_gives_the_figures_of_the_report(guaranteed, capsys, monkeypatch):
  folder, out, _ = guaranteed
  line = next(l for l in out.splitlines() if l.startswith('Check it'))
  words = line.removeprefix('Check it').split()
  assert words[0].endswith('fl-dpftrl') and words[1] == 'replay'
  assert folder.is_absolute() and all(  # Paths of one kind.
    pathlib.Path(word.partition('=')[2] or word).is_absolute() for word in (words[0], words[2])
  )
  monkeypatch.chdir(starts.ROOT)
  main.main([*words[1:], '--json'])
  statement = runs.read(folder, 'privacy.json')
  assert json.loads(capsys.readouterr().out) == statement
  assert statement['worst_case']['epsilon'] > 0
  page = (folder / 'privacy.html').read_text()
  assert repr(statement['worst_case']['epsilon']) in page


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


def test_who_may_read_what_a_run_leaves(guaranteed):
  check_permissions(guaranteed.folder, 0o022)


def noise_seed(folder: pathlib.Path) -> np.ndarray:
  return runs.noise_state(folder)[0]


def test_the_seed_of_the_noise_is_in_the_checkpoints_alone(guaranteed):
  folder, out, err = guaranteed
  checkpoints = sorted((folder / 'checkpoints').glob('round-*.npz'))
  assert stat.S_IMODE((folder / 'checkpoints').stat().st_mode) == 0o700
  assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in checkpoints)
  seed = noise_seed(folder)
  secrets = [seed.tobytes(), seed.astype('>i8').tobytes()]
  secrets += [str(int(word)).encode() for word in seed]
  assert any(secrets[0] in p.read_bytes() for p in checkpoints)
  elsewhere = [p for p in folder.rglob('*') if p.is_file()]
  elsewhere = [p for p in elsewhere if p.parent.name != 'checkpoints']
  for secret in secrets:
    assert not any(secret in path.read_bytes() for path in elsewhere)
    assert secret not in (out + err).encode()


def test_without_noise_there_is_no_guarantee_and_the_cost_is_shown(guaranteed, tmp_path):
  folder = shutil.copytree(guaranteed.folder, tmp_path / 'run')
  silent = tmp_path / 'silent'
  done = train(*SYNTHETIC, '--noise_multiplier=0', f'--output_dir={silent}')
  assert done.returncode == 0, done.err
  assert 'none: noise is off' in done.out
  assert runs.read(silent, 'privacy.json')['worst_case']['epsilon'] is None
  # Data and cohorts are those of --seed, and the noise is not.
  logs = [pq.read_table(f / 'participation.parquet').to_pydict() for f in (folder, silent)]
  assert logs[0] == logs[1]
  compared = train(*SYNTHETIC, f'--output_dir={folder}', '--resume', f'--compare_with={silent}')
  own, other = (runs.read(f, 'summary.json')['test']['accuracy'] for f in (folder, silent))
  other, own = round(100 * other, 2), round(100 * own, 2)
  cost = f'{other:.2f} %: the noise cost {other - own:.2f} points'
  assert cost in compared.out
  # Apart from that, a finished run is reported again as it was.
  before = guaranteed.out.replace(str(guaranteed.folder), str(folder)).splitlines()
  differing = [l for l in compared.out.splitlines() if l not in before and 'digest' not in l]
  assert len(differing) == 1 and cost in differing[0]


@made.cases(
  'arguments, words',
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
  (['--actors=3'], ['--actors is for the Ray cluster that --machines names']),
  (['--noise_machines=-1'], ['--noise_machines=-1 must be at least 0']),
  (['--machines=auto', '--max_concurrent_clients=2'], ['give --clients_per_actor']),
  (['--flagfile=nowhere.flags'], ['nowhere.flags']),
  (['--dataset=TEXTS'], ['names of clients: at 3, device_id is not in Unicode normal form C']),
)
def test_bad_flags_get_one_line(tmp_path, arguments, words, capsys):
  for name in ('a', 'b', 'c', 'e\u0301'):  # As archives from macOS have it.
    (tmp_path / f'{name}.txt').write_text('Hello world.')
  arguments = [argument.replace('TEXTS', str(tmp_path)) for argument in arguments]
  line = runs.refused(capsys, *SYNTHETIC, f'--output_dir={tmp_path / "run"}', *arguments)
  assert all(word in line for word in words) and not (tmp_path / 'run').exists()


def test_the_exported_model_is_that_of_the_summary(guaranteed, capsys, monkeypatch):
  folder = guaranteed.folder
  summary = runs.read(folder, 'summary.json')
  for split in ('test', 'validation'):
    assert evaluate.evaluate(folder, split)['accuracy'] == summary[split]['accuracy']
  with np.load(folder / 'model.npz') as archive:
    assert sum(archive[name].size for name in archive.files) == summary['num_parameters']
  monkeypatch.setattr(sys, 'argv', ['evaluate', 'nowhere'])
  with pytest.raises(SystemExit) as ended:
    evaluate.main()
  assert ended.value.code == 2 and capsys.readouterr().err.startswith('evaluate: ')


@pytest.fixture(name='calibrated', scope='module')
def fixture_calibrated(
  guaranteed, tmp_path_factory
) -> tuple[pathlib.Path, list[str], starts.Start]:
  """A run of two starts, its flags, and the first start, which ended on a full disk."""
  folder = tmp_path_factory.mktemp('calibrated') / 'run'
  flags = [a for a in SYNTHETIC if not a.startswith('--noise')]
  flags += ['--num_rounds=2', '--strategy=identity', '--epsilon=4']
  flags += ['--client_optimizer=adamw', '--client_learning_rate=0.01']
  flags += ['--server_optimizer=adam', '--server_learning_rate=0.000001']
  flags += [f'--initial_weights={guaranteed.folder / "model.npz"}']
  start = lambda **limit: train(*flags, f'--output_dir={folder}', '--resume', umask=0o077, **limit)
  full = start(largest_file=20_000)
  assert not list(folder.rglob(f'{durable.TEMPORARY_PREFIX}*'))
  done = start()
  assert done.returncode == 0, done.err
  return folder, flags, full


def test_a_full_disk_is_one_line_that_names_the_file(calibrated):
  folder, _, full = calibrated
  last = full.err.strip().splitlines()[-1]
  assert full.returncode == 1 and last.startswith('train: ') and str(folder) in last


def test_it_says_where_clients_train(calibrated):
  assert 'clients train in this process, on ' in calibrated[2].err


def test_a_run_starts_from_the_weights_of_another(guaranteed, calibrated):
  folder, *_ = calibrated
  summary = runs.read(folder, 'summary.json')
  assert (summary['client_optimizer'], summary['server_optimizer']) == ('adamw', 'adam')
  models = [np.load(f / 'model.npz') for f in (guaranteed.folder, folder)]
  before, after = ([model[name] for name in models[0].files] for model in models)
  for one, other in zip(before, after, strict=True):
    np.testing.assert_allclose(one, other, atol=1e-5)
  assert any((one != other).any() for one, other in zip(before, after))


def test_calibrated_noise_is_that_of_the_first_start(guaranteed, calibrated, monkeypatch):
  folder, flags, _ = calibrated
  check_permissions(folder, 0o077)
  assert (noise_seed(folder) != noise_seed(guaranteed.folder)).all()  # Each start draws one.
  summary = runs.read(folder, 'summary.json')
  assert summary['mechanism'] == 'identity'
  assert 3.9 < summary['declared']['epsilon'] <= 4.0
  recorded = runs.read(folder, 'hparams.json')
  assert recorded['noise_multiplier'] == summary['noise_multiplier']
  hparams = configuration.from_arguments(flags)
  resume = types.SimpleNamespace(value=False)
  monkeypatch.setattr(command, '_RESUME', resume)
  with pytest.raises(ValueError, match='holds a run; name another folder, or go on with --resume'):
    command._check_folder(folder, hparams)
  resume.value = True
  again = command._check_folder(folder, hparams)
  assert hparams.noise_multiplier is None
  assert again.noise_multiplier == recorded['noise_multiplier']
  with pytest.raises(ValueError, match='--epsilon=5.0 differs'):
    command._check_folder(folder, dataclasses.replace(hparams, epsilon=5.0))


def test_a_folder_in_use_is_left_alone(guaranteed, tmp_path, capsys):
  folder = guaranteed.folder
  before = {p: p.read_bytes() for p in folder.rglob('*') if p.is_file()}
  command = [*SYNTHETIC, f'--output_dir={folder}']
  assert '--resume' in runs.refused(capsys, *command)
  assert '--seed=5 differs' in runs.refused(capsys, *command, '--resume', '--seed=5')
  with durable.locked(folder / 'lock'):  # As another start has it before it writes anything.
    line = runs.refused(capsys, *command, '--resume')
  assert f'{folder / "lock"} is held by another process' in line
  (tmp_path / 'thesis.txt').write_text('precious')
  line = runs.refused(capsys, *SYNTHETIC, f'--output_dir={tmp_path}')
  assert 'holds other files' in line
  assert before == {p: p.read_bytes() for p in folder.rglob('*') if p.is_file()}


def test_a_start_whose_folder_was_removed_leaves_the_next_start_alone(tmp_path):
  folder = tmp_path / 'run'
  with command._held(folder) as is_ours:
    with command._own_temporary_folder(folder, is_ours):
      folder.rename(tmp_path / 'removed')
      folder.mkdir()
      with durable.locked(folder / 'lock'):  # Of a start that has written nothing else yet.
        (folder / command.TEMPORARY_NAME).mkdir()
  assert {path.name for path in folder.iterdir()} == {'lock', command.TEMPORARY_NAME}
