"""Adapters import their own library alone, and name their extra where it is missing."""

import importlib
import subprocess
import sys

import pytest

PEERS = {
  'flower': 'flwr',
  'nvflare': 'nvflare',
  'opacus': 'opacus',
  'optax': 'optax',
  'peft': 'peft',
  'pfl': 'pfl',
}


def test_importing_the_room_imports_no_library():
  program = (
    'import sys, fl_dpftrl.adapters;'
    f'print(sorted({{*{[*PEERS.values(), "torch", "jax"]}}} & set(sys.modules)))'
  )
  done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True)
  assert done.stdout == '[]\n'


@pytest.mark.parametrize('extra', PEERS)
def test_a_missing_library_is_one_line_that_names_the_extra(extra, monkeypatch):
  peer = PEERS[extra]
  for name in (peer, *(name for name in sys.modules if name.startswith(f'{peer}.'))):
    monkeypatch.setitem(sys.modules, name, None)  # Other tests may have loaded its parts.
  monkeypatch.delitem(sys.modules, f'fl_dpftrl.adapters.{extra}', raising=False)
  with pytest.raises(ImportError) as raised:
    importlib.import_module(f'fl_dpftrl.adapters.{extra}')
  told = str(raised.value)
  assert len(told) < 300 and '\n' not in told and f"pip install 'fl_dpftrl[{extra}]'" in told
  assert raised.value.__suppress_context__
