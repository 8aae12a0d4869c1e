"""Losses of the peer's strategies, by our own code."""

from collections.abc import Mapping
from typing import Any

import numpy as np

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import base
from fl_dpftrl.mechanisms.families import banded, banded_toeplitz, blt, dense
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.mechanisms.search import banded_search as optimization


def strategy(case: Mapping[str, Any], parameters: Mapping[str, np.ndarray]) -> base.Strategy:
  """Converts the peer's parameters to one of our strategies.

  Banded Toeplitz coefficients get columns of norm 1, which can only improve them.
  """
  match case['mechanism']:
    case 'blt':
      return blt.BLT(parameters['buf_decay'], parameters['output_scale'])
    case 'banded_toeplitz':
      return banded_toeplitz.BandedToeplitz(parameters['coefs'], case['num_rounds'])
    case 'banded':
      return banded.Banded(by_rows(parameters['params']))
    case 'dense':
      matrix = np.tril(parameters['matrix'])
      return dense.Dense(matrix / np.linalg.norm(matrix, axis=0).max())
    case unknown:
      raise ValueError(f'the peer has no {unknown}')


def by_rows(params: np.ndarray) -> np.ndarray:
  """Converts [column, row − column] to [row, row − column], columns of norm 1."""
  num_rounds, num_bands = params.shape
  inside = np.arange(num_rounds)[:, None] + np.arange(num_bands) < num_rounds
  columns = np.where(inside, params.astype(np.float64), 0.0)
  columns /= np.linalg.norm(columns, axis=1, keepdims=True)
  rows = optimization.to_rows(columns.T)
  # The sign of a row of C, and so of its noise, has no effect. Our strategies have a positive
  # diagonal.
  return rows * np.sign(rows[:, :1])


def losses(case: Mapping[str, Any], path: str) -> dict[str, float]:
  """Returns rms_loss, max_loss and copies of the model; ValueError for no valid strategy."""
  schema = dpftrl.MinSep(
    num_rounds=case['num_rounds'],
    min_sep=case['min_sep'],
    max_participations=case['max_participations'],
  )
  with np.load(path) as parameters:
    converted = strategy(case, dict(parameters))
  figures = files.describe(converted, schema=schema).figures
  copies = converted.memory_copies(schema.num_rounds)
  return {**{n: figures[n] for n in ('rms_loss', 'max_loss')}, 'memory_copies': copies}
