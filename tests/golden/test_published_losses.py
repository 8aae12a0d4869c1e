"""Losses of every mechanism at the setting of the papers' experiments."""

import json
import pathlib

import pytest

from fl_dpftrl.optimization import registry
from fl_dpftrl.participation import schemas
from fl_dpftrl.strategies import files

TABLE = json.loads(pathlib.Path(__file__).with_name('losses_2052.json').read_text())
ROWS = [
  pytest.param(
    row,
    id='-'.join([row['mechanism'], row['objective'], *map(str, row.get('size', {}).values())]),
    marks=[pytest.mark.slow] if row.get('slow') else [],
  )
  for row in TABLE['rows']
]


@pytest.mark.slow
@pytest.mark.parametrize('row', ROWS)
def test_losses(row):
  schema = schemas.MinSep(**TABLE['setting'])
  strategy = registry.optimize(
    row['mechanism'], schema, objective=row['objective'], **row.get('size', {})
  )
  figures = files.describe(strategy, schema=schema).figures
  assert figures['sensitivity_kind'] == 'exact'
  for name in ('rms_loss', 'max_loss'):
    if name not in row:
      continue
    half_a_digit = 0.5 * 10.0 ** -len(str(row[name]).split('.')[1])
    if row['is'] == 'equal':
      assert figures[name] == pytest.approx(row[name], abs=half_a_digit)
    else:
      assert figures[name] <= row[name] + half_a_digit
