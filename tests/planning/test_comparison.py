"""Every candidate at every schema, each strategy found once."""

import numpy as np
import pytest

from fl_dpftrl.families import identity
from fl_dpftrl.participation import schemas
from fl_dpftrl.planning import candidates, comparison
from fl_dpftrl.strategies import files

SCHEMAS = [schemas.MinSep(num_rounds=20, min_sep=b, max_participations=2) for b in (2, 5, 10)]


def run(*found, watch=lambda candidate, schema: lambda steps, loss: None):
  return comparison.run(found, SCHEMAS, objective='max', watch=watch)


def test_rows_are_the_figures_of_the_strategies():
  entries = run(*candidates.named(['identity', 'blt-b400'])).entries
  assert [e.candidate.label for e in entries] == (['identity'] * 3 + ['blt-b400'] * 3)
  for entry in entries:
    figures = files.describe(entry.strategy, schema=entry.schema).figures
    for name, value in figures.items():
      assert getattr(entry.row, name) == value
    assert entry.row.memory_copies == entry.strategy.memory_copies(20)


def recorder(made_for, strategy=identity.Identity()):
  """A candidate that keeps what it was asked for."""
  asked = []

  def find(schema, *, objective, workload, progress):
    del workload
    progress(1, 2.0)
    asked.append((schema, objective))
    if isinstance(strategy, Exception):
      raise strategy
    return strategy

  return candidates.Candidate('it', 'identity', find, made_for), asked


def test_optimised_anew_for_each_schema():
  candidate, asked = recorder({})
  run(candidate)
  assert asked == [(schema, 'max') for schema in SCHEMAS]


def test_held_strategies_are_found_once():
  candidate, asked = recorder({'min_sep': 5})
  entries = run(candidate).entries
  assert asked == [(SCHEMAS[1], 'max')]
  assert [e.row.min_sep for e in entries] == [2, 5, 10]


@pytest.mark.parametrize(
  'error', [ValueError('too\n large'), MemoryError(), np.linalg.LinAlgError('singular')]
)
def test_what_cannot_be_done_is_skipped_and_others_go_on(error):
  candidate, _ = recorder({}, error)
  found = run(candidate, *candidates.named(['identity']))
  assert (len(found.skipped), len(found.entries)) == (3, 3)
  assert found.skipped[0].reason == (' '.join(str(error).split()) or 'MemoryError')


def test_other_errors_are_not_hidden():
  candidate, _ = recorder({}, KeyError('a bug'))
  with pytest.raises(KeyError):
    run(candidate)


def test_the_watch_hears_of_every_turn_and_every_step():
  turns, steps = [], []

  def watch(candidate, schema):
    turns.append((candidate.label, schema.min_sep))
    return lambda *args: steps.append(args)

  candidate, _ = recorder({})
  run(candidate, watch=watch)
  assert turns == [('it', 2), ('it', 5), ('it', 10)]
  assert steps == [(1, 2.0)] * 3
