"""X of streams with rows for ever, and budgets of loss, against matrices and exact δ."""

import itertools
import math

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms.families import stamped
from fl_dpftrl.mechanisms.sensitivities import endless
from fl_dpftrl.participation.rules import loss_budgets
from tests import every_family, made, oracle
from tests.mechanisms.sensitivities import adaptive

HALF = dpftrl.BLT([0.5], [0.5])
HALF_COLUMN = [1.0, *0.5 ** np.arange(1, 12)]
REAL = dpftrl.BLT([0.99531, 0.87922, 0.44417], [0.12762, 0.20040, 0.17420])
SIGNED = dpftrl.BandedToeplitz(np.array([1.0, 0.5, -0.5]))
SIGNED_COLUMN = [1.0, 0.5, -0.5, 0.0, 0.0, 0.0]
ENDLESS = {
  'identity': dpftrl.Identity(),
  'blt': dpftrl.BLT([0.9, 0.4], [0.2, 0.3]),
  'lambda_cgd': dpftrl.LambdaCGD(0.7),
  'banded_toeplitz': dpftrl.BandedToeplitz(np.array([1.0, 0.0, -0.5, 0.3])),
  'banded_inverse': dpftrl.BandedInverse(np.array([1.0, -0.5, 0.3])),
  'stamped': stamped.Stamped(dpftrl.BLT([0.9, 0.4], [0.2, 0.3]), 5),
  'stamped trees': stamped.Stamped(dpftrl.TreeOnline(), 4),
  'stamped signed': stamped.Stamped(SIGNED, 5),
}
SLACK = 2e-4  # of the grid


def pattern_loss(gram, rounds) -> float:
  """Returns Σ X[s, t] in closed form."""
  rounds = np.array(rounds, int)
  early, late = np.minimum.outer(rounds, rounds), np.maximum.outer(rounds, rounds)
  return float(gram.entries(early, late).sum())


@pytest.mark.parametrize('name', ENDLESS)
def test_entries_are_those_of_a_long_matrix(name):
  strategy, size = ENDLESS[name], 160
  matrix = strategy.strategy_matrix(size)[:, :20]
  expected = np.abs(matrix.T @ matrix)
  rounds = np.arange(20)
  early, late = np.minimum.outer(rounds, rounds), np.maximum.outer(rounds, rounds)
  for gram in (strategy.endless_gram(), strategy.endless_gram().tabulated(7)):
    entries = gram.entries(early, late)
    np.testing.assert_allclose(entries, expected, rtol=1e-9, atol=1e-15)
    assert gram.own == pytest.approx(expected.diagonal().max(), rel=1e-9)


def test_coefficients_that_are_left_out_are_bounded_by_the_sum_of_their_squares():
  """A table of 5 of 40 coefficients, at lags within it and beyond."""
  column = HALF.column(40)
  lags, rounds = endless.column_lags(column[:5], float(column[5:] @ column[5:])), np.arange(30)
  exact = endless.column_lags(column).at(rounds)
  assert (lags.at(rounds) >= exact).all() and (lags.at(rounds) < exact + 0.2).all()
  assert (endless.column_lags(column[:5]).at(rounds) < exact).any()


# B² of blocks counts signs, and a meter does not: it turns devices away that the name would admit.
@pytest.mark.parametrize('name', [name for name in ENDLESS if name != 'stamped signed'])
@pytest.mark.parametrize('min_sep, most', [(1, 1), (1, 3), (2, 3), (3, 4), (4, 2)])
def test_a_named_budget_covers_every_pattern(name, min_sep, most):
  strategy = ENDLESS[name]
  gram = strategy.endless_gram()
  named = gram.worst_square(min_sep, most)
  patterns = oracle.patterns(dpftrl.MinSep(14, min_sep, most))
  largest = max(pattern_loss(gram, pattern) for pattern in patterns if pattern)
  assert largest <= named.value**2 * (1.0 + 1e-12)
  if named.kind == 'exact' and name != 'stamped':
    assert largest == pytest.approx(named.value**2, rel=1e-9)


@pytest.mark.parametrize(
  'column, min_sep, most, square',
  [((1, 0, 0.5), 1, 2, 3.5), ((1, 0, 0.5), 1, 3, 5.75), ((1, 0, 0, 0.8), 2, 3, 8.12)],
)
def test_lags_that_are_closer_than_the_worst_are_not_the_budget(column, min_sep, most, square):
  gram = dpftrl.BandedToeplitz(np.array(column)).endless_gram()
  assert gram.worst_square(min_sep, most).value ** 2 == pytest.approx(square, rel=1e-14)
  # The figure of a column that falls, which is too small here: 2.5, 4.75 and 4.92.
  regular = np.arange(most) * min_sep
  assert pattern_loss(gram, regular) < square - 0.9


def test_a_longer_run_costs_more_up_to_the_endless_figure():
  figures = [HALF.sensitivity(dpftrl.MinSep(n, 1, 2)).value ** 2 for n in (2, 3, 60)]
  assert figures == pytest.approx([3.25, 3.8125, 4.0], rel=1e-14)
  assert HALF.endless_gram().worst_square(1, 2) == pytest.approx((2.0, 'exact'))


def test_blocks_that_start_again_need_no_last_round():
  strategy = ENDLESS['stamped']
  figures = [strategy.sensitivity(dpftrl.MinSep(n, 3, 3)).value for n in (16, 64, 512)]
  assert figures == pytest.approx([strategy.endless_gram().worst_square(3, 3).value] * 3)


@pytest.mark.slow
@pytest.mark.parametrize('strategy', [HALF, ENDLESS['blt']])
def test_every_pattern_of_twelve_rounds_in_closed_and_online_form(strategy):
  """A float a buffer is enough for a client: r_k = Σ θ_k^(t − s) over its rounds s."""
  gram, decays = strategy.endless_gram(), np.array(strategy.buffer_decay)
  factors = gram.scales / decays
  for size in range(1, 13):
    for rounds in itertools.combinations(range(12), size):
      online, buffers, last = 0.0, np.zeros(decays.size), 0
      for t in rounds:
        buffers *= decays ** (t - last)
        online += gram.own + 2.0 * float(factors @ buffers)
        buffers, last = buffers + 1.0, t
      assert online == pytest.approx(pattern_loss(gram, rounds), rel=3e-15)
    if strategy is not HALF and size == 3:
      break


def test_a_mechanism_that_needs_its_last_round_is_refused_in_one_line():
  refused = [dpftrl.TreeOnline(), dpftrl.LambdaCGD(1.0)]
  refused += [dpftrl.BandedToeplitz(np.ones(2), 9), every_family.example('dense', 9)]
  refused += [every_family.example(name, 9) for name in ('banded', 'tree_full', 'low_rank')]
  refused.append(dpftrl.BandedInverse(np.array([1.0, -1.0])))
  with pytest.raises(ValueError, match='where it is normalised: give one that is not'):
    refused[2].endless_gram()
  for strategy in refused:
    with pytest.raises(ValueError, match='last round') as error:
      loss_budgets.LossBudget(max_participations=2, min_sep=3).square(strategy)
    assert len(str(error.value)) < 200 and '\n' not in str(error.value)


@made.cases(
  'arguments, message',
  ({}, 'needs max_participations and min_sep'),
  ({'min_sep': 3}, 'needs max_participations and min_sep'),
  ({'min_sep': 3, 'max_participations': 2, 'squared': 4.0}, 'needs max_participations'),
  ({'min_sep': 0, 'max_participations': 2}, 'min_sep must be at least 1'),
  ({'squared': math.nan}, 'squared must be positive'),
  ({'squared': '4'}, 'squared must be positive'),
  ({'squared': True}, 'squared must be positive'),
  ({'squared': 4.0, 'last_row': 0}, 'last_row must be at least 1'),
)
def test_budgets_that_cannot_be(arguments, message):
  with pytest.raises(ValueError, match=message):
    loss_budgets.LossBudget(**arguments)


def test_a_budget_below_one_round_is_refused():
  with pytest.raises(ValueError, match='squared=1.3 is below the loss 1.33333 of a single round'):
    loss_budgets.LossBudget(squared=1.3).square(HALF)


def test_the_rounds_of_a_life():
  budget = loss_budgets.LossBudget(max_participations=6, min_sep=342)
  assert budget.most_participations(dpftrl.load_strategy('blt-b342-rms')) == 6
  assert budget.most_participations(dpftrl.Identity()) == 6
  assert budget.square(HALF) == pytest.approx(8.0, rel=2e-8)  # Far apart: 6 · 4/3.
  assert loss_budgets.LossBudget(squared=4.0).most_participations(HALF) == 3


@pytest.mark.parametrize(
  'name, figure', [('blt-b342-rms', 4.73451), ('blt-b342-max', 4.29e5), ('blt-b400', 1.06e4)]
)
def test_strategies_that_were_not_asked_cost_up_to_a_hundred_thousand_times(name, figure):
  value = dpftrl.load_strategy(name).endless_gram().worst_square(342, 6).value
  assert value == pytest.approx(figure, rel=0.05) and value >= figure * 0.999


def test_a_gate_that_counts_rows_up_to_now_spends_a_multiple():
  budget = REAL.endless_gram().worst_square(342, 6).value ** 2
  column, gram = REAL.column(4096), REAL.endless_gram()
  total, sums, rounds = 0.0, np.zeros(4096), 0
  while True:  # In every round, while the rows up to it cost no more than the budget.
    sums[rounds:] += column[: 4096 - rounds]
    total = float(sums[: rounds + 1] @ sums[: rounds + 1])
    if total > budget:
      break
    rounds += 1
  assert pattern_loss(gram, np.arange(rounds)) / budget == pytest.approx(3.888, abs=2e-3)


def endless_gate(gram, budget):
  return lambda past, t: pattern_loss(gram, (*past, t)) <= budget * (1.0 + 1e-9)


def test_the_right_gate_keeps_its_claim_and_others_do_not():
  gram, at = HALF.endless_gram(), {'sigma': 1.5, 'epsilon': 0.5}
  claim = adaptive.claimed(4.0, **at)
  assert claim == pytest.approx(0.36943, abs=1e-5)
  right = adaptive.delta(HALF_COLUMN, 5, endless_gate(gram, 4.0), **at)
  assert right == pytest.approx(0.36872, abs=SLACK) and right < claim
  # Checked after the round.
  after = lambda past, t: pattern_loss(gram, past) < 4.0 - 1e-9
  wrong = adaptive.delta(HALF_COLUMN, 4, after, **at)
  assert wrong == pytest.approx(0.45242, abs=SLACK) and wrong > claim + 0.08
  # Rounds are forgotten, and the stream goes on: 3 · 4/3 = 4.
  anew = lambda past, t: (len(past) + 1) * gram.own <= 4.0 + 1e-9
  wrong = adaptive.delta(HALF_COLUMN, 3, anew, **at)
  assert wrong == pytest.approx(0.49405, abs=SLACK) and wrong > claim + 0.12


@pytest.mark.slow
def test_a_gate_that_counts_rows_up_to_now_exceeds_its_claim():
  gram, at = HALF.endless_gram(), {'sigma': 1.5, 'epsilon': 0.5}
  claim = adaptive.claimed(6.4, **at)
  assert claim == pytest.approx(0.49803, abs=1e-5)
  right = adaptive.delta(HALF_COLUMN, 5, endless_gate(gram, 6.4), **at)
  assert right == pytest.approx(0.48774, abs=SLACK) and right < claim

  def up_to_now(past, t):
    rows = [sum(HALF_COLUMN[r - s] for s in (*past, t) if s <= r) for r in range(t + 1)]
    return sum(row**2 for row in rows) <= 6.4 + 1e-9

  wrong = adaptive.delta(HALF_COLUMN, 5, up_to_now, **at)
  assert wrong == pytest.approx(0.53535, abs=SLACK) and wrong > claim + 0.03


@pytest.mark.slow
def test_signs_of_x_count_as_losses():
  at = {'sigma': 1.5, 'epsilon': 1.0, 'signs': (1, -1)}
  claim = adaptive.claimed(3.5, 1.5, 1.0)
  assert claim == pytest.approx(0.21993, abs=1e-5)
  right = adaptive.delta(SIGNED_COLUMN, 5, endless_gate(SIGNED.endless_gram(), 3.5), **at)
  assert right == pytest.approx(claim, abs=SLACK)  # It is met.

  def gate(entries):
    lags = lambda rounds: np.abs(np.subtract.outer(rounds, rounds))
    x = np.array([*entries, 0.0, 0.0, 0.0])
    return lambda past, t: x[lags((*past, t))].sum() <= 3.5 + 1e-9

  signed = adaptive.delta(SIGNED_COLUMN, 5, gate([1.5, 0.25, -0.5]), **at)
  assert signed == pytest.approx(0.37298, abs=SLACK) and signed > claim + 0.15
  larger = adaptive.delta(SIGNED_COLUMN, 5, gate([1.5, 0.75, 0.5]), **at)
  assert larger == pytest.approx(0.16554, abs=SLACK)  # |C|ᵀ|C|: sound, and needless.


def test_the_loss_that_was_observed_is_no_claim():
  """Independent noise, σ 2: 9 rounds if the first release is above 3, else 1 round."""
  releases = np.linspace(-19.0, 21.0, 40_001)
  density = np.exp(-np.square(releases - 1.0) / 8.0) / math.sqrt(8.0 * math.pi)
  losses = (2.0 * releases - 1.0) / 8.0
  more = [adaptive.claimed(8.0, 2.0, 3.0 - loss) for loss in losses]
  once = np.maximum(0.0, 1.0 - np.exp(3.0 - losses))
  reached = float((density * np.where(releases > 3.0, more, once)).sum()) * 1e-3
  assert reached == pytest.approx(0.0164, abs=1e-4)
  assert adaptive.claimed(1.0, 2.0, 3.0) == pytest.approx(3.4e-10, rel=0.01)
  assert adaptive.claimed(9.0, 2.0, 3.0) == pytest.approx(0.0458, abs=1e-4)


def test_a_device_that_joins_by_the_data_of_another_is_not_covered():
  """Both updates change with the one device's data: two clip norms in place of one."""
  assert adaptive.claimed(1.0, 2.0, 1.0) == pytest.approx(0.0068, abs=5e-5)
  assert adaptive.claimed(4.0, 2.0, 1.0) == pytest.approx(0.127, abs=5e-4)
