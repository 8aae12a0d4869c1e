"""The command, from a GGUF file and texts of people to the table, the figure and the files."""

import contextlib
import csv
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import jax
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from experiments.finetune import __main__ as command
from experiments.finetune import export, model, train
from tests.finetune import small, weights

gguf = pytest.importorskip('gguf')
pytest.importorskip('tokenizers')
pytestmark = pytest.mark.slow


SHORT = ['--rounds=4', '--blocks=1', '--tokens=16', '--cohort=20']


@pytest.fixture(name='weights')
def fixture_weights(tmp_path):
  weights.write(tmp_path / 'small.gguf')
  return tmp_path / 'small.gguf'


def test_weights_and_tokens_are_read(weights):
  read = model.load(weights, num_trained=2, rank=3, seed=0)
  assert read.config == pytest.approx(small.CONFIG) and read.name == 'Small Llama'
  frozen = small.network()
  for name, array in frozen.upper.items():
    np.testing.assert_array_equal(read.upper[name], array)
  np.testing.assert_array_equal(read.lower['attn_q'], frozen.lower['attn_q'])
  text = 'a face, 12 for é'
  ids = read.tokenizer.encode(text).ids
  assert read.tokenizer.decode(ids) == text
  assert ids.count(256) == 2 and len(ids) == len(text.encode()) - 2
  assert model.load(weights, num_trained=9, rank=3, seed=0).lower == {}
  arrays = jax.tree.leaves((read.lower, read.upper, read.ends['embedding'], read.ends['norm']))
  assert read.num_parameters == sum(array.size for array in arrays)


def test_a_digest_is_of_the_weights(weights):
  load = lambda: model.load(weights, num_trained=2, rank=3, seed=0)
  first, content = load(), bytearray(weights.read_bytes())
  assert load().digest == first.digest
  content[-1] ^= 1  # In a weight.
  weights.write_bytes(content)
  assert load().digest != first.digest


def test_another_architecture_is_refused(tmp_path):
  writer = gguf.GGUFWriter(tmp_path / 'other.gguf', 'gemma')
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  with pytest.raises(ValueError, match='must have general.architecture=llama'):
    model.load(tmp_path / 'other.gguf', num_trained=2, rank=3, seed=0)


ROWS = [
  {'person': f'Lovelace {i % 60}', 'text': f'the secret text {i} of this person, by {i * i}'}
  for i in range(180)
]


def _run(monkeypatch, folder, weights, *words):
  """Runs the command in a folder, on texts of 60 people in chat.jsonl."""
  (folder / 'chat.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in ROWS))
  words = [*SHORT, f'--text={folder / "chat.jsonl"}', f'--weights={weights}', *words]
  monkeypatch.setattr(sys, 'argv', ['finetune', f'--output_dir={folder / "runs"}', *words])
  monkeypatch.chdir(folder)
  command.main()


def test_the_command_trains_resumes_and_shows_its_table(weights, tmp_path, monkeypatch, capsys):
  _run(monkeypatch, tmp_path, weights)
  table, progress = capsys.readouterr()
  assert 'ε = 2 at δ = 1e-06 (zero-out adjacency)' in table
  assert '80 times, by 20 of 54' in table
  assert '  without noise' in table and '  with blt noise' in table and 'each a person' in table
  assert progress.count(' left\n') == 8 and 'round 4/4 | 0:00:00 left' in progress
  assert 'Noise to signal' in progress and 'Lovelace' not in table + progress
  _run(monkeypatch, tmp_path, weights)
  assert capsys.readouterr().out == table  # Nothing is trained again.
  with pytest.raises(SystemExit, match='2'):
    _run(monkeypatch, tmp_path, weights, '--rank=2', '--clip_norm=0.05')
  assert 'folder' in capsys.readouterr().err


def test_secrets_beside_people_raise_no_warning(weights, tmp_path, monkeypatch, capsys, recwarn):
  _run(monkeypatch, tmp_path, weights, '--secrets=10', '--tokens=64', '--skip_no_noise')
  assert ' of 10 twins told apart' in capsys.readouterr().out
  assert not [warning for warning in recwarn if 'report_goal' in str(warning.message)]


def _write(path):
  """Writes the texts as a table, or as a folder with one of folders for each person."""
  if path.suffix == '.csv':
    with path.open('w', newline='') as file:
      writer = csv.DictWriter(file, ['person', 'text'])
      writer.writeheader()
      writer.writerows(ROWS)
  elif path.suffix == '.parquet':
    parquet.write_table(pa.Table.from_pylist(ROWS), path)
  else:
    for i, row in enumerate(ROWS):
      (path / row['person']).mkdir(parents=True, exist_ok=True)
      (path / row['person'] / f'{i}.txt').write_text(row['text'])


@pytest.mark.parametrize('name', ['texts', 'texts.csv', 'texts.parquet'])
def test_a_folder_and_tables_are_trained_on_to_the_end(
  name, weights, tmp_path, monkeypatch, capsys
):
  _write(tmp_path / name)
  words = ['--rounds=2', '--skip_no_noise', f'--text={tmp_path / name}']
  _run(monkeypatch, tmp_path, weights, *words)
  table, _ = capsys.readouterr()
  assert '  with blt noise' in table and '  without noise' not in table
  assert '40 times, by 20 of 54, each a person' in table and 'adapter' in table


def test_a_plan_says_what_a_run_needs_and_computes_nothing(weights, tmp_path, monkeypatch, capsys):
  _run(monkeypatch, tmp_path, weights, '--dry_run', '--mechanism=identity')
  text = capsys.readouterr().out
  plan = dict(re.split(' {2,}', line, maxsplit=1) for line in text.splitlines())
  assert '4 of 20; a person takes part in 4 at most, at least 1 apart' in plan['Rounds']
  assert 'ε = 2 at δ = 1e-06' in plan['Noise'] and 'rank 1 in the last 4' in plan['Trained']
  sigma, size = float(re.search(r'σ = ([\d.]+)', plan['Noise'])[1]), 4 * small.NUM_VALUES
  mean, total = map(float, re.findall(r'([\d.]+) (?:times|in all)', plan['Noise to signal']))
  assert mean == pytest.approx(sigma * size**0.5 / 20, rel=0.06)
  assert total == pytest.approx(mean / 2, rel=0.1)
  assert {path.name for path in tmp_path.iterdir()} == {'small.gguf', 'chat.jsonl'}


def test_a_hopeless_run_is_refused_before_it_begins(weights, tmp_path, monkeypatch, capsys):
  words = ['--epsilon=0.01', '--rank=16', '--skip_no_noise']
  _run(monkeypatch, tmp_path, weights, '--dry_run', *words)
  assert re.search(r'signal  \d+ times', capsys.readouterr().out)
  with pytest.raises(SystemExit, match='2'):
    _run(monkeypatch, tmp_path, weights, *words)
  error = capsys.readouterr().err
  assert 'finetune: at ε = 0.01 each round' in error and 'use more people' in error
  assert error.count('\n') == 1 and not (tmp_path / 'runs').exists()


@pytest.mark.parametrize('perplexity', [9.1, float('nan')])
def test_a_model_that_is_worse_is_called_so(perplexity, weights, tmp_path, monkeypatch, capsys):
  evaluated = lambda task, b: {'perplexity': perplexity if b.any() else 9.0, 'accuracy': 0.1}
  monkeypatch.setattr(train.Task, 'evaluated', evaluated)
  words = ['--rounds=2', '--skip_no_noise']
  _run(monkeypatch, tmp_path, weights, *words)
  assert 'The model is worse than before training: do not use it.' in capsys.readouterr().out


def test_flags_choose_clipping_metrics_and_observers(weights, tmp_path, monkeypatch, capsys):
  words = ['--clip_quantile=0.5', '--private_loss']
  words += ['--observer=jsonlines', '--skip_no_noise', '--layers=2']
  _run(monkeypatch, tmp_path, weights, *words)
  assert 'without noise' not in capsys.readouterr().out
  lines = [json.loads(line) for line in (tmp_path / 'runs' / 'events.jsonl').open()]
  assert [line['event'] for line in lines] == ['begun', 'released'] * 4
  (folder,) = (tmp_path / 'runs').glob('own-*')
  released = list(csv.DictReader((folder / 'released.csv').open()))
  assert len(released) == 4 and any('loss' in name for name in released[0])
  claim = json.loads((folder / 'claim.json').read_text())
  assert claim['clip_norm']['target_quantile'] == 0.5 and claim['report_goal'] == 20
  shutil.copytree(tmp_path / 'runs', tmp_path / 'other' / 'runs')
  with pytest.raises(SystemExit, match='2'):
    _run(monkeypatch, tmp_path / 'other', weights, *words)
  assert 'give moved=True' in capsys.readouterr().err
  _run(monkeypatch, tmp_path / 'other', weights, *words, '--moved')


@pytest.fixture(name='whole', scope='module')
def fixture_whole(tmp_path_factory):
  """Returns weights and, of a run without an interrupt, its model."""
  folder = tmp_path_factory.mktemp('whole')
  weights.write(folder / 'small.gguf')
  with pytest.MonkeyPatch.context() as patched:
    _run(patched, folder, folder / 'small.gguf')
  return folder / 'small.gguf', _model(folder)


def _model(folder):
  """Returns the state of the run without noise, whose bits no secret seed draws."""
  with np.load(folder / 'runs' / 'own-identity-epsiloninf-seed0' / 'model.npz') as arrays:
    return {name: array for name, array in arrays.items() if name != 'setting'}


MOMENTS = {
  'training block': (model.Model, 'features', 2),
  'held-out block': (model.Model, 'features', 3),
  'round': (train.Task, 'updates', 2),
  'store': (train, '_store', 4),
  'export': (export, 'write_merged', 1),
}


@contextlib.contextmanager
def _struck(moment, number):
  """Sends this process a signal at a moment."""
  holder, name, at = MOMENTS[moment]
  function, calls = getattr(holder, name), []

  def striking(*arguments, **options):
    calls.append(0)
    if len(calls) == at:
      os.kill(os.getpid(), number)
    return function(*arguments, **options)

  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(holder, name, striking)
    yield patched


def _goes_on(moment, folder, whole, monkeypatch, capsys):
  """Goes on, to the bits of a run without an interrupt, or to a line on the round that is lost."""
  _, expected = whole
  _run(monkeypatch, folder, whole[0])
  is_lost = moment in ('round', 'store')  # Such a round has failed, and is not made again.
  assert ('rounds lost by an interrupt: 1;' in capsys.readouterr().err) == is_lost
  for key, array in _model(folder).items():
    assert np.array_equal(array, expected[key]) != is_lost


@pytest.mark.parametrize('moment', MOMENTS)
def test_a_command_that_is_interrupted_ends_in_a_line_and_goes_on_to_the_same_bits(
  moment, whole, tmp_path, monkeypatch, capsys
):
  with _struck(moment, signal.SIGINT) as patched, pytest.raises(SystemExit, match='130'):
    _run(patched, tmp_path, whole[0])
  lines = capsys.readouterr().err.splitlines()
  assert lines[-1] == 'finetune: interrupted; the same command goes on'
  assert not any('Traceback' in line for line in lines)
  _goes_on(moment, tmp_path, whole, monkeypatch, capsys)
  assert not list(tmp_path.rglob('.writing-*'))


def killed(moment, folder, file):
  """Runs the command in this process, which is killed at a moment."""
  jax.config.update('jax_optimization_level', 'O0')
  jax.config.update('jax_disable_most_optimizations', True)
  with _struck(moment, signal.SIGKILL) as patched:
    _run(patched, pathlib.Path(folder), file)


@pytest.mark.parametrize('moment', MOMENTS)
def test_a_command_that_is_killed_goes_on_to_the_same_bits(
  moment, whole, tmp_path, monkeypatch, capsys
):
  given = moment, str(tmp_path), str(whole[0])
  code = f'from tests.finetune import test_command; test_command.killed(*{given})'
  child = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
  assert child.returncode == -signal.SIGKILL, child.stderr
  _goes_on(moment, tmp_path, whole, monkeypatch, capsys)


def test_an_interrupt_is_one_line(monkeypatch, tmp_path, capsys):
  def interrupted(given):
    signal.raise_signal(signal.SIGINT)

  monkeypatch.setattr(command, 'finetune', interrupted)
  monkeypatch.setattr(sys, 'argv', ['finetune', f'--output_dir={tmp_path}'])
  with pytest.raises(SystemExit) as end:
    command.main()
  assert end.value.code == 130
  assert capsys.readouterr().err == 'finetune: interrupted; the same command goes on\n'
