"""Registry of the mechanisms that can be optimised."""

import dataclasses
from collections.abc import Callable

from fl_dpftrl.families import base, identity, tree_full, tree_online
from fl_dpftrl.optimization import (
  banded,
  blt,
  certificate,
  dense,
  multi_epoch,
  toeplitz,
  toeplitz_range,
)


@dataclasses.dataclass(frozen=True)
class Optimizer:
  """Functions that find the best strategy of a mechanism.

  Attributes:
    optimize: takes a schema and the keywords objective, workload and progress,
      and the size if the mechanism has one.
    size: keyword of the size, such as num_bands; None if there is none.
    optimize_range: takes several schemas, of which one will hold, the keyword
      over ('mean', 'worst' or 'regret') and those of optimize; None if not
      supported.
    certificate: takes a strategy, schema and workload and the keyword
      objective. It returns an upper bound on the relative excess of loss² over
      the optimum, or None. None if no bound is known.
  """

  optimize: Callable[..., base.Strategy]
  size: str | None = None
  optimize_range: Callable[..., base.Strategy] | None = None
  certificate: Callable[..., float | None] | None = None


def _only(strategy: base.Strategy) -> Optimizer:
  """Returns the optimiser of a family with a single strategy."""
  return Optimizer(lambda schema, **kwargs: strategy)


OPTIMIZERS: dict[str, Optimizer] = {
  'identity': _only(identity.Identity()),
  'tree_online': _only(tree_online.TreeOnline()),
  'tree_full': Optimizer(lambda schema, **kwargs: tree_full.TreeFull(schema.num_rounds)),
  'dense': Optimizer(dense.optimize, certificate=certificate.optimality_gap),
  'multi_epoch': Optimizer(multi_epoch.optimize, certificate=certificate.optimality_gap),
  'banded': Optimizer(banded.optimize, 'num_bands'),
  'banded_toeplitz': Optimizer(toeplitz.optimize, 'num_bands', toeplitz_range.optimize_range),
  'banded_sqrt': Optimizer(toeplitz.square_root, 'num_bands'),
  'blt': Optimizer(blt.optimize, 'num_buffers', blt.optimize_range),
}
