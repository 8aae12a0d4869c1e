"""Registry of the mechanisms that can be optimised."""

import dataclasses
from collections.abc import Callable

from fl_dpftrl.mechanisms import base
from fl_dpftrl.mechanisms import family_registry as families
from fl_dpftrl.mechanisms.families import identity, tree_full, tree_online
from fl_dpftrl.mechanisms.search import (
  banded_inverse_search,
  banded_search,
  blt_search,
  dense_search,
  search_problem,
  toeplitz_search,
)


@dataclasses.dataclass(frozen=True)
class Optimizer:
  """Functions that find the best strategy of a mechanism.

  Attributes:
    find: takes a `Problem`, and the size if the mechanism has one.
    size: keyword of the size, such as num_bands; None if there is none.
    find_range: takes a problem for each of several schemas, of which one will hold, and the size;
      finds the least of the largest ratio to the best loss at a schema. None if not supported.
    certificate: takes a strategy and a problem. It returns an upper bound on the relative excess
      of loss² over the optimum, or None. None if no bound is known.
  """

  find: Callable[..., base.Strategy]
  size: str | None = None
  find_range: Callable[..., base.Strategy] | None = None
  certificate: Callable[[base.Strategy, search_problem.Problem], float | None] | None = None


OPTIMIZERS: dict[str, Optimizer] = {
  'identity': Optimizer(lambda problem: identity.Identity()),
  'tree_online': Optimizer(lambda problem: tree_online.TreeOnline()),
  'tree_full': Optimizer(lambda problem: tree_full.TreeFull(problem.schema.num_rounds)),
  'dense': Optimizer(
    lambda problem: dense_search.solve(problem).strategy, certificate=dense_search.optimality_gap
  ),
  'multi_epoch': Optimizer(
    lambda problem: dense_search.solve_multi_epoch(problem).strategy,
    certificate=dense_search.optimality_gap,
  ),
  'banded': Optimizer(banded_search.optimize, 'num_bands'),
  'banded_toeplitz': Optimizer(toeplitz_search.optimize, 'num_bands'),
  'banded_sqrt': Optimizer(toeplitz_search.square_root, 'num_bands'),
  'banded_inverse': Optimizer(banded_inverse_search.optimize, 'num_bands'),
  'banded_inverse_sqrt': Optimizer(banded_inverse_search.square_root, 'num_bands'),
  'lambda_cgd': Optimizer(banded_inverse_search.decayed),
  'blt': Optimizer(blt_search.optimize, 'num_buffers', blt_search.optimize_range),
}


def find_optimizer(mechanism: str) -> Optimizer | None:
  """Returns the optimiser of a mechanism: a built-in one, or that of a registered family.

  A family of a user's own may have a class method `optimize`, which takes a `Problem` and returns
  the best strategy; None for one that has none.
  """
  find = getattr(families.FAMILIES.get(mechanism), 'optimize', None)
  return OPTIMIZERS.get(mechanism) or (Optimizer(find) if find else None)


def check_family(mechanism: str) -> None:
  """Raises ValueError if the mechanism is a family that no optimiser finds parameters for."""
  if mechanism in families.FAMILIES and find_optimizer(mechanism) is None:
    raise ValueError(
      f'{mechanism!r} is a family without an optimiser; write its parameters to a strategy file'
      ' (dpftrl.save_strategy) and name that file, or give the class a method optimize'
    )
