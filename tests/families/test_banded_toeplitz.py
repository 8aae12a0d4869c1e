"""Banded Toeplitz strategies: their matrix, sensitivity and errors, and what they refuse."""

import itertools
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fl_dpftrl import error, sensitivity, workloads
from fl_dpftrl.families import banded_toeplitz
from fl_dpftrl.participation import schemas
from fl_dpftrl.sensitivity import toeplitz as toeplitz_sensitivity
from fl_dpftrl.strategies import files
from tests import drawn, oracle

WORKLOADS = {
  'prefix': workloads.Workload(),
  'momentum': workloads.Workload(0.9),
  'cooldown': workloads.Workload(0.0, cooldown_fraction=0.3),
  'everything': workloads.Workload(0.5, 0.2, 0.3),
}


def test_the_matrix_is_the_coefficients_along_its_diagonals():
  strategy = banded_toeplitz.BandedToeplitz([3.0, 2.0])
  np.testing.assert_array_equal(strategy.strategy_matrix(3), [[3, 0, 0], [2, 3, 0], [0, 2, 3]])


def test_columns_are_normalised_and_not_rows():
  matrix = banded_toeplitz.BandedToeplitz([4.0, 3.0], 3).strategy_matrix(3)
  np.testing.assert_allclose(matrix, [[0.8, 0, 0], [0.6, 0.8, 0], [0, 0.6, 1.0]])
  np.testing.assert_allclose(np.linalg.norm(matrix, axis=0), 1.0)
  assert np.linalg.norm(matrix, axis=1).max() > 1.1


def test_more_bands_than_rounds_are_cut_off():
  strategy = banded_toeplitz.BandedToeplitz([3.0, 4.0, 5.0], 2)
  np.testing.assert_allclose(strategy.strategy_matrix(2), [[0.6, 0.0], [0.8, 1.0]])


@pytest.mark.parametrize(
  'coefficients', [[], [[1.0]], 1.0, [0.0, 1.0], [-1.0], [1.0, np.nan], [np.inf]]
)
def test_refuses_other_coefficients(coefficients):
  with pytest.raises(ValueError, match='coefficients'):
    banded_toeplitz.BandedToeplitz(coefficients)


@pytest.mark.parametrize('rounds', [0, -1, 2.5, True, 'many'])
def test_refuses_other_numbers_of_rounds(rounds):
  with pytest.raises(ValueError, match='normalized_rounds'):
    banded_toeplitz.BandedToeplitz([1.0], rounds)


@pytest.mark.parametrize('normalized_rounds', [None, 9])
def test_a_file_gives_it_back(tmp_path, normalized_rounds):
  path = tmp_path / 'a.json'
  strategy = banded_toeplitz.BandedToeplitz([1.0, 0.5, 0.2], normalized_rounds)
  files.save_strategy(
    path, strategy, schema=schemas.MinSep(num_rounds=9, min_sep=3), objective='rms'
  )
  again = files.load_strategy(path)
  np.testing.assert_array_equal(again.coefficients, strategy.coefficients)
  assert again.normalized_rounds == normalized_rounds


def test_an_edited_file_is_refused(tmp_path):
  path = tmp_path / 'a.json'
  files.save_strategy(
    path,
    banded_toeplitz.BandedToeplitz([1.0, 0.5, 0.2], 9),
    schema=schemas.MinSep(num_rounds=9, min_sep=3),
    objective='rms',
  )
  text = path.read_text()
  assert '"normalized_rounds": 9' in text
  path.write_text(text.replace('"normalized_rounds": 9', '"normalized_rounds": null'))
  with pytest.raises(ValueError, match='a.json.*but its parameters give'):
    files.load(path)


def worst(strategy, schema):
  return oracle.worst_of_vectors(strategy.strategy_matrix(schema.num_rounds), schema)


@st.composite
def examples(draw, low, cls, most_rounds, monotone=False):
  """A schema and a strategy, its columns normalised or not."""
  schema = draw(drawn.schemas(cls, most_rounds))
  values = st.floats(low, 2.0).map(lambda x: round(x, 2))
  coefficients = draw(st.lists(values, min_size=1, max_size=most_rounds + 2))
  coefficients[0] = abs(coefficients[0]) + 0.1
  if monotone:
    coefficients = sorted(coefficients, reverse=True)
  more = draw(st.one_of(st.none(), st.integers(0, 3)))
  normalized = None if more is None else schema.num_rounds + more
  return schema, banded_toeplitz.BandedToeplitz(coefficients, normalized)


def check(schema, strategy, tolerance):
  truth = worst(strategy, schema)
  for most_gram_rounds in (0, 1024):  # with the bound on any X and without
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(banded_toeplitz, '_MOST_GRAM_ROUNDS', most_gram_rounds)
      value, kind = sensitivity.sensitivity(strategy, schema)
    assert value >= truth * (1 - 1e-9)
    if kind == 'exact':
      assert value == pytest.approx(truth, rel=tolerance)
    else:
      assert kind == 'upper_bound'


@pytest.mark.parametrize('cls', drawn.SCHEMAS)
@hypothesis.given(st.data())
def test_non_negative_coefficients(cls, data):
  check(*data.draw(examples(0.0, cls, 9)), 1e-9)


@pytest.mark.parametrize('cls', drawn.SCHEMAS)
@hypothesis.given(st.data())
def test_monotone_coefficients_are_exact(cls, data):
  schema, strategy = data.draw(examples(0.0, cls, 10, monotone=True))
  check(schema, strategy, 1e-9)
  if strategy.max_rounds is None:
    assert sensitivity.sensitivity(strategy, schema).kind == 'exact'


@pytest.mark.parametrize('cls', drawn.SCHEMAS)
@hypothesis.given(st.data())
def test_negative_coefficients(cls, data):
  check(*data.draw(examples(-2.0, cls, 6)), 1e-3)


@pytest.mark.parametrize('cls', drawn.SCHEMAS)
@hypothesis.given(st.data())
def test_bands_that_do_not_meet_are_exact_of_any_sign(cls, data):
  schema, strategy = data.draw(examples(-2.0, cls, 8))
  bands = min(strategy.num_bands, schema.min_sep)
  strategy = banded_toeplitz.BandedToeplitz(
    strategy.coefficients[:bands], strategy.normalized_rounds
  )
  value, kind = sensitivity.sensitivity(strategy, schema)
  assert kind == 'exact'
  # Columns that share no row: the sum of squares, whatever the updates.
  squares = np.square(strategy.strategy_matrix(schema.num_rounds)).sum(axis=0)
  assert value == pytest.approx(
    math.sqrt(max(squares[list(p)].sum() for p in oracle.patterns(schema))), rel=1e-12
  )
  if strategy.normalized_rounds == schema.num_rounds:
    assert value == pytest.approx(math.sqrt(schema.participations), rel=1e-12)


def test_neither_zeros_and_ones_nor_signs_are_enough():
  """Some columns pull towards each other, some apart: vectors do best."""
  strategy = banded_toeplitz.BandedToeplitz([1.0, 1.1, 0.0, -0.5])
  schema = schemas.MinSep(num_rounds=4)
  matrix = strategy.strategy_matrix(4)
  signs = max(np.linalg.norm(matrix @ s) for s in itertools.product((-1, 0, 1), repeat=4))
  vectors = worst(strategy, schema)
  value, kind = sensitivity.sensitivity(strategy, schema)
  assert vectors > 1.04 * signs
  assert value >= vectors * (1 - 1e-9)
  assert kind != 'exact' or value == pytest.approx(vectors, rel=1e-4)


def test_the_root_is_taken_once():
  """Rooted inside as well, the bound would be below what is reached."""
  coefficients = np.arange(1.0, 8.0)
  strategy = banded_toeplitz.BandedToeplitz(coefficients)
  schema = schemas.MinSep(num_rounds=7, min_sep=2)
  truth = worst(strategy, schema)
  gram = strategy.gram_matrix(7)
  inner = [max(row[list(p)].sum() for p in oracle.patterns(schema)) for row in gram]
  rooted = max(np.sqrt(inner)[list(p)].sum() for p in oracle.patterns(schema))
  assert math.sqrt(rooted) < 0.5 * truth
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(banded_toeplitz, '_MOST_GRAM_ROUNDS', 0)
    value, kind = sensitivity.sensitivity(strategy, schema)
  assert kind == 'upper_bound'
  assert value >= truth


def test_columns_count_and_not_rows():
  """The first column holds both coefficients, the first row only one."""
  strategy = banded_toeplitz.BandedToeplitz([3.0, 4.0])
  once = schemas.MinSep(num_rounds=2, max_participations=1)
  assert sensitivity.sensitivity(strategy, once) == (5.0, 'exact')
  assert sensitivity.sensitivity(strategy, schemas.MinSep(num_rounds=1)) == (3.0, 'exact')


@hypothesis.given(st.data())
def test_gram_matrix(data):
  schema, strategy = data.draw(examples(-2.0, schemas.MinSep, 12))
  matrix = strategy.strategy_matrix(schema.num_rounds)
  np.testing.assert_allclose(strategy.gram_matrix(schema.num_rounds), matrix.T @ matrix, atol=1e-12)


@pytest.mark.parametrize(
  'n, b, k', [(50, 3, None), (50, 3, 4), (61, 7, None), (200, 1, None), (60, 9, 6), (200, 2, 99)]
)
def test_periods_that_repeat_are_counted_and_not_summed(n, b, k):
  schema = schemas.MinSep(num_rounds=n, min_sep=b, max_participations=k)
  coefficients = np.sort(np.random.default_rng(0).uniform(size=10))[::-1]
  square, grad = toeplitz_sensitivity.earliest_square(coefficients, schema)
  matrix = banded_toeplitz.BandedToeplitz(coefficients).strategy_matrix(n)
  columns = np.arange(schema.participations) * b
  total = matrix[:, columns].sum(axis=1)
  assert square == pytest.approx(float(total @ total), rel=1e-13)
  for i, way in enumerate(np.eye(10)):
    other = banded_toeplitz.BandedToeplitz([1.0, *way[1:]]).strategy_matrix(n)
    if i:
      other = other - np.eye(n)
    slope = 2.0 * total @ other[:, columns].sum(axis=1)
    assert grad[i] == pytest.approx(slope, rel=1e-12)


def test_sensitivity_of_a_billion_rounds():
  schema = schemas.MinSep(num_rounds=10**9, min_sep=100)
  coefficients = 1.0 / np.arange(1.0, 301.0)
  value, kind = sensitivity.sensitivity(banded_toeplitz.BandedToeplitz(coefficients), schema)
  period = coefficients.reshape(3, 100).sum(axis=0)
  assert kind == 'exact'
  assert value == pytest.approx(math.sqrt(1e7 * period @ period), rel=1e-6)
  mixed = banded_toeplitz.BandedToeplitz(coefficients * (-1.0) ** np.arange(300))
  bound, kind = sensitivity.sensitivity(mixed, schema)
  assert kind in ('exact', 'upper_bound')
  assert bound <= value * (1 + 1e-6)


def test_beyond_min_sep_an_interior_that_decreases_is_exact():
  """The coefficients are not monotone, but what two columns share is."""
  coefficients = np.array([1.0, 1.2, 0.9, 0.6, 0.3])
  schema = schemas.MinSep(num_rounds=5000, min_sep=2, max_participations=100)
  strategy = banded_toeplitz.BandedToeplitz(coefficients)
  value, kind = sensitivity.sensitivity(strategy, schema)
  total = np.zeros(300)
  for start in range(0, 200, 2):
    total[start : start + 5] += coefficients
  assert (value, kind) == (pytest.approx(np.linalg.norm(total)), 'exact')


@pytest.mark.parametrize('cls', drawn.SCHEMAS)
def test_refuses_more_rounds_than_it_is_normalised_for(cls):
  strategy = banded_toeplitz.BandedToeplitz([1.0, 0.5], 4)
  with pytest.raises(ValueError, match='num_rounds=5.*4 rounds'):
    sensitivity.sensitivity(strategy, cls(num_rounds=5))


@pytest.mark.parametrize('workload', WORKLOADS.values(), ids=WORKLOADS)
@pytest.mark.parametrize('num_bands', [1, 2, 6])
def test_errors_are_row_norms_of_the_decoder(workload, num_bands):
  coefficients = np.array([1.5, 0.7, -0.3, 0.4, 0.2, 0.1])[:num_bands]
  for num_rounds, more in itertools.product((1, 2, 5, 6, 40), (None, 0, 1, 3, 9)):
    max_rounds = None if more is None else num_rounds + more
    strategy = banded_toeplitz.BandedToeplitz(coefficients, max_rounds)
    expected = oracle.per_query_error(strategy, num_rounds, workload)
    queries = error.per_query_error(strategy, num_rounds, workload)
    case = f'{num_rounds} of {max_rounds} rounds'
    np.testing.assert_allclose(queries, expected, rtol=1e-11, err_msg=case)
    result = error.error(strategy, num_rounds, workload)
    assert result.rms == pytest.approx(np.sqrt(np.mean(expected**2)), rel=1e-11), case
    assert result.max == pytest.approx(expected.max(), rel=1e-11), case


@pytest.mark.parametrize('normalized', [False, True])
def test_any_matrix_of_queries(normalized):
  queries = np.random.default_rng(0).normal(size=(3, 8))
  strategy = banded_toeplitz.BandedToeplitz([1.0, 0.5], 8 if normalized else None)
  expected = np.linalg.norm(queries @ strategy.noising_matrix(8), axis=1)
  result = error.error(strategy, 8, workloads.Matrix(queries))
  assert result.rms == pytest.approx(np.sqrt(np.mean(expected**2)))
  assert result.max == pytest.approx(expected.max())


@pytest.mark.parametrize('workload', [workloads.Workload(), workloads.Workload(0.9)])
@pytest.mark.parametrize('normalized', [False, True])
def test_the_limit_stands_for_the_tail(monkeypatch, workload, normalized):
  num_rounds = 30_000
  strategy = banded_toeplitz.BandedToeplitz(
    1.0 / np.arange(1.0, 13.0) + 0.05, num_rounds if normalized else None
  )
  short = error.error(strategy, num_rounds, workload)
  queries = error.per_query_error(strategy, num_rounds, workload)
  monkeypatch.setattr('fl_dpftrl.families.toeplitz._ALWAYS_WHOLE', num_rounds)
  whole = error.error(strategy, num_rounds, workload)
  assert short == pytest.approx(whole, rel=1e-9)
  np.testing.assert_allclose(
    queries, error.per_query_error(strategy, num_rounds, workload), rtol=1e-9
  )


def test_errors_of_a_billion_rounds():
  """Nearly all rounds are at the limit, and errors are those of a constant."""
  strategy = banded_toeplitz.BandedToeplitz([1.0, 0.5, 0.25])
  result = error.error(strategy, 10**9)
  assert result.max == pytest.approx(np.sqrt(1e9) / 1.75, rel=1e-6)
  assert result.rms == pytest.approx(np.sqrt(1e9 / 2) / 1.75, rel=1e-6)
  normalised = banded_toeplitz.BandedToeplitz(strategy.coefficients, 10**9)
  norm = np.linalg.norm(strategy.coefficients)
  assert error.error(normalised, 10**9).max == pytest.approx(norm * result.max, rel=1e-6)


def test_refuses_errors_that_cannot_be_computed():
  schedule = workloads.Workload(0.0, cooldown_fraction=0.5)
  with pytest.raises(ValueError, match='num_rounds=1000000'):
    error.error(banded_toeplitz.BandedToeplitz([1.0]), 10**6, schedule)
  with pytest.raises(ValueError, match='num_rounds=9.*8 rounds'):
    error.error(banded_toeplitz.BandedToeplitz([1.0], 8), 9)
