import decimal
import math
import types

import hypothesis
import pytest
from hypothesis import strategies as st

from fl_dpftrl.commands import replay_text
from fl_dpftrl.participation import accounting
from fl_dpftrl.participation.accounting import arithmetics, gaussian
from fl_dpftrl.prove.replaying import statement_parts
from fl_dpftrl.prove.reports import page
from fl_dpftrl.support import tables
from fl_dpftrl.support.text import roundings

NUMBERS = st.floats(1e-9, 1e9)
DIGITS = st.integers(1, 9)


@hypothesis.settings(deadline=None)
@hypothesis.given(NUMBERS, DIGITS)
def test_rounds_to_the_side_of_its_name(value, digits):
  exact = decimal.Decimal(value)
  up = decimal.Decimal(roundings.up(value, digits=digits))
  down = decimal.Decimal(roundings.down(value, digits=digits))
  assert float(up) >= value >= float(down)
  for shown in (up, down):
    assert abs(shown - exact) <= exact * decimal.Decimal(10) ** (1 - digits)


@hypothesis.settings(deadline=None)
@hypothesis.given(st.floats(allow_nan=False))
def test_exact_is_read_as_the_same_number(value):
  assert float(roundings.exact(value)) == value


@pytest.mark.parametrize('value, shown', [
  (3.4561, '3.457'), (1.4, '1.4'), (0.00012341, '0.0001235'), (0.0, '0'), (7, '7'), (1234, '1,234'),
  (15.8233, '15.83'), (math.inf, 'unbounded'), (-1.23456, '-1.234'),
])  # fmt: skip
def test_rounds_up(value, shown):
  assert roundings.up(value) == shown


@hypothesis.settings(deadline=None)
@hypothesis.given(NUMBERS)
def test_delta_is_never_printed_below_what_it_is(value):
  text = page.power_of_ten(value).replace('·', '*').replace('−', '-')
  text = text.replace('<sup>', '**').replace('</sup>', '')
  mantissa, _, power = text.rpartition('10**')
  shown = decimal.Decimal(mantissa.rstrip('*') or '1').scaleb(int(power))
  assert float(shown) >= value


def table_row(sigma, epsilon):
  lines = tables.table({'noise_multiplier': sigma, 'epsilon': epsilon})
  return [line.split()[-1] for line in lines.splitlines()]


def column_row(sigma, epsilon):
  rows = [{'effective_noise_multiplier': sigma, 'epsilon': epsilon}]
  return tables.columns(rows).splitlines()[-1].split()


@pytest.mark.slow
@pytest.mark.parametrize('shown', [table_row, column_row])
@hypothesis.given(st.floats(0.3, 300.0))
def test_a_printed_noise_multiplier_gives_the_printed_epsilon(shown, sigma):
  epsilon = gaussian.epsilon(sigma, 1e-6)
  again, claimed = map(float, shown(sigma, epsilon))
  assert again >= sigma
  assert gaussian.epsilon(again, 1e-6) <= claimed


def test_the_noise_of_a_finished_run_is_not_overstated():
  loss = accounting.Guarantee(
    sensitivity=1.0, sensitivity_kind='exact', noise_multiplier=1.23456, deltas=(1e-6,)
  )
  part = statement_parts.Part(name='worst_case', guarantee=loss)
  table = replay_text._guarantees(
    types.SimpleNamespace(
      parts=(part,),
      void_reason=None,
      deltas=(1e-6,),
      rounding=None,
      arithmetic=arithmetics.Arithmetic(),
    )
  )
  shown = {line.rsplit(maxsplit=1)[0]: line.split()[-1] for line in table if line}
  assert shown['noise / sensitivity'] == '1.234'
  assert shown['ρ (zCDP)'] == '0.3281'


@pytest.mark.parametrize('value, up, down', [
  (1.0, '1', '1'), (1.0000000000000002, '1', '1'), (0.9999999999999998, '1', '1'),
  (2.0000001, '2.001', '2'), (1.9999999, '2', '1.999'), (2.4494897, '2.45', '2.449'),
])  # fmt: skip
def test_what_is_computed_is_shown_without_its_last_bit(value, up, down):
  assert roundings.computed(value) == up and roundings.computed_down(value) == down
