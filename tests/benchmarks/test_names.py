"""Names that `python -m benchmarks` takes, and the commands that they select."""

import pathlib

import pytest

from benchmarks import __main__ as lib


@pytest.mark.parametrize(
  'name', ['nothing', 'replay-2B', 'training-x', 'plan-x', 'rounds-x', 'population-x']
)
def test_unknown_names_are_refused(name, capsys):
  with pytest.raises(SystemExit) as caught:
    lib.main([name])
  assert caught.value.code == 2
  assert f'no case is called {name!r}' in capsys.readouterr().err


def test_help_lists_every_benchmark_and_case(capsys):
  with pytest.raises(SystemExit):
    lib.main(['--help'])
  shown = capsys.readouterr().out
  benchmarks = {path.parent.name for path in pathlib.Path(lib.__file__).parent.glob('*/run.py')}
  assert benchmarks == set(lib.BENCHMARKS)
  for name in (*benchmarks, 'dense', 'replay-13M-integer', 'replay-1B', 'plan-3M-exact'):
    assert name in shown
