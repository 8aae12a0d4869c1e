"""Adapters import their own library alone, and name their extra where it is missing."""

import subprocess
import sys

import pytest

PEERS = {'flower': 'flwr', 'opacus': 'opacus', 'optax': 'optax', 'pfl': 'pfl'}


def run(program):
  return subprocess.run([sys.executable, '-c', program], capture_output=True, text=True)


def test_importing_the_room_imports_no_library():
  done = run(
    'import sys, fl_dpftrl.adapters;'
    f'print(sorted({{*{[*PEERS.values(), "torch", "jax"]}}} & set(sys.modules)))'
  )
  assert done.stdout == '[]\n'


@pytest.mark.parametrize('extra', PEERS)
def test_a_missing_library_is_one_line_that_names_the_extra(extra):
  done = run(f'import sys; sys.modules[{PEERS[extra]!r}] = None\nimport fl_dpftrl.adapters.{extra}')
  last = done.stderr.splitlines()[-1]
  assert done.returncode == 1 and len(last) < 300
  assert f"pip install 'fl_dpftrl[{extra}]'" in last and 'During handling' not in done.stderr
