"""The parts of the benchmarks that need no peer."""

import argparse

import numpy as np
import pytest

from benchmarks.optimize import cases, evaluate, ours
from fl_dpftrl import error
from fl_dpftrl.commands import optimize
from fl_dpftrl.families import banded


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
