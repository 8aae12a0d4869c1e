"""matrices/: a recipe for every file, and a file for every recipe."""

import dataclasses
import json
import pathlib
import re

import pytest

from fl_dpftrl.mechanisms import base
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.mechanisms.search.search_problem import Problem
from matrices import recipes

GOLDEN = pathlib.Path(__file__).with_name('golden')
FIXED = [n for n, recipe in recipes.RECIPES.items() if isinstance(recipe.made, base.Strategy)]
OPTIMIZED = [n for n in recipes.RECIPES if n not in (*FIXED, 'default')]


def loss(strategy, recipe, schema=None):
  return Problem(schema or recipe.schema, recipe.objective).loss(strategy)


def worst_regret(strategy, recipe, references):
  return max(
    loss(strategy, recipe, schema) / reference - 1.0
    for schema, reference in zip(recipe.several, references)
  )


def test_recipes_and_files_match():
  assert set(files.names()) == set(recipes.RECIPES)
  folder = files.matrices_folder()
  texts = [path.read_text() for path in folder.glob('*.json')]
  named = {npz for text in texts for npz in re.findall(r'"npz": "(.*)"', text)}
  assert {path.name for path in folder.glob('*.npz')} == named


@pytest.mark.parametrize('name', recipes.RECIPES)
def test_every_file_is_recomputed(name):
  file, recipe = files.load(name), recipes.RECIPES[name]
  assert (file.schema, file.objective) == (recipe.schema, recipe.objective)
  assert file.sensitivity.kind == 'exact'
  if name in FIXED:
    assert recipe.make() == file.strategy


# Three are searches of tests/golden/test_published_losses.py too; 40 rounds serve for 342.
REPEATED = {'blt-b342-rms', 'blt-b342-max', 'toeplitz-b342-rms', 'blt-b342-endless'}


@pytest.mark.slow
@pytest.mark.parametrize(
  'name', [pytest.param(n, marks=[pytest.mark.thorough] * (n in REPEATED)) for n in OPTIMIZED]
)
def test_optimizing_again_finds_nothing_better(name):
  recipe = recipes.RECIPES[name]
  stored = loss(files.load(name).strategy, recipe)
  assert stored <= loss(recipe.make(), recipe) * (1 + 1e-4)


def best_losses(recipe):
  """Losses of the best strategy for each schema alone, as they are on record."""
  rows = json.loads((GOLDEN / 'default_losses.json').read_text())['rows']
  for row, schema in zip(rows, recipe.several, strict=True):
    numbers = (schema.num_rounds, schema.min_sep, schema.max_participations)
    assert numbers == (row['num_rounds'], row['min_sep'], row['max_participations'])
  return [row[f'{recipe.objective}_loss'] for row in rows]


@pytest.mark.slow
def test_the_default_is_more_robust_than_others():
  recipe = recipes.RECIPES['default']
  references = best_losses(recipe)
  stored = worst_regret(files.load('default').strategy, recipe, references)
  assert stored == pytest.approx(0.0755, abs=5e-5)
  for name in ('blt-b100', 'blt-b342-max', 'blt-b400', 'blt-b1000'):
    other = files.load(name).strategy
    assert worst_regret(other, recipe, references) > 1.5 * stored


@pytest.mark.slow
@pytest.mark.thorough
def test_optimizing_again_finds_no_more_robust_default():
  recipe = recipes.RECIPES['default']
  references = best_losses(recipe)
  for schema, reference in zip(recipe.several, references):
    alone = dataclasses.replace(recipe, schema=schema, several=()).make()
    assert loss(alone, recipe, schema) == pytest.approx(reference, rel=1e-4)
  stored = worst_regret(files.load('default').strategy, recipe, references)
  assert stored <= worst_regret(recipe.make(), recipe, references) + 1e-4


def test_the_kept_optimum_is_still_the_best_found():
  recipe = recipes.RECIPES['blt-b100']
  again = dataclasses.replace(recipe, made='blt', size={'num_buffers': 3})
  assert loss(recipe.make(), recipe) <= loss(again.make(), recipe) * (1 + 1e-4)


def test_the_files_are_what_writing_gives(tmp_path):
  recipes.write('blt-b1000', tmp_path)
  written, stored = (
    json.loads((folder / 'blt-b1000.json').read_text())
    for folder in (tmp_path, files.matrices_folder())
  )
  assert written.keys() == stored.keys()
  assert written['parameters'] == stored['parameters']
