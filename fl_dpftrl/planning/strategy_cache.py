"""Strategies that searches found, kept in the user's cache folder by the problem they solve.

What is read from there is a strategy file, whose figures are computed again; one that is broken, or
of another problem, is searched for anew. A folder that cannot be written keeps nothing.
"""

import hashlib
import os
import pathlib
from typing import Any

from fl_dpftrl.families import base
from fl_dpftrl.optimization import registry
from fl_dpftrl.participation import schemas
from fl_dpftrl.participations import loss_budgets
from fl_dpftrl.planning import candidate_sets
from fl_dpftrl.strategies import files
from fl_dpftrl.version import __version__

WORDS = 'fl_dpftrl/strategies in $XDG_CACHE_HOME, else in ~/.cache'
"""The folder in words."""

_FAMILIES = {
  'multi_epoch': 'dense',
  'banded_sqrt': 'banded_toeplitz',
  'banded_inverse_sqrt': 'banded_inverse',
}
"""Families of the mechanisms that are called otherwise."""
_PARTICIPATIONS = (schemas.MinSep, schemas.FixedSeparation, loss_budgets.LossBudget)


def folder() -> pathlib.Path | None:
  """Returns the folder of the cache; None where the user has no home."""
  caches = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  return pathlib.Path(caches, 'fl_dpftrl', 'strategies') if os.path.isabs(caches) else None


def search(
  candidate: candidate_sets.Candidate,
  participation: Any,
  cache: pathlib.Path | None,
  *,
  objective: str,
  workload: Any,
  progress: candidate_sets.Progress,
  **options: Any,
) -> base.Strategy:
  """Returns the candidate's best strategy: that of the cache, if there is one of this problem.

  Args:
    participation: schema, or loss budget of a run without an end.
    cache: folder; None to search anew and to keep nothing.
    options: further keywords of `registry.optimize`, such as a size or horizons.
  """
  goal = {'objective': objective, 'workload': workload}
  find = lambda: candidate.find(participation, progress=progress, **goal, **options)
  is_built_in = candidate.optimised and candidate.mechanism in registry.OPTIMIZERS
  is_named = type(participation) in _PARTICIPATIONS and participation.min_sep is not None
  if cache is None or not is_built_in or not is_named:
    return find()
  problem = __version__, candidate.label, participation, *goal.values(), sorted(options.items())
  path = cache / f'{hashlib.sha256(repr(problem).encode()).hexdigest()[:32]}.json'
  schema = participation
  if 'horizons' in options:  # The rounds of a file are then those after which errors count last.
    b, k = participation.min_sep, participation.max_participations
    schema = schemas.MinSep(options['horizons'][-1], b, k)
  family = _FAMILIES.get(candidate.mechanism, candidate.mechanism)
  stored = (family, schema, objective, workload)
  try:
    file = files.load(path)
    if (file.strategy.family, file.schema, file.objective, file.workload) == stored:
      return file.strategy
  except (ValueError, OSError):  # Absent, cut short, or of an earlier version.
    pass
  strategy = find()
  try:
    cache.mkdir(parents=True, exist_ok=True)
    files.save_strategy(path, strategy, schema=schema, **goal)
  except (OSError, ValueError):  # A folder that cannot be written.
    pass
  return strategy
