"""Names of benchmarks, and the modules that they run."""

import pytest

from benchmarks import __main__ as benchmarks


@pytest.mark.parametrize(
  'name, module',
  [('replay-counted', 'replay.counted'), ('replay-1B', 'replay.run'), ('blt', 'optimize.run')],
)
def test_a_name_runs_its_module(name, module):
  (command,) = benchmarks.commands([name], 1)
  assert command[2] == f'benchmarks.{module}'
