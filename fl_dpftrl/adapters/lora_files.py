"""Low-rank additions as files in PEFT's layout, which transformers and others load."""

import json
import os
import pathlib
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from fl_dpftrl.support.files import durable

_ALIGNMENT = 8  # bytes, of the header of safetensors


def write_adapter(
  folder: str | os.PathLike[str],
  factors: Mapping[int, tuple[np.ndarray, np.ndarray]],
  *,
  module: str = 'self_attn.v_proj',
  base_model: str = '',
) -> None:
  """Writes adapter_model.safetensors and adapter_config.json into a new or an old folder.

  Args:
    folder: made where it does not exist.
    factors: layer → A [inputs, rank] and B [rank, outputs]; the layer's output grows by x·A·B.
    module: the matrix that has the additions, by its name in a layer of a Llama of transformers.
    base_model: name of the model that was fine-tuned, as transformers finds it; '' if unknown.

  Raises:
    ValueError: for factors that are no two matrices of one rank in all layers.
  """
  shapes = [(*np.shape(a), *np.shape(b)) for a, b in factors.values()]
  if not shapes or any(len(shape) != 4 or shape[1] != shape[2] for shape in shapes):
    raise ValueError(f'factors must be A [inputs, rank] and B [rank, outputs], got {shapes}')
  rank = shapes[0][1]
  if any(shape[1] != rank for shape in shapes):
    raise ValueError(f'factors must have one rank in all layers, got {shapes}')
  key = f'base_model.model.model.layers.{{}}.{module}.lora_{{}}.weight'
  tensors = {
    key.format(layer, name): factor.T  # As PyTorch has them.
    for layer, pair in factors.items()
    for name, factor in zip('AB', pair)
  }
  config = {
    'peft_type': 'LORA',
    'task_type': 'CAUSAL_LM',
    'base_model_name_or_path': base_model,
    'r': rank,
    'lora_alpha': rank,  # The additions are times lora_alpha / r.
    'inference_mode': True,
    'target_modules': [module.rpartition('.')[2]],
    'layers_to_transform': list(factors),
    'layers_pattern': 'layers',
  }
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  durable.write_durably(folder / 'adapter_model.safetensors', safetensors(tensors))
  content = json.dumps(config, indent=2) + '\n'
  durable.write_durably(folder / 'adapter_config.json', content.encode())


def safetensors(tensors: Mapping[str, np.ndarray]) -> bytes:
  """Returns arrays by name, as float32, in the format safetensors.

  Source: https://github.com/huggingface/safetensors, "Format": the length of the header in eight
  bytes, the header in JSON, and the arrays, all little-endian.
  """
  header: dict[str, Any] = {'__metadata__': {'format': 'pt'}}
  contents, end = [], 0
  for name, tensor in tensors.items():
    contents.append(np.ascontiguousarray(tensor, '<f4').tobytes())
    start, end = end, end + len(contents[-1])
    header[name] = {'dtype': 'F32', 'shape': list(tensor.shape), 'data_offsets': [start, end]}
  text = json.dumps(header).encode()
  text += b' ' * (-len(text) % _ALIGNMENT)
  return b''.join([struct.pack('<Q', len(text)), text, *contents])
