"""BLTs: coefficients by their definition; sensitivity and errors of C written out."""

import itertools
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import sensitivities, workload_error, workloads
from fl_dpftrl.mechanisms.families import blt

BLTS = {
  'plain': ([0.99, 0.5], [0.2, 0.7]),
  'b100 as published, decays 2e-11 apart': (
    [0.989739971007307, 0.7352001759538236, 0.16776199983448145, 0.1677619998016191],
    [0.20502892852480875, 0.23357939425278557, 0.03479503245420878, 0.03479509876050538],
  ),
  'b400 as published, nearly 1': (
    [0.9999999999921251, 0.9944453083640997, 0.8985923474607591, 0.4912001418098778],
    [0.0070314825502323835, 0.10613806907600574, 0.1898159060327625, 0.1966594748073734],
  ),
  'next to 1': ([1.0 - 2.0**-53, 0.9], [1e-9, 0.1]),
  'equal': ([0.5, 0.5], [0.3, 0.4]),
  'tiny': ([1e-300, 1e-3], [0.5, 0.5]),
  'negative inverse decay': ([1e-4], [0.9]),
  'nothing': ([0.5], [0.0]),
}


def test_coefficients_by_their_definition():
  strategy = blt.BLT([0.5, 0.25], [0.1, 0.2])
  expected = [1.0] + [0.1 * 0.5**i + 0.2 * 0.25**i for i in range(5)]
  np.testing.assert_allclose(strategy.column(6), expected, rtol=1e-15)
  assert strategy.num_buffers == strategy.memory_copies(6) == 2


def column(strategy, num_rounds):
  """The first column of C in long doubles."""
  exponents = np.arange(num_rounds - 1)
  terms = sum(
    np.longdouble(scale) * np.longdouble(decay) ** exponents
    for decay, scale in zip(strategy.buffer_decay, strategy.output_scale)
  )
  return np.append(np.longdouble(1.0), terms)


def inverse(first):
  """The first column of C⁻¹, by forward substitution."""
  result = np.zeros_like(first)
  result[0] = 1.0
  for t in range(1, first.size):
    result[t] = -(first[1 : t + 1] @ result[t - 1 :: -1][:t])
  return result


@pytest.mark.parametrize('arguments', BLTS.values(), ids=BLTS)
@pytest.mark.parametrize('num_rounds', [1, 2, 65, 700])
def test_sensitivity_against_the_columns_of_c(arguments, num_rounds):
  strategy = blt.BLT(*arguments)
  first = column(strategy, num_rounds)
  for min_sep, most in itertools.product((1, 2, 30, 64, 800), (1, 2, 7, None)):
    schema = dpftrl.MinSep(num_rounds=num_rounds, min_sep=min_sep, max_participations=most)
    total = np.zeros_like(first)
    for a in range(schema.participations):
      start = a * min_sep
      total[start:] += first[: num_rounds - start]
    expected = float(np.sqrt(np.sum(total**2)))
    result = sensitivities.sensitivity(strategy, schema)
    assert result.kind == 'exact'
    # Never below the truth by more than rounding, whatever the decays.
    assert math.isclose(result.value, expected, rel_tol=5e-15)


@pytest.mark.parametrize('arguments', BLTS.values(), ids=BLTS)
@pytest.mark.parametrize('num_rounds', [1, 2, 7, 65, 600])
def test_errors_against_the_inverse_of_c(arguments, num_rounds):
  strategy = blt.BLT(*arguments)
  prefix = np.cumsum(inverse(column(strategy, num_rounds)))
  for momentum in (0.0, 1e-3, 0.5, 0.9, 0.9999):
    decoder = prefix.copy()
    for t in range(1, num_rounds):
      decoder[t] += np.longdouble(momentum) * decoder[t - 1]
    squares = np.cumsum(decoder**2)
    result = workload_error.error(strategy, num_rounds, workloads.Workload(momentum))
    assert math.isclose(result.rms, float(np.sqrt(squares.mean())), rel_tol=1e-13), momentum
    assert math.isclose(result.max, float(np.sqrt(squares[-1])), rel_tol=1e-13), momentum


def test_refuses_a_schedule_over_too_many_rounds():
  with pytest.raises(ValueError, match='num_rounds=1000000000.*at most 16777216 rounds'):
    workload_error.error(blt.BLT([0.9], [0.1]), 10**9, workloads.Workload(0.0, 0.1, 0.1))


@hypothesis.given(
  st.lists(
    st.tuples(st.floats(0.0, 1.0, exclude_min=True, exclude_max=True), st.floats(0.0, 1.0)),
    min_size=1,
    max_size=6,
  )
)
def test_coefficients_never_increase(pairs):
  decay, scale = zip(*pairs)
  if sum(scale) > 1.0:
    with pytest.raises(ValueError, match='output_scale'):
      blt.BLT(decay, scale)
    return
  coefficients = blt.BLT(decay, scale).column(50)
  assert (coefficients >= 0.0).all()
  assert (np.diff(coefficients) <= 0.0).all()


def test_figures_of_a_billion_rounds():
  """Closed forms of one buffer, in steps that cannot go wrong."""
  num_rounds, step, count = 10**9, 10**6, 10
  decay, scale = 1.0 - 2.0**-30, 2.0**-16
  strategy = blt.BLT([decay], [scale])
  rate = -math.log1p(-(2.0**-30))

  def powers(rate, length):
    return math.expm1(-rate * length) / math.expm1(-rate)

  # Between participations C's columns sum to scale · decay^r · carried.
  square, carried = 0.0, 0.0
  for a in range(count):
    length = step if a < count - 1 else num_rounds - (count - 1) * step
    left = scale * carried
    square += (1.0 + left) ** 2
    # The row of the participation itself, then the rest up to the next.
    carried = decay * carried + 1.0
    square += (scale * carried) ** 2 * powers(2.0 * rate, length - 1)
    carried *= math.exp(-rate * (length - 1))
  schema = dpftrl.MinSep(num_rounds=num_rounds, min_sep=step, max_participations=count)
  result = sensitivities.sensitivity(strategy, schema)
  assert math.isclose(result.value, math.sqrt(square), rel_tol=1e-13)

  # C⁻¹ sums to limit + share · hat^i.
  hat_rate = -math.log1p(-(2.0**-30 + scale))
  limit = 2.0**-30 / (2.0**-30 + scale)
  share = scale / (2.0**-30 + scale)
  square = (
    limit**2 * num_rounds
    + 2.0 * limit * share * powers(hat_rate, num_rounds)
    + share**2 * powers(2.0 * hat_rate, num_rounds)
  )
  result = workload_error.error(strategy, num_rounds)
  assert math.isclose(result.max, math.sqrt(square), rel_tol=1e-12)
  assert result.rms < result.max


@pytest.mark.parametrize('min_sep, most', [(1, None), (3, None), (10, 10**8)])
def test_a_billion_rounds_with_very_many_participations(min_sep, most):
  """Every round's contribution grows to that of the whole history."""
  schema = dpftrl.MinSep(num_rounds=10**9, min_sep=min_sep, max_participations=most)
  strategy = blt.BLT([0.5], [0.25])
  value = sensitivities.sensitivity(strategy, schema).value
  # Away from the start the columns' sum repeats itself every min_sep rows.
  first = column(strategy, 50 * 30).astype(float)
  total = np.zeros_like(first)
  for start in range(0, first.size, min_sep):
    total[start:] += first[: first.size - start]
  period = total[-30:] @ total[-30:] / 30
  assert value == pytest.approx(math.sqrt(1e9 * period), rel=1e-7)
