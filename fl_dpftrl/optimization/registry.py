"""The one list of what can be optimised."""

import dataclasses
from typing import Callable

from fl_dpftrl.optimization import banded
from fl_dpftrl.optimization import blt
from fl_dpftrl.strategies import base
from fl_dpftrl.strategies import identity
from fl_dpftrl.strategies import tree


@dataclasses.dataclass(frozen=True)
class Optimizer:
  """How to come by the best strategy of a mechanism.

  Attributes:
    optimize: takes a schema and the keywords objective, workload and progress,
      and the size where there is one.
    size: the keyword of its size, as num_bands; None where it has none.
  """

  optimize: Callable[..., base.Strategy]
  size: str | None = None


def _only(strategy: base.Strategy) -> Optimizer:
  """For a family of one, which is its own best."""
  return Optimizer(lambda schema, **kwargs: strategy)


OPTIMIZERS: dict[str, Optimizer] = {
    'identity': _only(identity.Identity()),
    'tree_online': _only(tree.TreeOnline()),
    'banded': Optimizer(banded.optimize, 'num_bands'),
    'blt': Optimizer(blt.optimize, 'num_buffers'),
}
