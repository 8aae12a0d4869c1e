"""Losses of every mechanism at the setting of the papers' experiments."""

import functools
import json
import pathlib

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.planning import optimization
from tests import pages

TABLE = json.loads(pathlib.Path(__file__).with_name('losses_2052.json').read_text())
ROWS = [
  pytest.param(
    row,
    id='-'.join([row['mechanism'], row['objective'], *map(str, row.get('size', {}).values())]),
    marks=[pytest.mark.thorough] if row.get('thorough') else [],
  )
  for row in TABLE['rows']
]


@functools.cache
def figures_of(mechanism, objective, *size):
  """Figures of the best strategy of a size, which tests share."""
  schema = dpftrl.MinSep(**TABLE['setting'])
  strategy = optimization.optimize(mechanism, schema, objective=objective, **dict(size))
  return files.describe(strategy, schema=schema).figures


@pytest.mark.slow
@pytest.mark.parametrize('row', ROWS)
def test_losses(row):
  figures = figures_of(row['mechanism'], row['objective'], *row.get('size', {}).items())
  assert figures['sensitivity_kind'] == 'exact'
  for name in ('rms_loss', 'max_loss'):
    if name not in row:
      continue
    half_a_digit = 0.5 * 10.0 ** -len(str(row[name]).split('.')[1])
    if row['is'] == 'equal':
      assert figures[name] == pytest.approx(row[name], abs=half_a_digit)
    else:
      assert figures[name] <= row[name] + half_a_digit


@pytest.mark.slow
@pytest.mark.parametrize('row, sizes', [
  ('`identity`', [None]), ('`tree_online`', [None]), ('`tree_full`', [None]),
  ('`lambda_cgd`', [None]),
  ('`banded_inverse`', [8]), ('`banded_inverse_sqrt`', [8]), ('`banded_sqrt`', [None]),
  pytest.param('`banded_inverse` with 2, 8 and 32', [2, 8, 32], marks=pytest.mark.thorough),
  ('`blt` with', [1, 2, 4]),
])  # fmt: skip
def test_the_page_of_strategies_has_the_losses_of_the_command(row, sizes):
  name = row.split('`')[1]
  size = {'blt': 'num_buffers'}.get(name, 'num_bands')
  shown = [
    ', '.join(
      f'{figures_of(name, objective, *[(size, n)] * (n is not None))[f"{objective}_loss"]:.2f}'
      for n in sizes
    )
    for objective in ('rms', 'max')
  ]
  lines = [line for line in (pages.DOCS / 'strategies.md').read_text().splitlines() if row in line]
  assert any(f'| {" | ".join(shown)} |' in line for line in lines)
