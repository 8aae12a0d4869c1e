"""A frozen Llama in JAX, with low-rank additions to the values of its last layers.

Attention's values of layer l become y·V + (y·A_l)·B_l. A is random and fixed, and only B learns
(FFA-LoRA, Sun et al. 2024), so the model is linear in the sums of releases. The lower layers are
computed once for each text.
"""

import dataclasses
import functools
import hashlib
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_dpftrl.support.text import messages

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


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['lower', 'upper', 'ends', 'a'],
  meta_fields=['config'],
  drop_fields=['name', 'num_parameters', 'digest', 'tokenizer'],
)
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Model:
  """A pretrained model.

  Attributes:
    config: sizes.
    tokenizer: text → ids and back; None in compiled programs.
    lower, upper: weights of the layers without and with additions, by name; matrices are
      [layers, inputs, outputs].
    ends: 'embedding' and 'head', [tokens, width], and 'norm', [width].
    a: the fixed factors of the additions, [upper layers, width, rank].
    name: name of the model, as its file has it.
    num_parameters: frozen parameters.
    digest: SHA-256 of the file.
  """

  config: Config
  lower: Weights
  upper: Weights
  ends: Weights
  a: jax.Array
  name: str = ''
  num_parameters: int = 0
  digest: str = ''
  tokenizer: Any = None

  @property
  def zeros(self) -> np.ndarray:
    """Returns B before training, float32 [upper layers, rank, values]."""
    return np.zeros((len(self.a), self.a.shape[2], self.upper['attn_v'].shape[2]), np.float32)

  @jax.jit
  def features(self, tokens: Any) -> Any:
    """Returns what the lower layers make of tokens [units, time]: [units, time, width].

    Of units that begin alike, both are pairs: beginnings, and what follows, as much of each.
    """
    x = jax.tree.map(lambda ids: self.ends['embedding'][jnp.maximum(ids, 0)], tokens)
    return self._through(x, self.lower) if self.lower else x

  def logits(self, features: Any, b: Any, num_words: int | None = None) -> jax.Array:
    """Returns logits of the first tokens, the most frequent ones, [units, time, num_words].

    Beginnings of units have none.
    """
    start = jax.tree.map(lambda x: jnp.asarray(x, self.a.dtype), features)
    x = self._through(start, self.upper, self.a, b)
    x = x[1] if isinstance(x, tuple) else x
    return _norm(self.config, x, self.ends['norm']) @ self.ends['head'][:num_words].T

  def _through(self, x: Any, *stacks: Any) -> Any:
    """Returns what layers make of units, or of beginnings and what follows."""

    def step(x: Any, layer: Any) -> tuple[Any, None]:
      if not isinstance(x, tuple):
        return _layer(self.config, x, *layer)[0], None
      beginnings, cache = _layer(self.config, x[0], *layer)
      return (beginnings, _layer(self.config, x[1], *layer, cache=cache)[0]), None

    return jax.lax.scan(step, x, stacks)[0]

  @functools.partial(jax.jit, static_argnames='num_words')
  def updates(
    self, features: Any, targets: Any, b: Any, num_words: int
  ) -> tuple[jax.Array, jax.Array]:
    """Returns minus the gradient of each unit's mean loss, [units, *b.shape], and the losses.

    Targets [units, time] follow the features [units, time, width]; negative ones, and those after
    the first `num_words`, the most frequent ones, are left out.
    """
    targets = jnp.where(targets < num_words, targets, -1)

    def loss(b, features, targets):
      losses = _losses(self.logits(features[None], b, num_words), targets[None])
      return losses.sum() / jnp.maximum((targets >= 0).sum(), 1)

    losses, gradients = jax.vmap(jax.value_and_grad(loss), (None, 0, 0))(b, features, targets)
    return -gradients, losses

  @functools.partial(jax.jit, static_argnames='num_words')
  def sums(self, features: Any, targets: Any, b: Any, num_words: int | None = None) -> jax.Array:
    """Returns each unit's loss in nats, targets predicted, and targets, [3, units]."""
    logits = self.logits(features, b, num_words)
    hits = logits.argmax(-1) == targets
    return jnp.stack([_losses(logits, targets).sum(1), hits.sum(1), (targets >= 0).sum(1)])


def load(path: str | os.PathLike[str], *, num_trained: int, rank: int, seed: int) -> Model:
  """Returns the model of a GGUF file, whose last layers get additions that are zero at first.

  A smaller model gets them in all its layers. The seed draws A, of so many columns as the rank.

  Raises:
    ValueError: for another architecture or tokenizer.
  """
  import gguf  # Its environment is that of `make finetune`.

  reader = gguf.GGUFReader(path)
  fields = {name: field.contents() for name, field in reader.fields.items()}
  expected = {'general.architecture': 'llama', 'tokenizer.ggml.model': 'gpt2'}
  expected['tokenizer.ggml.pre'] = 'smollm'
  for name, value in expected.items():
    if fields.get(name) != value:
      raise ValueError(f'{messages.quoted(str(path))} must have {name}={value}')
  config = Config(
    num_layers=fields['llama.block_count'],
    width=fields['llama.embedding_length'],
    num_heads=fields['llama.attention.head_count'],
    num_groups=fields['llama.attention.head_count_kv'],
    rope_base=fields.get('llama.rope.freq_base', 10_000.0),
    norm_epsilon=fields['llama.attention.layer_norm_rms_epsilon'],
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
    tokenizer=_tokenizer(fields['tokenizer.ggml.tokens'], fields['tokenizer.ggml.merges']),
    lower=layers(range(middle)) if middle else {},
    upper=layers(range(middle, config.num_layers)),
    ends={'embedding': embedding, 'head': head, 'norm': jnp.asarray(read('output_norm.weight'))},
    a=jnp.asarray(a / config.width**0.5, jnp.float32),
    name=fields.get('general.name', ''),
    num_parameters=sum(int(tensor.n_elements) for tensor in reader.tensors),
    digest=hashlib.sha256(reader.data).hexdigest(),
  )


def _tokenizer(tokens: list[str], merges: list[str]) -> Any:
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


def _rotated(config: Config, x: jax.Array, start: int) -> jax.Array:
  """Turns neighbouring pairs of x [units, time, heads, size] by position, as GGUF orders them."""
  size = x.shape[-1]
  speed = config.rope_base ** -(jnp.arange(0, size, 2) / size)
  angle = (start + jnp.arange(x.shape[1]))[:, None, None] * speed
  cos, sin, even, odd = jnp.cos(angle), jnp.sin(angle), x[..., ::2], x[..., 1::2]
  return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)


def _layer(
  config: Config, x: jax.Array, w: Weights, *addition: Any, cache: Any = None
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
  """Returns a layer of x [units, time, width], and its keys and values.

  The addition is A [width, rank], and B [rank, values]. The cache has keys and values of beginnings
  of units; each beginning serves the same number of consecutive units.
  """
  units, time, _ = x.shape
  y = _norm(config, x, w['attn_norm'])
  v = y @ w['attn_v']
  if addition:
    v = v + (y @ addition[0]) @ addition[1]
  heads = lambda z, count: z.reshape(units, time, count, -1)
  start = 0 if cache is None else cache[0].shape[1]
  q = _rotated(config, heads(y @ w['attn_q'], config.num_heads), start)
  q = q.reshape(units, time, config.num_groups, -1, q.shape[-1])
  k = _rotated(config, heads(y @ w['attn_k'], config.num_groups), start)
  v = heads(v, config.num_groups)
  if cache is not None:
    earlier = (jnp.repeat(z, units // len(z), axis=0) for z in cache)
    k, v = (jnp.concatenate(pair, axis=1) for pair in zip(earlier, (k, v)))
  scores = jnp.einsum('utghc,usgc->ughts', q, k) / q.shape[-1] ** 0.5
  is_past = jnp.tril(jnp.ones((time, start + time), bool), start)
  shares = jax.nn.softmax(jnp.where(is_past, scores, -jnp.inf))
  mixed = jnp.einsum('ughts,usgc->utghc', shares, v)
  x = x + mixed.reshape(x.shape) @ w['attn_output']
  y = _norm(config, x, w['ffn_norm'])
  return x + (jax.nn.silu(y @ w['ffn_gate']) * (y @ w['ffn_up'])) @ w['ffn_down'], (k, v)


def _losses(logits: jax.Array, targets: Any) -> jax.Array:
  """Returns losses in nats, [units, time]; 0 without a target."""
  picked = jnp.take_along_axis(logits, jnp.maximum(targets, 0)[..., None], -1)[..., 0]
  return jnp.where(targets >= 0, jax.nn.logsumexp(logits, -1) - picked, 0)
