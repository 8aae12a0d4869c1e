"""Features on disk, in blocks of which each is computed once."""

import re

import numpy as np
import pytest

from experiments.finetune import features

TOKENS = np.arange(2 * 75).reshape(75, 2)


def compute(tokens):
  assert tokens.shape == (features.BLOCK_ROWS, 2)  # One program for all blocks.
  return np.stack([tokens / 8, -tokens / 8, tokens % 5], -1)


EXPECTED = np.concatenate(
  [compute(np.resize(TOKENS[i : i + 32], (32, 2)))[: len(TOKENS[i : i + 32])] for i in (0, 32, 64)]
)


def test_rows_are_those_that_were_computed(tmp_path):
  stored = features.stored(tmp_path / 'rows', TOKENS, compute)
  assert stored.dtype == np.float16
  np.testing.assert_array_equal(stored, EXPECTED.astype(np.float16))
  assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.rglob('*'))


@pytest.mark.parametrize('killed_at', range(4))
def test_a_stage_that_was_killed_goes_on_with_its_block(tmp_path, killed_at, capsys):
  """Also one that was killed while it wrote."""
  blocks = []

  def stopping(tokens):
    blocks.append(int(tokens[0, 0]) // 64)
    if len(blocks) > killed_at:
      raise KeyboardInterrupt
    return compute(tokens)

  if killed_at < 3:
    with pytest.raises(KeyboardInterrupt):
      features.stored(tmp_path, TOKENS, stopping)
  else:
    features.stored(tmp_path, TOKENS, stopping)
  (tmp_path / '.writing-0123456789abcdef').write_bytes(b'half')
  capsys.readouterr()
  again = []
  stored = features.stored(tmp_path, TOKENS, lambda tokens: again.append(0) or compute(tokens))
  starts = re.findall(r'^frozen layers: (\d+) of 75 ', capsys.readouterr().err, re.M)
  assert len(again) == 3 - killed_at and starts == ['0', '32', '64'][killed_at:]
  np.testing.assert_array_equal(stored, EXPECTED.astype(np.float16))


@pytest.mark.parametrize('content', [b'', b'no array', 200])
def test_a_damaged_block_is_named(tmp_path, content):
  features.stored(tmp_path, TOKENS, compute)
  path = tmp_path / '00000032.npy'
  path.write_bytes(path.read_bytes()[:content] if isinstance(content, int) else content)
  with pytest.raises(ValueError, match='00000032.npy is damaged: remove it'):
    features.stored(tmp_path, TOKENS, compute)
