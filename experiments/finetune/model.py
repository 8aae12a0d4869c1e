"""A frozen Llama in JAX, with low-rank additions to the values of its last layers.

Attention's values of layer l become y·V + (y·A_l)·B_l. A is random and fixed, and only B learns
(FFA-LoRA, Sun et al. 2024), so the model is linear in the sums of releases. The lower layers are
computed once for each text.
"""

import dataclasses
import functools
import hashlib
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_dpftrl.support.text import messages

if TYPE_CHECKING:
  import tokenizers

_MATRICES = ('attn_q', 'attn_k', 'attn_v', 'attn_output', 'ffn_gate', 'ffn_up', 'ffn_down')
_NORMS = ('attn_norm', 'ffn_norm')

Weights = dict[str, Any]


class Config(NamedTuple):
  """Sizes of a Llama: a head of keys and values serves num_heads / num_groups heads."""

  num_layers: int
  width: int
  num_heads: int
  num_groups: int
  rope_base: float
  norm_epsilon: float

  @property
  def values(self) -> int:
    """Outputs of the matrix of values."""
    return self.num_groups * self.width // self.num_heads


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Model:
  """A pretrained model.

  Attributes:
    config: sizes.
    tokenizer: text → ids and back.
    lower, upper: weights of the layers without and with additions, by name; matrices are
      [layers, inputs, outputs].
    ends: 'embedding' and 'head', [tokens, width], and 'norm', [width].
    a: the fixed factors of the additions, [upper layers, width, rank].
    name: name of the model, as its file has it.
  """

  config: Config
  tokenizer: 'tokenizers.Tokenizer'
  lower: Weights
  upper: Weights
  ends: Weights
  a: jax.Array
  name: str = ''

  @property
  def num_parameters(self) -> int:
    """Frozen parameters; embedding and head count once where they are one matrix."""
    arrays = {
      id(array): array.size for array in jax.tree.leaves((self.lower, self.upper, self.ends))
    }
    return sum(arrays.values())

  @property
  def digest(self) -> str:
    """SHA-256 of sizes and frozen weights: another file may have the same name and size."""
    digest = hashlib.sha256(repr(self.config).encode())
    for path, array in jax.tree_util.tree_leaves_with_path((self.lower, self.upper, self.ends)):
      digest.update(f'{path} {array.shape} {array.dtype}\n'.encode())
      digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()

  @property
  def zeros(self) -> np.ndarray:
    """Returns B before training, float32 [upper layers, rank, values]."""
    return np.zeros((len(self.a), self.a.shape[2], self.config.values), np.float32)

  def features(self, tokens: np.ndarray) -> jax.Array:
    """Returns what the lower layers make of tokens [units, time]: [units, time, width]."""
    return _features(self.config, self.lower, self.ends['embedding'], np.maximum(tokens, 0))

  def updates(
    self, features: Any, targets: Any, b: Any, num_words: int
  ) -> tuple[jax.Array, jax.Array]:
    """Returns minus the gradient of each unit's mean loss, [units, *b.shape], and the losses.

    Args:
      features: [units, time, width].
      targets: the tokens that follow, [units, time]; negative ones are left out.
      b: the additions' second factors.
      num_words: the loss is over the first so many tokens, the most frequent ones.
    """
    targets = jnp.where(targets < num_words, targets, -1)
    ends = {**self.ends, 'head': self.ends['head'][:num_words]}
    return _updates(self.config, self.upper, ends, self.a, features, targets, b)

  def losses(self, features: Any, targets: Any, b: Any) -> np.ndarray:
    """Returns each unit's mean loss over its targets, [units]."""
    return np.asarray(
      _mean_losses(self.config, self.upper, self.ends, self.a, features, targets, b)
    )

  def sums(self, features: Any, targets: Any, b: Any) -> np.ndarray:
    """Returns loss in nats, targets predicted, and targets, each summed over units, [3]."""
    return np.array(_sums(self.config, self.upper, self.ends, self.a, features, targets, b))

  def continuations(self, prompt: str, b: Any, *, num_tokens: int, count: int) -> list[str]:
    """Returns prompt and continuation, drawn at temperature 0.7 by the same numbers each time."""
    ids = self.tokenizer.encode(prompt).ids
    tokens = np.zeros((count, len(ids) + num_tokens), np.int32)
    tokens[:, : len(ids)] = ids
    for place in range(len(ids), tokens.shape[1]):
      x = _layers(self.config, self.features(tokens), self.upper, self.a, b)
      logits = _logits(self.config, x[:, place - 1], self.ends)
      gumbel = np.random.default_rng(place).gumbel(size=logits.shape)
      tokens[:, place] = (np.asarray(logits) / 0.7 + gumbel).argmax(-1)
    return self.tokenizer.decode_batch(tokens.tolist())


def load(path: str | os.PathLike[str], *, num_trained: int, rank: int, seed: int) -> Model:
  """Returns the model of a GGUF file, whose last layers get additions that are zero at first.

  Args:
    path: GGUF file of a Llama.
    num_trained: last layers that get additions, all of them in a smaller model.
    rank: columns of A.
    seed: seed of A.

  Raises:
    ValueError: for another architecture or tokenizer.
  """
  import gguf  # Its environment is that of `make finetune`.

  reader = gguf.GGUFReader(path)
  fields = {name: field.contents for name, field in reader.fields.items()}
  expected = {'general.architecture': 'llama', 'tokenizer.ggml.model': 'gpt2'}
  expected['tokenizer.ggml.pre'] = 'smollm'
  for name, value in expected.items():
    if name not in fields or fields[name]() != value:
      raise ValueError(f'{messages.quoted(str(path))} must have {name}={value}')
  number = lambda name, default=None: (
    fields[f'llama.{name}']() if default is None else fields.get(f'llama.{name}', lambda: default)()
  )
  config = Config(
    num_layers=number('block_count'),
    width=number('embedding_length'),
    num_heads=number('attention.head_count'),
    num_groups=number('attention.head_count_kv'),
    rope_base=number('rope.freq_base', 10_000.0),
    norm_epsilon=number('attention.layer_norm_rms_epsilon'),
  )
  tensors = {tensor.name: tensor for tensor in reader.tensors}
  read = lambda name: gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type)
  layers = lambda numbers: {
    name: jnp.stack([jnp.asarray(read(f'blk.{i}.{name}.weight').T) for i in numbers])
    for name in (*_MATRICES, *_NORMS)
  }
  embedding = jnp.asarray(read('token_embd.weight'))
  head = jnp.asarray(read('output.weight')) if 'output.weight' in tensors else embedding
  middle = max(0, config.num_layers - num_trained)
  a = np.random.default_rng(seed).normal(size=(config.num_layers - middle, config.width, rank))
  return Model(
    config=config,
    tokenizer=_tokenizer(fields['tokenizer.ggml.tokens'](), fields['tokenizer.ggml.merges']()),
    lower=layers(range(middle)) if middle else {},
    upper=layers(range(middle, config.num_layers)),
    ends={'embedding': embedding, 'head': head, 'norm': jnp.asarray(read('output_norm.weight'))},
    a=jnp.asarray(a / config.width**0.5, jnp.float32),
    name=fields['general.name']() if 'general.name' in fields else '',
  )


def _tokenizer(tokens: list[str], merges: list[str]) -> 'tokenizers.Tokenizer':
  """Returns GPT-2's byte-pair encoding, with each digit by itself."""
  import tokenizers
  from tokenizers import decoders, models, pre_tokenizers

  pairs = [tuple(merge.split(' ')) for merge in merges]
  tokenizer = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
  pieces = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence(pieces)
  tokenizer.decoder = decoders.ByteLevel()
  return tokenizer


def _norm(config: Config, x: jax.Array, scale: jax.Array) -> jax.Array:
  mean_square = (x * x).mean(-1, keepdims=True)
  return x * jax.lax.rsqrt(mean_square + config.norm_epsilon) * scale


def _rotated(config: Config, x: jax.Array) -> jax.Array:
  """Turns neighbouring pairs of x [units, time, heads, size] by position, as GGUF orders them."""
  size = x.shape[-1]
  speed = config.rope_base ** -(jnp.arange(0, size, 2) / size)
  angle = jnp.arange(x.shape[1])[:, None, None] * speed
  cos, sin, even, odd = jnp.cos(angle), jnp.sin(angle), x[..., ::2], x[..., 1::2]
  return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)


def _layer(config: Config, x: jax.Array, w: Weights, addition: Any = None) -> jax.Array:
  """Returns a layer of x [units, time, width].

  The addition is A [width, rank], and B [rank, values] or one for each unit, [units, rank, values].
  """
  units, time, _ = x.shape
  y = _norm(config, x, w['attn_norm'])
  v = y @ w['attn_v']
  if addition is not None:
    v = v + (y @ addition[0]) @ addition[1]
  heads = lambda z, count: z.reshape(units, time, count, -1)
  q = _rotated(config, heads(y @ w['attn_q'], config.num_heads))
  q = q.reshape(units, time, config.num_groups, -1, q.shape[-1])
  k = _rotated(config, heads(y @ w['attn_k'], config.num_groups))
  scores = jnp.einsum('utghc,usgc->ughts', q, k) / q.shape[-1] ** 0.5
  is_past = jnp.tril(jnp.ones((time, time), bool))
  shares = jax.nn.softmax(jnp.where(is_past, scores, -jnp.inf))
  mixed = jnp.einsum('ughts,usgc->utghc', shares, heads(v, config.num_groups))
  x = x + mixed.reshape(x.shape) @ w['attn_output']
  y = _norm(config, x, w['ffn_norm'])
  return x + (jax.nn.silu(y @ w['ffn_gate']) * (y @ w['ffn_up'])) @ w['ffn_down']


@functools.partial(jax.jit, static_argnums=0)
def _features(config: Config, lower: Weights, embedding: jax.Array, tokens: Any) -> jax.Array:
  x = embedding[tokens]
  if not lower:
    return x
  return jax.lax.scan(lambda x, w: (_layer(config, x, w), None), x, lower)[0]


@functools.partial(jax.jit, static_argnums=0)
def _layers(config: Config, x: Any, upper: Weights, a: Any, b: Any) -> jax.Array:
  step = lambda x, w: (_layer(config, x, w[0], w[1:]), None)
  return jax.lax.scan(step, jnp.asarray(x, a.dtype), (upper, a, b))[0]


def _logits(config: Config, x: jax.Array, ends: Weights) -> jax.Array:
  return _norm(config, x, ends['norm']) @ ends['head'].T


def _losses(
  config: Config, upper: Weights, ends: Weights, a: Any, x: Any, targets: Any, b: Any
) -> tuple[jax.Array, jax.Array]:
  """Returns loss in nats, and whether the target is predicted, [units, time]; 0 without target."""
  logits = _logits(config, _layers(config, x, upper, a, b), ends)
  picked = jnp.take_along_axis(logits, jnp.maximum(targets, 0)[..., None], -1)[..., 0]
  losses = jax.nn.logsumexp(logits, -1) - picked
  return jnp.where(targets >= 0, losses, 0), logits.argmax(-1) == targets


@functools.partial(jax.jit, static_argnums=0)
def _updates(
  config: Config, upper: Weights, ends: Weights, a: Any, x: Any, targets: Any, b: Any
) -> tuple[jax.Array, jax.Array]:
  def total(b):  # Each unit's loss depends on its own copy of B only.
    losses, _ = _losses(config, upper, ends, a, x, targets, b)
    means = losses.sum(1) / jnp.maximum((targets >= 0).sum(1), 1)
    return -means.sum(), means

  copies = jnp.repeat(jnp.asarray(b)[:, None], len(x), axis=1)
  gradients, losses = jax.grad(total, has_aux=True)(copies)
  return jnp.moveaxis(gradients, 1, 0), losses


@functools.partial(jax.jit, static_argnums=0)
def _mean_losses(
  config: Config, upper: Weights, ends: Weights, a: Any, x: Any, targets: Any, b: Any
) -> jax.Array:
  losses, _ = _losses(config, upper, ends, a, x, targets, b)
  return losses.sum(1) / jnp.maximum((targets >= 0).sum(1), 1)


@functools.partial(jax.jit, static_argnums=0)
def _sums(
  config: Config, upper: Weights, ends: Weights, a: Any, x: Any, targets: Any, b: Any
) -> list[jax.Array]:
  losses, hits = _losses(config, upper, ends, a, x, targets, b)
  return [losses.sum(), hits.sum(), (targets >= 0).sum()]
