"""The frozen Llama and its additions, on a small made-up one."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.finetune import small

TOKENS = np.random.default_rng(1).integers(0, small.NUM_TOKENS, (3, 9))
B = np.random.default_rng(2).normal(size=(2, 3, small.NUM_VALUES))


def _logits(frozen, tokens, b):
  return np.asarray(frozen.logits(frozen.features(tokens), b))


def _reference(frozen, tokens, b):
  """Logits of one text [time], one token and one head after another, in float64."""
  config, size = frozen.config, small.CONFIG.width // small.CONFIG.num_heads
  unit = lambda x, scale: x / np.sqrt((x * x).mean() + config.norm_epsilon) * scale

  def turned(vector, place):
    pairs = vector[::2] + 1j * vector[1::2]
    pairs = pairs * np.exp(1j * place * config.rope_base ** -(np.arange(size // 2) * 2 / size))
    return np.stack([pairs.real, pairs.imag], -1).ravel()

  rows = [np.asarray(frozen.ends['embedding'][token], np.float64) for token in tokens]
  lower = len(frozen.lower['attn_v'])
  for l in range(config.num_layers):
    stack, i = (frozen.lower, l) if l < lower else (frozen.upper, l - lower)
    w = {name: np.asarray(array[i], np.float64) for name, array in stack.items()}
    v = w['attn_v'] + (0 if l < lower else np.asarray(frozen.a[i], np.float64) @ b[i])
    normal = [unit(x, w['attn_norm']) for x in rows]
    following = []
    for t, x in enumerate(rows):
      heads = []
      for head in range(config.num_heads):
        group = head * config.num_groups // config.num_heads
        own, shared = (slice(h * size, (h + 1) * size) for h in (head, group))
        q = turned((normal[t] @ w['attn_q'])[own], t)
        keys = [turned((normal[s] @ w['attn_k'])[shared], s) for s in range(t + 1)]
        shares = np.exp([q @ k / size**0.5 for k in keys])
        values = [(normal[s] @ v)[shared] for s in range(t + 1)]
        heads.append(shares @ values / shares.sum())
      x = x + np.concatenate(heads) @ w['attn_output']
      y = unit(x, w['ffn_norm'])
      gate = y @ w['ffn_gate']
      following.append(x + (gate / (1 + np.exp(-gate)) * (y @ w['ffn_up'])) @ w['ffn_down'])
    rows = following
  head, norm = (np.asarray(frozen.ends[name], np.float64) for name in ('head', 'norm'))
  return np.stack([unit(x, norm) @ head.T for x in rows])


@pytest.mark.parametrize('scale', [0.0, 1.0])
def test_logits_are_those_of_a_computation_one_token_after_another(scale):
  frozen = small.network()
  logits = _logits(frozen, TOKENS, scale * B)
  for tokens, result in zip(TOKENS, logits):
    np.testing.assert_allclose(result, _reference(frozen, tokens, scale * B), rtol=2e-3, atol=2e-4)


def test_gradients_of_three_units_are_finite_differences():
  with jax.enable_x64(True):
    frozen = small.network(dtype=np.float64)
    features, targets = frozen.features(TOKENS[:, :-1]), TOKENS[:, 1:].copy()
    targets[1, 5:] = -1
    updates, losses = map(np.asarray, frozen.updates(features, targets, B, 20))
    ends = {**frozen.ends, 'head': frozen.ends['head'][:20]}

    def loss(unit, b):
      shortened = dataclasses.replace(frozen, ends=ends)
      row = targets[unit : unit + 1]
      kept = np.where(row < 20, row, -1)
      (total,), _, (count,) = np.asarray(shortened.sums(features[unit : unit + 1], kept, b))
      return total / count

    for unit in range(3):
      assert losses[unit] == pytest.approx(loss(unit, B), rel=1e-6)
      for place in [(0, 0, 0), (0, 2, 5), (1, 1, 3), (1, 2, 7)]:
        step = np.zeros_like(B)
        step[place] = 1e-5
        slope = (loss(unit, B + step) - loss(unit, B - step)) / 2e-5
        assert updates[unit][place] == pytest.approx(-slope, rel=1e-5, abs=1e-9)


def test_a_unit_changes_no_other_units_update():
  frozen = small.network()
  updates = lambda tokens: np.asarray(
    frozen.updates(frozen.features(tokens[:, :-1]), tokens[:, 1:], B, small.NUM_TOKENS)[0]
  )
  changed = TOKENS.copy()
  changed[1] = (changed[1] + 7) % small.NUM_TOKENS
  first, second = updates(TOKENS), updates(changed)
  np.testing.assert_allclose(first[[0, 2]], second[[0, 2]], rtol=1e-5, atol=1e-7)
  assert abs(first[1] - second[1]).max() > 1e-3


def test_a_unit_without_a_target_has_no_update():
  frozen = small.network()
  features = frozen.features(TOKENS[:, :-1])
  updates, _ = frozen.updates(features, np.full((3, 8), -1), B, small.NUM_TOKENS)
  assert not np.asarray(updates).any()
