"""The programs of examples/ for any loop, small: they run, go on, and their logs prove ε.

Those of libraries that are not installed here are run by `make test-adapters`.
"""

import csv
import functools
import importlib.util
import json
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.support.files import mark
from tests import pages

EXAMPLES = pathlib.Path(__file__).parents[2] / 'examples'


def program(name, monkeypatch, **changes):
  spec = importlib.util.spec_from_file_location(name, EXAMPLES / f'{name}.py')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  for key, value in changes.items():
    monkeypatch.setattr(module, key, value)
  return module


def opened(folder):
  return dpftrl.open_run(folder / 'participation.parquet', folder / 'strategy.json')


def proven(folder, delta=1e-6):
  statement = dpftrl.replay(opened(folder), delta=delta)
  assert statement.arithmetic.kind == 'covered' and statement.declared.holds
  return statement


@pytest.mark.slow
def test_the_programs_of_the_page_run(monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  names = {}
  for text in pages.programs('any-loop.md'):
    exec(compile(text, 'any-loop.md', 'exec'), names)
  assert names['aggregator'].next_round == 60 and names['noise'].shape == (20,)
  assert dpftrl.verify('evidence').digest == names['digest']
  pathlib.Path('weights.npy').unlink()
  (whole,) = [text for text in pages.programs('any-loop.md') if 'require_new' in text]
  with pytest.raises(mark.LostStateError, match='has 60 rounds'):
    exec(whole, names)
  names['aggregator'].close()


def test_the_programs_that_write_a_log_run(monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  programs = [text for text in pages.programs('write-the-log.md') if 'process' not in text]
  assert len(programs) == 2
  names = {}
  for program in programs:
    exec(compile(program, 'write-the-log.md', 'exec'), names)
  assert names['round_'].device_ids.tolist() == ['a', 'b']
  names['run'].close()
  for run in (dpftrl.open_run('participation.parquet', 'blt-b400'), 'guarded'):
    statement = dpftrl.replay(run, delta=1e-10)
    assert statement.void_reason is None
  assert statement.worst_case.epsilon() <= 8.0


# name: library, the function that is interrupted, its calls before that, the word before the
# measure of a printed line, and the measure after the last round.
PROGRAMS = {
  'any_loop': (None, 'update_of', 244, 'model ', lambda first, last: last < 0.7 * first),
  'pytorch_loop': ('torch', 'update_of', 164, 'accuracy ', lambda first, last: last > 55.0),
  'jax_optax': ('optax', 'update_of', 264, 'distance ', lambda first, last: last < 0.7 * first),
  'peft_adapters': ('peft', 'batches_of', 264, 'loss ', lambda first, last: last < first - 0.2),
  'pfl_mechanism': ('pfl', 'dataset_of', 264, 'distance ', lambda first, last: last < 1.0),
}


@pytest.mark.parametrize('name', PROGRAMS)
def test_federated_averaging_lowers_the_loss_and_goes_on(name, monkeypatch, tmp_path, capsys):
  library, function, num_calls, word, has_learnt = PROGRAMS[name]
  if library is not None:
    pytest.importorskip(library)
  module = program(name, monkeypatch)
  monkeypatch.setattr(module, 'ROUNDS', 30, raising=False)
  monkeypatch.setattr(module, 'SCHEMA', dpftrl.MinSep(num_rounds=30, min_sep=10))
  folder = tmp_path / 'run'
  call, calls = getattr(module, function), []

  def interrupted(*arguments):
    calls.append(1)
    if len(calls) == num_calls + 1:
      raise InterruptedError
    return call(*arguments)

  monkeypatch.setattr(module, function, interrupted)
  with pytest.raises(InterruptedError):
    module.main(folder)
  assert len(list(folder.glob('model*'))) == 1
  module.main(folder)
  statement = proven(folder)
  assert statement.num_rounds == 30 and statement.min_sep >= 10
  lines = capsys.readouterr().out.splitlines()
  measure = lambda line: float(line.split(word)[1].split()[0].rstrip(','))
  assert has_learnt(measure(lines[0]), measure(lines[-1]))
  assert str(statement.worst_case) in lines[-1]


@pytest.mark.parametrize(
  'name, library, delta', [('flower_strategy', 'flwr', 1e-6), ('opacus_optimizer', 'opacus', 1e-5)]
)
def test_programs_of_libraries_run_and_then_find_nothing_left(name, library, delta, tmp_path):
  pytest.importorskip(library)
  folder = tmp_path / 'run'
  command = [sys.executable, EXAMPLES / f'{name}.py', folder]
  for _ in range(2):
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(proven(folder, delta).worst_case) in done.stdout


CENTRAL = ['--epsilon=8', '--bands=4', '--num_rounds=40', '--batch_size=150']


@pytest.mark.slow
def test_central_training_has_the_amplified_guarantee_and_goes_on(monkeypatch, tmp_path, capsys):
  pytest.importorskip('jax')
  module = program('central', monkeypatch)
  folder = tmp_path / 'run'
  save, saved = module.save, []

  def killed(*arguments):
    saved.append(arguments)
    if len(saved) == 4:
      raise KeyboardInterrupt  # After round 19 was released, and before its model is stored.
    save(*arguments)

  monkeypatch.setattr(module, 'save', killed)
  monkeypatch.setattr(module, 'Setting', functools.partial(module.Setting, save_every=5))
  with pytest.raises(KeyboardInterrupt):
    module.main([str(folder), *CENTRAL])
  weights, velocity = module.load(folder / 'model.npz', module.initial(0))
  for name, part in saved[-2][1].items():  # That of round 14.
    np.testing.assert_array_equal(weights[name], part)
  np.testing.assert_array_equal(velocity, saved[-2][2])
  assert (folder / 'batches.secret').stat().st_mode & 0o777 == 0o600
  assert folder.stat().st_mode & 0o777 == 0o700
  module.main([str(folder), *CENTRAL])
  last = capsys.readouterr().out.splitlines()
  assert float(last[-1].split('accuracy ')[1].split()[0]) > 20.0  # The best constant: 16 %.
  epsilon = float(last[-2].split('ε = ')[1].split()[0])
  assert 7.9 < epsilon <= 8.0
  run = opened(folder)
  assert run.log.num_rounds == 40
  assert epsilon < 0.7 * dpftrl.replay(run, delta=1e-5).worst_case.epsilon()
  # The batches are those of the secret seed, each drawn once.
  scheme = module.sampling.CyclicPoisson(
    num_rounds=40, num_examples=len(module.text()['train'].y), batch_size=150, num_parts=4
  )
  seed = module.secret_seed(folder / 'batches.secret', is_new=False)
  rows = pq.read_table(folder / 'participation.parquet').to_pydict()
  logged = {t: set() for t in range(40)}
  for t, example in zip(rows['round'], rows['device_id'], strict=True):
    logged[t].add(example)
  for batch in module.partition.rounds(scheme, seed):
    assert logged[batch.round] == set(batch.device_ids.tolist())
  (folder / 'batches.secret').unlink()
  with pytest.raises(SystemExit, match='2'):
    module.main([str(folder), *CENTRAL])
  assert 'batches.secret is gone' in capsys.readouterr().err


@pytest.mark.thorough
def test_noise_in_secret_bins_is_written_and_drawn(monkeypatch, tmp_path):
  small = {
    'ROUNDS': 72,
    'BINS': 12,
    'BATCH': 10,
    'EPSILONS': (2.0,),
    'FEW_AND_MANY': (6, 12),
    'DELTAS': (1e-6, 1e-10),
  }
  module = program('secret_bins', monkeypatch, **small)
  module.main(tmp_path)
  (row,) = csv.DictReader((tmp_path / 'noise.csv').open())
  noise = {name: float(value) for name, value in row.items()}
  assert noise['BLT, secret bins'] < noise['BLT']
  assert min((tmp_path / f'{name}.svg').stat().st_size for name in ('noise', 'epsilon')) > 5000
  after = [float(row['after']) for row in csv.DictReader((tmp_path / 'epsilon.csv').open())]
  assert len(after) == 12 and max(after) < 4.0


@pytest.mark.slow
def test_a_run_without_an_end_goes_on_at_one_epsilon(tmp_path, monkeypatch, capsys):
  module = program('endless', monkeypatch)
  module.train(tmp_path, 5)
  module.train(tmp_path, 3)
  first, second = capsys.readouterr().out.splitlines()
  assert (first.split()[0], second.split()[0]) == ('5', '8')
  assert first.split(': ')[1] == second.split(': ')[1]
  stated = proven(tmp_path)
  assert stated.headline is stated.declared and stated.num_rounds == 8


@pytest.mark.slow
def test_the_program_of_the_page_on_runs_without_an_end(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  (program_text,) = pages.programs('endless.md')
  exec(compile(program_text, 'endless.md', 'exec'), {})
  first, second = capsys.readouterr().out.splitlines()
  assert first == second and first.endswith('of any number of rounds')
  stated = proven(tmp_path / 'run')
  assert stated.num_rounds == 30 and stated.declared.holds
  assert np.abs(np.load('model.npy') - [1.0, -2.0, 0.5]).max() < 2.0


def test_released_metrics_are_drawn_and_end_a_run(monkeypatch, tmp_path, capsys):
  small = program('private_metrics', monkeypatch, DEVICES=400, COHORT=20)
  small.main(tmp_path / 'whole', rounds=40)
  assert '% of 4 windows' in capsys.readouterr().out
  assert (tmp_path / 'whole' / 'accuracy.svg').read_bytes().startswith(b'<?xml')
  small.main(tmp_path / 'ended', rounds=40, stop_at=-1e9)
  assert proven(tmp_path / 'ended').num_rounds == small.WINDOW
  assert proven(tmp_path / 'ended').headline.name == 'declared'


# Runs the example, and kills itself where a function of it is called in a round.
KILLED = """
import importlib.util, os, pathlib, signal, sys
spec = importlib.util.spec_from_file_location('queue_loop', sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.DEADLINE, module.WAIT, module.ROUNDS = 4.0, 0.01, 20
module.SCHEMA = module.dpftrl.MinSep(num_rounds=20, min_sep=10)
call, calls = getattr(module, sys.argv[3]), []
def killed(*arguments):
  calls.append(1)
  if len(calls) == int(sys.argv[4]):
    os.kill(os.getpid(), signal.SIGKILL)
  return call(*arguments)
setattr(module, sys.argv[3], killed)
module.main(pathlib.Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_a_loop_over_a_queue_outlives_drop_outs_and_its_own_death(tmp_path):
  pytest.importorskip('torch')
  folder, lines = tmp_path / 'run', []
  # In round 3, before it is over; when a later one is released and not stored; never.
  for function, place in (('collect', 4), ('store', 6), ('store', 10**6)):
    words = [sys.executable, '-c', KILLED, EXAMPLES / 'queue_loop.py', folder, function, str(place)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == (-signal.SIGKILL if place < 100 else 0), done.stderr
    lines += done.stdout.splitlines()
  statement = proven(folder)
  assert statement.num_rounds == 20 and statement.min_sep >= 10
  assert statement.num_participations == 20 * 26  # Whoever was asked took part.
  events = [json.loads(line) for line in (folder / 'events.jsonl').read_text().splitlines()]
  rounds = {
    kind: [e['round'] for e in events if e['event'] == kind] for kind in ('begun', 'failed')
  }
  assert rounds['begun'] == list(range(20)) and 7 in rounds['failed']  # Of an outage.
  released = [e['round'] for e in events if e['event'] == 'released']
  assert set(range(20)) - {*released, *rounds['failed']} == {3}  # It died before its end.
  shown = [int(line.split(':')[0].split()[1]) - 1 for line in lines]
  (lost,) = set(range(20)) - {3, *shown}
  assert lost in released and shown == sorted(shown)
  late, refused = (
    sum(int(line.split(f' {word}')[0].split()[-1]) for line in lines)
    for word in ('late', 'refused')
  )
  assert late > 20 and refused > 3
  measure = lambda line: float(line.split('accuracy ')[1].split()[0])
  whole = [line for line in lines if 'accuracy' in line]
  assert measure(whole[-1]) > 55.0


def test_the_program_on_canaries_runs(monkeypatch, tmp_path, capsys):
  monkeypatch.chdir(tmp_path)
  names = {}
  for text in 2 * pages.programs('canaries.md'):  # Also when it is started again.
    exec(compile(text, 'canaries.md', 'exec'), names)
  assert capsys.readouterr().out.count('nothing refutes the claim') == 2
  audit = dpftrl.audit_run('own', delta=1e-6)
  assert audit.passed and audit.num_released == 10 and abs(audit.signal - 1) < 0.5


@pytest.mark.slow
def test_canaries_of_a_loop_in_jax_are_guessed_within_its_claim(monkeypatch, tmp_path, capsys):
  example = program('canaries', monkeypatch)
  audit = example.main(tmp_path / 'run', rounds=10)
  assert audit.passed and audit.num_released == 10 and audit.num_canaries == 1024
  assert audit.lower_epsilon < audit.guarantee.epsilon() <= 4.0
  assert dpftrl.replay(tmp_path / 'run', delta=1e-6).num_devices == 500
  assert 'lower_epsilon' in capsys.readouterr().out
