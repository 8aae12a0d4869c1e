"""Poisson sampling: each example of a part is drawn independently."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from fl_dpftrl.participation import batches, drawn, log_checks, registry
from fl_dpftrl.participation.accounting import adjacencies
from fl_dpftrl.participation.counts import participation_counts
from fl_dpftrl.support import checks


@registry.register
class CyclicPoisson(batches.Batches):
  """Scheme that includes each example of a round's part independently.

  With one part this is the Poisson sampling of DP-SGD. Examples are drawn independently, so
  removing an example is the same as zeroing it out.

  Source: Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization, algorithm 2 with
  the Poisson sampling of appendix F.3.
  """

  kind: ClassVar[str] = 'poisson'
  has_event: ClassVar[bool] = True
  relations: ClassVar[Mapping[str, drawn.Relation]] = {
    adjacencies.ADD_OR_REMOVE: (
      1.0,
      adjacencies.ONE,
      'an example is protected (add-or-remove adjacency): the run is compared with the same run of'
      ' one example more or less, and the parts of the others stay the same',
    ),
    adjacencies.ZERO_OUT: (
      1.0,
      adjacencies.ONE,
      'an example is protected (zero-out adjacency): the run is compared with the same run in which'
      ' its updates are zeros; the others are drawn without regard to it, so that it is one less',
    ),
    adjacencies.REPLACE_ONE: (2.0, adjacencies.OPPOSITE, batches.SENTENCE),
  }
  how: ClassVar[str] = (
    'a round includes each example of its part independently with probability {probability:.6g},'
    ' drawn in secret; batches of fixed size or shuffled ones are not drawn so'
  )

  def _check_batch_size(self) -> None:
    checks.positive(batch_size=self.batch_size)

  def drawn_size(self, rng: np.random.Generator) -> int:
    """Returns a binomial size: with a uniform subset of it, draws of examples are independent."""
    return int(rng.binomial(self.part_size, self.sampling_probability))

  def refutations(self, happened: participation_counts.RunCounts) -> list[str]:
    return list(log_checks.parts(happened, self))
