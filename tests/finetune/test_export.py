"""A fine-tuned model in other programs' formats, read by others than the one that wrote it."""

import dataclasses
import json
import struct

import numpy as np
import pytest

from experiments.finetune import export, model
from tests.finetune import small, test_model, weights

gguf = pytest.importorskip('gguf')
pytest.importorskip('tokenizers')
pytestmark = pytest.mark.slow

TOKENS = np.random.default_rng(3).integers(0, 257, (3, 12))
B = np.random.default_rng(2).normal(size=(2, 3, small.NUM_VALUES)).astype(np.float32)


@pytest.fixture(name='exported')
def fixture_exported(tmp_path):
  """Returns the folder of the files, and the model that they are of."""
  weights.write(tmp_path / 'small.gguf')
  frozen = model.load(tmp_path / 'small.gguf', num_trained=2, rank=3, seed=0)
  files = export.write(tmp_path, frozen, B, tmp_path / 'small.gguf')
  assert files == {'Adapter': tmp_path / 'adapter', 'Merged model': tmp_path / 'model.gguf'}
  return tmp_path, frozen


def _perplexity(logits):
  """Returns the perplexity of TOKENS by logits [texts, time, words], in float64."""
  logits = np.asarray(logits, np.float64)[:, :-1]
  picked = np.take_along_axis(logits, TOKENS[:, 1:, None], -1)[..., 0]
  return float(np.exp((np.log(np.exp(logits).sum(-1)) - picked).mean()))


def _trained(frozen, b):
  features = frozen.features(TOKENS[:, :-1])
  losses, _, num_targets = frozen.sums(features, TOKENS[:, 1:], b)
  return float(np.exp((losses / num_targets).mean()))


def _read(path):
  """Reads safetensors by its specification."""
  content = path.read_bytes()
  (size,) = struct.unpack('<Q', content[:8])
  header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
  assert header.pop('__metadata__') == {'format': 'pt'} and size % 8 == 0
  arrays, end = {}, 0
  for name, entry in header.items():
    start, stop = entry['data_offsets']
    assert start == end and entry['dtype'] == 'F32'
    arrays[name], end = np.frombuffer(data[start:stop], '<f4').reshape(entry['shape']), stop
  assert end == len(data)
  return arrays


def test_the_adapter_gives_the_perplexity_in_a_computation_of_its_own(exported):
  folder, frozen = exported
  arrays = _read(folder / 'adapter' / 'adapter_model.safetensors')
  config = json.loads((folder / 'adapter' / 'adapter_config.json').read_text())
  assert config['base_model_name_or_path'] == 'Small Llama'
  layers, scale = config['layers_to_transform'], config['lora_alpha'] / config['r']
  assert layers == [2, 3] and len(arrays) == 4
  key = 'base_model.model.model.layers.{}.self_attn.v_proj.lora_{}.weight'
  factor = lambda name: np.stack([arrays[key.format(layer, name)].T for layer in layers])
  read = dataclasses.replace(frozen, a=scale * factor('A'))
  result = _perplexity([test_model._reference(read, tokens, factor('B')) for tokens in TOKENS])
  assert result == pytest.approx(_trained(frozen, B), rel=5e-5)
  assert abs(result - _trained(frozen, 0 * B)) > 0.1


def test_a_merged_file_is_read_as_the_trained_model_and_keeps_all_else(exported):
  folder, frozen = exported
  merged = model.load(folder / 'model.gguf', num_trained=2, rank=3, seed=0)
  assert merged.config == frozen.config and _trained(merged, 0 * B) == pytest.approx(
    _trained(frozen, B), rel=1e-5
  )
  expected = frozen.upper['attn_v'] + np.einsum('lwr,lrv->lwv', frozen.a, B)
  np.testing.assert_allclose(merged.upper['attn_v'], expected, rtol=1e-6, atol=1e-7)
  first, second = (gguf.GGUFReader(folder / name) for name in ('small.gguf', 'model.gguf'))
  contents = lambda reader: {name: field.contents() for name, field in reader.fields.items()}
  assert contents(first) == contents(second)
  for before, after in zip(first.tensors, second.tensors, strict=True):
    assert before.name == after.name and list(before.shape) == list(after.shape)
    is_trained = before.name in ('blk.2.attn_v.weight', 'blk.3.attn_v.weight')
    assert np.array_equal(before.data, after.data) != is_trained


def test_quantised_tensors_stay_as_they_are(tmp_path, monkeypatch):
  """But for those that were trained."""
  write = gguf.GGUFWriter.add_tensor

  def quantised(writer, name, array, **options):
    if 'ffn' in name or 'attn_v' in name:
      kind = gguf.GGMLQuantizationType.F16
      return write(writer, name, array.astype(np.float16), raw_dtype=kind)
    return write(writer, name, array, **options)

  with monkeypatch.context() as patched:
    patched.setattr(gguf.GGUFWriter, 'add_tensor', quantised)
    weights.write(tmp_path / 'small.gguf')
  frozen = model.load(tmp_path / 'small.gguf', num_trained=2, rank=3, seed=0)
  export.write_merged(tmp_path / 'merged.gguf', tmp_path / 'small.gguf', frozen, B)
  kinds = {t.name: t.tensor_type.name for t in gguf.GGUFReader(tmp_path / 'merged.gguf').tensors}
  assert {kinds[f'blk.{i}.attn_v.weight'] for i in (0, 1)} == {'F16'}
  assert {kinds[f'blk.{i}.attn_v.weight'] for i in (2, 3)} == {'F32'}
  assert kinds['blk.3.ffn_up.weight'] == 'F16'
  merged = model.load(tmp_path / 'merged.gguf', num_trained=2, rank=3, seed=0)
  assert _trained(merged, 0 * B) == pytest.approx(_trained(frozen, B), rel=1e-5)


def test_transformers_and_peft_give_the_same_perplexity(exported):
  """Of the adapter on the model that was read, and of the merged file."""
  torch, transformers = pytest.importorskip('torch'), pytest.importorskip('transformers')
  peft = pytest.importorskip('peft')
  folder, frozen = exported
  load = lambda name: transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name)

  @torch.no_grad()
  def perplexity(network):
    return _perplexity(network.eval()(input_ids=torch.tensor(TOKENS)).logits.numpy())

  before = perplexity(load('small.gguf'))
  assert before == pytest.approx(_trained(frozen, 0 * B), rel=5e-5)
  adapted = peft.PeftModel.from_pretrained(load('small.gguf'), folder / 'adapter')
  assert perplexity(adapted) == pytest.approx(_trained(frozen, B), rel=5e-5)
  assert perplexity(load('model.gguf')) == pytest.approx(_trained(frozen, B), rel=5e-5)
