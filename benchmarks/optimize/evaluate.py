"""Evaluates the losses of the peer's strategies with our own code.

python -m benchmarks.optimize.evaluate CASE.json FOUND.npz
"""

import json
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from fl_dpftrl.families import banded, banded_toeplitz, base, blt, dense
from fl_dpftrl.participation import schemas
from fl_dpftrl.strategies import files


def strategy(case: Mapping[str, Any], found: Mapping[str, np.ndarray]) -> base.Strategy:
  """Converts the peer's parameters to one of our strategies.

  Banded Toeplitz coefficients get columns of norm 1, which can only improve
  them; the peer's own ColumnNormalizedBanded does the same.
  """
  match case['mechanism']:
    case 'blt':
      return blt.BLT(found['buf_decay'], found['output_scale'])
    case 'banded_toeplitz':
      return banded_toeplitz.BandedToeplitz(found['coefs'], case['num_rounds'])
    case 'banded':
      return banded.Banded(by_rows(found['params']))
    case 'dense':
      matrix = np.tril(found['matrix'])
      return dense.Dense(matrix / np.linalg.norm(matrix, axis=0).max())
    case unknown:
      raise ValueError(f'the peer has no {unknown}')


def by_rows(params: np.ndarray) -> np.ndarray:
  """Converts [column, row − column] to [row, row − column], columns of norm 1."""
  num_rounds, num_bands = params.shape
  inside = np.arange(num_rounds)[:, None] + np.arange(num_bands) < num_rounds
  columns = np.where(inside, params.astype(np.float64), 0.0)
  columns /= np.linalg.norm(columns, axis=1, keepdims=True)
  rows = np.zeros_like(columns)
  for j in range(num_bands):
    rows[j:, j] = columns[: num_rounds - j, j]
  # The sign of a row of C, and so of its noise, has no effect. Our strategies
  # have a positive diagonal.
  return rows * np.sign(rows[:, :1])


def losses(case: Mapping[str, Any], found: Mapping[str, np.ndarray]) -> dict[str, float]:
  """Returns rms_loss, max_loss and the number of model copies of the noise.

  Raises:
    ValueError: if the parameters are no valid strategy, such as not finite.
  """
  schema = schemas.MinSep(
    num_rounds=case['num_rounds'],
    min_sep=case['min_sep'],
    max_participations=case['max_participations'],
  )
  theirs = strategy(case, found)
  figures = files.describe(theirs, schema=schema).figures
  return {
    'rms_loss': figures['rms_loss'],
    'max_loss': figures['max_loss'],
    'memory_copies': theirs.memory_copies(schema.num_rounds),
  }


def main() -> int:
  case_file, found_file = sys.argv[1:]
  case = json.loads(pathlib.Path(case_file).read_text())
  with np.load(found_file) as found:
    try:
      print(json.dumps(losses(case, dict(found))))
    except ValueError as e:
      print(f'ValueError: {e}', file=sys.stderr)
      return 1
  return 0


if __name__ == '__main__':
  sys.exit(main())
