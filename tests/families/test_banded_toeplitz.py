"""Banded Toeplitz strategies: their matrix, and what they refuse."""

import numpy as np
import pytest

from fl_dpftrl import catalogue, participation
from fl_dpftrl.families import banded_toeplitz


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
  catalogue.save_strategy(
    path, strategy, schema=participation.MinSep(num_rounds=9, min_sep=3), objective='rms'
  )
  again = catalogue.load_strategy(path)
  np.testing.assert_array_equal(again.coefficients, strategy.coefficients)
  assert again.normalized_rounds == normalized_rounds


def test_an_edited_file_is_refused(tmp_path):
  path = tmp_path / 'a.json'
  catalogue.save_strategy(
    path,
    banded_toeplitz.BandedToeplitz([1.0, 0.5, 0.2], 9),
    schema=participation.MinSep(num_rounds=9, min_sep=3),
    objective='rms',
  )
  text = path.read_text()
  assert '"normalized_rounds": 9' in text
  path.write_text(text.replace('"normalized_rounds": 9', '"normalized_rounds": null'))
  with pytest.raises(ValueError, match='a.json.*but its parameters give'):
    catalogue.load(path)
