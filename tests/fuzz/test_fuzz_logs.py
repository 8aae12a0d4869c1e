"""Mutated logs end a replay with success or with one line.

`python -m tests.fuzz.logs --count=1000` runs more of them.
"""

import pytest

from tests.fuzz import commands, logs, mutations


def test_mutations_are_the_seeds():
  content = bytes(range(256))
  assert mutations.mutated(content, 3) == mutations.mutated(content, 3)
  assert len({mutations.mutated(content, seed) for seed in range(50)}) > 45


@pytest.mark.slow
def test_originals_are_good(tmp_path):
  for suffix, content in logs.originals(tmp_path).items():
    path = tmp_path / f'log{suffix}'
    path.write_bytes(content)
    ending = commands.run(
      ['replay', f'--log={path}', '--strategy=tree_online', '--noise_multiplier=4', '--delta=1e-6']
    )
    assert ending.kind == 'success', ending


@pytest.mark.slow
def test_mutated_logs(tmp_path):
  for suffix, seed, ending in logs.endings(tmp_path, range(60)):
    assert ending.good, (suffix, seed, ending)
    if ending.kind == 'refused':
      assert f'log{suffix}' in ending.detail
