"""The parts of the benchmarks that need no peer."""

import argparse
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import process
from benchmarks.optimize import cases, evaluate, ours, results, run
from fl_dpftrl import error
from fl_dpftrl.commands import optimize
from fl_dpftrl.families import banded

ROOT = pathlib.Path(__file__).parents[2]

CASE = cases.Case(
  group='blt',
  mechanism='blt',
  num_rounds=2052,
  min_sep=342,
  max_participations=6,
  objective='max',
  num_buffers=2,
)
FIGURES = {'rms_loss': 9.3435, 'max_loss': 10.8063, 'memory_copies': 2}


def side(*seconds, **kwargs):
  return results.Side(
    seconds=seconds,
    cpu_seconds=seconds,
    peak_mebibytes=100.4,
    figures=FIGURES,
    own_loss=10.8063,
    **kwargs,
  )


def test_selection():
  assert cases.select([]) == list(cases.CASES)
  assert {c.group for c in cases.select(['blt'])} == {'blt'}
  # A group is not a part of another's name.
  assert len(cases.select(['banded-'])) == 1
  assert len(cases.select(['dense', 'n100000'])) == 2
  with pytest.raises(ValueError, match="'bread'.*banded_toeplitz"):
    cases.select(['bread'])


@pytest.mark.parametrize('case', cases.CASES, ids=lambda c: c.name)
def test_ours_understands_every_case(case):
  program, command, *arguments = ours.command(case)
  assert program.endswith('fl-dpftrl')
  assert command == 'optimize'
  parser = argparse.ArgumentParser()
  optimize.add_arguments(parser)
  parser.add_argument('--json', action='store_true')
  args = parser.parse_args(arguments)
  assert args.json
  assert (args.num_bands, args.num_buffers) == (case.num_bands, case.num_buffers)


def python(program, timeout=60.0, **kwargs):
  return process.run([sys.executable, '-c', program], timeout=timeout, **kwargs)


@pytest.mark.slow
def test_process_reports_its_memory():
  # Measured by a small process, as the benchmark does: tests may be large.
  program = 'x = b"x" * (300 << 20)'
  measure = (
    'import sys; from benchmarks import process;'
    f'done = process.run([sys.executable, "-c", {program!r}], timeout=60.0);'
    'print(done.peak_mebibytes)'
  )
  measured = subprocess.run(
    [sys.executable, '-c', measure], cwd=ROOT, check=True, capture_output=True, text=True
  )
  assert 300 < float(measured.stdout) < 400


def test_process_has_one_thread_or_as_many_as_asked():
  program = 'import os; print(os.environ["OMP_NUM_THREADS"])'
  assert python(program).output == '1\n'
  assert python(program, threads=2).output == '2\n'


@pytest.mark.parametrize(
  'program, failure',
  [
    ('raise RuntimeError("loss is\\nnan")', 'RuntimeError: loss is'),
    ('import sys; sys.exit(3)', 'exit status 3'),
    ('import sys; sys.exit("no: such flag")', 'no: such flag'),
    ('import os; os.kill(os.getpid(), 9)', 'ended by SIGKILL'),
  ],
)
def test_process_says_why_it_failed(program, failure):
  assert python(program).failure == failure


def test_process_is_ended_after_its_time():
  done = python('import time; time.sleep(60)', timeout=0.3)
  assert done.failure == 'no result after 0 s'
  assert done.seconds < 30.0


def test_excess_is_in_the_objective():
  worse = results.Side(seconds=(1.0,), figures={**FIGURES, 'max_loss': 2 * 10.8063})
  row = results.Row(CASE, side(1.0), worse)
  assert row.excess == pytest.approx(-0.5)
  assert '-50.00 %' in results.table([row])


def test_peer_columns_become_our_rows():
  rng = np.random.default_rng(0)
  params = rng.uniform(0.5, 1.0, (5, 3))
  params[3, 2] = params[4, 1:] = 7.0  # outside of the matrix
  matrix = np.zeros((5, 5))
  for column in range(5):
    for j in range(min(3, 5 - column)):
      matrix[column + j, column] = params[column, j]
  matrix /= np.linalg.norm(matrix, axis=0)
  strategy = banded.Banded(evaluate.by_rows(params))
  np.testing.assert_allclose(strategy.strategy_matrix(5), matrix, atol=1e-15)
  # Rows of negative diagonal are the same mechanism.
  flipped = banded.Banded(evaluate.by_rows(-params))
  assert error.error(flipped, 5).rms == pytest.approx(error.error(strategy, 5).rms)


@pytest.mark.parametrize(
  'mechanism, found',
  [
    ('blt', {'buf_decay': [0.9, 0.5], 'output_scale': [0.1, 0.2]}),
    ('banded_toeplitz', {'coefs': [1.0, 0.5]}),
    ('banded', {'params': np.ones((8, 2))}),
    ('dense', {'matrix': np.tri(8)}),
  ],
)
def test_what_the_peer_finds_is_evaluated(mechanism, found):
  case = {'mechanism': mechanism, 'num_rounds': 8, 'min_sep': 1, 'max_participations': 1}
  arrays = {k: np.asarray(v, dtype=np.float64) for k, v in found.items()}
  losses = evaluate.losses(case, arrays)
  assert 0.0 < losses['rms_loss'] <= losses['max_loss']
  with pytest.raises(ValueError):
    evaluate.losses(case, {k: v * np.nan for k, v in arrays.items()})


def test_refuses_a_peer_that_is_none(capsys, monkeypatch):
  monkeypatch.setattr(process, 'pin', lambda num_cores: True)
  assert run.main(['--peer_python=no-such-python']) == 2
  assert 'no-such-python' in capsys.readouterr().err
