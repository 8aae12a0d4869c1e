"""Errors against B = A N written out, and against published figures."""

import numpy as np
import pytest

from fl_dpftrl import error, sensitivity, workloads
from fl_dpftrl.families import banded, identity
from fl_dpftrl.participation import schemas
from fl_dpftrl.strategies import files
from tests import every_family, oracle


@pytest.mark.parametrize('name', every_family.NAMES)
@pytest.mark.parametrize('beta', [0.0, 0.9])
def test_errors_are_row_norms_of_the_decoder(name, beta):
  for num_rounds in (1, 2, 7, 64):
    strategy = every_family.example(name, num_rounds)
    workload = workloads.Workload(beta)
    expected = oracle.per_query_error(strategy, num_rounds, workload)
    queries = error.per_query_error(strategy, num_rounds, workload)
    np.testing.assert_allclose(queries, expected, rtol=1e-12, err_msg=f'{num_rounds} rounds')
    result = error.error(strategy, num_rounds, workload)
    assert result.rms == pytest.approx(np.sqrt(np.mean(expected**2))), num_rounds
    assert result.max == pytest.approx(expected.max()), num_rounds


def test_refuses_a_workload_for_other_rounds():
  with pytest.raises(ValueError, match='workload.*5 columns'):
    error.error(identity.Identity(), 5, workloads.Matrix(np.eye(4)))


@pytest.mark.parametrize('workload', [workloads.Workload(), workloads.Matrix(np.eye(5))])
def test_refuses_more_rounds_than_the_strategy_has(workload):
  with pytest.raises(ValueError, match='num_rounds=5.*4 rounds'):
    error.error(banded.Banded(np.ones((4, 1))), 5, workload)


def losses(strategy, num_rounds, min_sep, max_participations):
  schema = schemas.MinSep(
    num_rounds=num_rounds, min_sep=min_sep, max_participations=max_participations
  )
  value = sensitivity.sensitivity(strategy, schema).value
  result = error.error(strategy, num_rounds)
  return value * result.rms, value * result.max


def test_losses_of_independent_noise():
  assert losses(identity.Identity(), 2052, 342, 6) == (
    pytest.approx(78.48, abs=0.005),
    pytest.approx(110.96, abs=0.005),
  )


def test_losses_of_the_published_blt():
  """The MaxLoss of the parameters of the b = 100 row, a local optimum."""
  strategy = files.load_strategy('blt-b100-published')
  assert losses(strategy, 2000, 100, 10)[1] == pytest.approx(18.847, abs=5e-4)


def test_losses_of_blt_as_published():
  """McMahan, Xu, Zhang 2024, accuracy table, its two headings put right."""
  strategy = files.load_strategy('blt-b400')
  assert losses(strategy, 4000, 400, 5) == (
    pytest.approx(9.7402, abs=5e-5),
    pytest.approx(10.6722, abs=5e-5),
  )


def test_errors_of_independent_noise_need_no_sum_over_the_rounds():
  """Errors for few rounds equal those of the queries; very many take no time."""
  for workload in (workloads.Workload(), workloads.Workload(0.9, 0.2)):
    queries = error.per_query_error(identity.Identity(), 7, workload)
    found = error.error(identity.Identity(), 7, workload)
    assert found.rms == pytest.approx(np.sqrt(np.mean(queries**2)), rel=1e-14)
    assert found.max == pytest.approx(queries.max(), rel=1e-14)
  assert error.error(identity.Identity(), 10**15).max == pytest.approx(10**7.5)
