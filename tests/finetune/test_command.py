"""The command, from a GGUF file and a folder of text to the table and the figure."""

import signal
import sys

import numpy as np
import pytest

from experiments.finetune import __main__ as command
from experiments.finetune import model
from tests import made
from tests.finetune import small

gguf = pytest.importorskip('gguf')
tokenizers = pytest.importorskip('tokenizers')

LETTERS = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())


def _write_weights(path):
  writer, config = gguf.GGUFWriter(path, 'llama'), small.CONFIG
  writer.add_block_count(config.num_layers)
  writer.add_embedding_length(config.width)
  writer.add_head_count(config.num_heads)
  writer.add_head_count_kv(config.num_groups)
  writer.add_rope_freq_base(config.rope_base)
  writer.add_layer_norm_rms_eps(config.norm_epsilon)
  writer.add_tokenizer_model('gpt2')
  writer.add_tokenizer_pre('smollm')
  writer.add_token_list([*LETTERS, 'Ġf'])
  writer.add_token_merges(['Ġ f'])
  frozen, draws = small.network(), np.random.default_rng(4)
  for i in range(config.num_layers):
    for name, array in (frozen.lower if i < 2 else frozen.upper).items():
      writer.add_tensor(f'blk.{i}.{name}.weight', np.ascontiguousarray(np.asarray(array[i % 2]).T))
  embedding = draws.normal(size=(len(LETTERS) + 1, config.width)).astype(np.float32)
  writer.add_tensor('token_embd.weight', embedding)
  writer.add_tensor('output_norm.weight', np.ones(config.width, np.float32))
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()


@pytest.fixture(name='weights')
def fixture_weights(tmp_path):
  _write_weights(tmp_path / 'small.gguf')
  return tmp_path / 'small.gguf'


def test_weights_and_tokens_are_read(weights):
  read = model.load(weights, num_trained=2, rank=3, seed=0)
  assert read.config == pytest.approx(small.CONFIG)
  frozen = small.network()
  for name, array in frozen.upper.items():
    np.testing.assert_array_equal(read.upper[name], array)
  np.testing.assert_array_equal(read.lower['attn_q'], frozen.lower['attn_q'])
  text = 'a face, 12 for é'
  ids = read.tokenizer.encode(text).ids
  assert read.tokenizer.decode(ids) == text
  assert ids.count(len(LETTERS)) == 2 and len(ids) == len(text.encode()) - 2
  assert model.load(weights, num_trained=9, rank=3, seed=0).lower == {}


def test_another_architecture_is_refused(tmp_path):
  writer = gguf.GGUFWriter(tmp_path / 'other.gguf', 'gemma')
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  with pytest.raises(ValueError, match='must have general.architecture=llama'):
    model.load(tmp_path / 'other.gguf', num_trained=2, rank=3, seed=0)


def test_the_command_trains_resumes_and_shows_its_table(weights, tmp_path, monkeypatch, capsys):
  texts = tmp_path / 'texts'
  texts.mkdir()
  for i in range(500):
    (texts / f'Lovelace {i}.txt').write_text(f'the secret text of person {i}, by {i * i}')
  arguments = [f'--output_dir={tmp_path / "runs"}', f'--text={texts}', f'--weights={weights}']
  monkeypatch.setattr(sys, 'argv', ['finetune', *arguments])
  monkeypatch.chdir(tmp_path)
  command.main()
  table, progress = capsys.readouterr()
  assert 'ε = 2 at δ = 1e-06 (zero-out adjacency)' in table
  assert 'by' in table and 'Check it' in table and 'Continuations of "The", before:' in table
  assert progress.count(' left\n') == 28 and 'blt: round 14/14 | 0:00:00 left' in progress
  assert 'Lovelace' not in table + progress
  assert [path.name for path in (tmp_path / 'runs').glob('*.png')] == [
    'perplexity-own-epsilon2.png'
  ]
  command.main()
  assert capsys.readouterr().out == table  # Nothing is trained again.


@made.cases(
  'flag, message',
  ('--epsilon=0', '--epsilon=0.0 must be a number above 0'),
  ('--learning_rate=nan', '--learning_rate=nan must be a number above 0'),
  ('--seed=-1', '--seed=-1 must be at least 0'),
  ('--text=nothing', 'nor a folder'),
)
def test_flags_out_of_range_are_named_in_a_line(flag, message, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(sys, 'argv', ['finetune', f'--output_dir={tmp_path}', flag])
  with pytest.raises(SystemExit, match='2'):
    command.main()
  error = capsys.readouterr().err
  assert message in error and error.count('\n') == 1


def test_an_interrupt_is_one_line(monkeypatch, tmp_path, capsys):
  def interrupted(flags):
    signal.raise_signal(signal.SIGINT)

  monkeypatch.setattr(command, 'finetune', interrupted)
  monkeypatch.setattr(sys, 'argv', ['finetune', f'--output_dir={tmp_path}'])
  with pytest.raises(SystemExit) as end:
    command.main()
  assert end.value.code == 130
  assert capsys.readouterr().err == 'finetune: interrupted; the same command goes on\n'
