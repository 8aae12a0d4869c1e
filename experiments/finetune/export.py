"""A fine-tuned model as files that other programs read: a PEFT adapter, and a merged GGUF."""

import json
import pathlib

import numpy as np

from experiments.finetune import model
from fl_dpftrl.support.files import durable

_KEY = 'base_model.model.model.layers.{}.self_attn.v_proj.lora_{}.weight'


def write(
  folder: pathlib.Path, trained: model.Model, b: np.ndarray, weights: pathlib.Path
) -> dict[str, pathlib.Path]:
  """Writes adapter/ and model.gguf into the folder of a run, and returns what each is → its path.

  The model was read from the GGUF file of weights; b is [upper layers, rank, values].
  """
  files = {'Adapter': folder / 'adapter', 'Merged model': folder / 'model.gguf'}
  files['Adapter'].mkdir(exist_ok=True)
  _write_adapter(files['Adapter'], trained, b)
  with durable.replacing(files['Merged model']) as path:
    write_merged(path, weights, trained, b)
  return files


def _write_adapter(folder: pathlib.Path, trained: model.Model, b: np.ndarray) -> None:
  """Writes A and B in PEFT's layout, transposed as PyTorch has matrices."""
  from safetensors.numpy import save  # Its environment is that of `make finetune`.

  tensors = {
    _KEY.format(layer, name): np.ascontiguousarray(factor.T, np.float32)
    for name, factors in (('A', np.asarray(trained.a)), ('B', np.asarray(b)))
    for layer, factor in zip(_layers(trained), factors)
  }
  rank = trained.a.shape[2]
  config = {
    'peft_type': 'LORA',
    'task_type': 'CAUSAL_LM',
    'base_model_name_or_path': trained.name,
    'r': rank,
    'lora_alpha': rank,  # The additions are times lora_alpha / r.
    'target_modules': ['v_proj'],
    'layers_to_transform': list(_layers(trained)),
    'layers_pattern': 'layers',
  }
  durable.write_durably(folder / 'adapter_model.safetensors', save(tensors, {'format': 'pt'}))
  durable.write_durably(folder / 'adapter_config.json', json.dumps(config, indent=2).encode())


def write_merged(
  path: pathlib.Path, weights: pathlib.Path, trained: model.Model, b: np.ndarray
) -> None:
  """Writes the GGUF file that was read anew, with V + A·B in float32 where there are additions."""
  import gguf

  reader, writer = gguf.GGUFReader(weights), gguf.GGUFWriter(path, 'llama')
  for name, field in reader.fields.items():
    # The writer makes its own header, and has the architecture.
    if name.startswith('GGUF.') or name == gguf.Keys.General.ARCHITECTURE:
      continue
    kind, *parts = field.types
    writer.add_key_value(name, field.contents(), kind, parts[-1] if parts else None)
  products = np.einsum('lwr,lrv->lvw', np.asarray(trained.a), np.asarray(b))
  added = {f'blk.{layer}.attn_v.weight': x for layer, x in zip(_layers(trained), products)}
  for tensor in reader.tensors:
    if tensor.name in added:
      values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
      writer.add_tensor(tensor.name, (values + added[tensor.name]).astype(np.float32))
    else:
      writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()


def _layers(trained: model.Model) -> range:
  """Returns the numbers of the layers with additions."""
  return range(trained.config.num_layers - len(trained.a), trained.config.num_layers)
