"""Names that `python -m benchmarks` takes, and the commands that they select."""

import pathlib

import pytest

from benchmarks import __main__ as lib

PEER = f'--peer_python={lib.PEER_PYTHON}'
PFL = f'--peer_python={lib.PFL_PYTHON}'
TIMES = '--repeats=3'


@pytest.mark.parametrize(
  'names, expected',
  [
    (
      [],
      [
        ('optimize', '--only=', TIMES, PEER),
        ('replay', '--only=', TIMES),
        ('training', '--only=', TIMES, PFL),
      ],
    ),
    (['blt', 'dense'], [('optimize', '--only=blt,dense', TIMES, PEER)]),
    (['replay'], [('replay', '--only=', TIMES)]),
    (['replay-13M-text'], [('replay', '--only=replay-13M-text', TIMES)]),
    (['replay-1B'], [('replay', TIMES, '--large')]),
    (['replay', 'replay-1B'], [('replay', '--only=', TIMES), ('replay', TIMES, '--large')]),
    (['rounds'], [('rounds', PEER)]),
    (['plan-3M-exact'], [('plan', '--only=plan-3M-exact')]),
    (['population'], [('population', TIMES)]),
    (
      ['training-lstm', 'k1-max'],
      [
        ('optimize', '--only=k1-max', TIMES, PEER),
        ('training', '--only=training-lstm', TIMES, PFL),
      ],
    ),
  ],
)
def test_names_select_commands(names, expected):
  found = lib.commands(names, 3)
  assert [tuple(command[1:]) for command in found] == [
    ('-m', f'benchmarks.{benchmark}.run', *flags) for benchmark, *flags in expected
  ]


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
