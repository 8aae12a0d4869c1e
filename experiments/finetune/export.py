"""A fine-tuned model as files that other programs read: a PEFT adapter, and a merged GGUF."""

import pathlib

import numpy as np

from experiments.finetune import model
from fl_dpftrl.adapters import lora_files
from fl_dpftrl.support.files import durable

ADAPTER_NAME, MERGED_NAME = 'adapter', 'model.gguf'


def write(
  folder: pathlib.Path, trained: model.Model, b: np.ndarray, weights: pathlib.Path
) -> dict[str, pathlib.Path]:
  """Writes adapter/ and model.gguf into the folder of a run, and returns what each is → its path.

  Args:
    folder: of the run.
    trained: the model, whose A is the adapter's first factor.
    b: the second factors, [upper layers, rank, values].
    weights: GGUF file that the model was read from.
  """
  factors = dict(zip(_layers(trained), zip(np.asarray(trained.a), np.asarray(b))))
  lora_files.write_adapter(folder / ADAPTER_NAME, factors, base_model=trained.name)
  with durable.replacing(folder / MERGED_NAME) as path:
    write_merged(path, weights, trained, b)
  return {'Adapter': folder / ADAPTER_NAME, 'Merged model': folder / MERGED_NAME}


def write_merged(
  path: pathlib.Path, weights: pathlib.Path, trained: model.Model, b: np.ndarray
) -> None:
  """Writes the GGUF file that was read anew, with V + A·B in float32 where there are additions."""
  import gguf  # Its environment is that of `make finetune`.

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
