"""The made-up Llama of `small` as a GGUF file."""

import numpy as np

from tests.finetune import small


def write(path):
  """Writes the file, with bytes as tokens; the packages gguf and tokenizers are needed."""
  import gguf
  from tokenizers import pre_tokenizers

  letters = sorted(pre_tokenizers.ByteLevel.alphabet())
  writer, config = gguf.GGUFWriter(path, 'llama'), small.CONFIG
  writer.add_name('Small Llama')
  writer.add_block_count(config.num_layers)
  writer.add_context_length(64)
  writer.add_embedding_length(config.width)
  writer.add_feed_forward_length(24)
  writer.add_head_count(config.num_heads)
  writer.add_head_count_kv(config.num_groups)
  writer.add_rope_freq_base(config.rope_base)
  writer.add_layer_norm_rms_eps(config.norm_epsilon)
  writer.add_tokenizer_model('gpt2')
  writer.add_tokenizer_pre('smollm')
  writer.add_token_list([*letters, 'Ġf'])
  writer.add_token_merges(['Ġ f'])
  writer.add_bos_token_id(0)
  writer.add_eos_token_id(0)
  frozen, draws = small.network(), np.random.default_rng(4)
  for i in range(config.num_layers):
    for name, array in (frozen.lower if i < 2 else frozen.upper).items():
      writer.add_tensor(f'blk.{i}.{name}.weight', np.ascontiguousarray(np.asarray(array[i % 2]).T))
  embedding = draws.normal(size=(len(letters) + 1, config.width)).astype(np.float32)
  writer.add_tensor('token_embd.weight', embedding)
  writer.add_tensor('output_norm.weight', np.ones(config.width, np.float32))
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
