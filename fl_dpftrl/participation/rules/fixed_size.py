"""Fixed-size sampling: so many examples of a part, every set with the same chance."""

from collections.abc import Mapping
from typing import ClassVar

from fl_dpftrl.participation import batches, drawn, log_checks, registry
from fl_dpftrl.participation.accounting import adjacencies
from fl_dpftrl.participation.counts import participation_counts


@registry.register
class CyclicFixedSize(batches.Batches):
  """Scheme that draws batch_size examples of a part uniformly at random.

  If one example is not drawn, another one is. Zeroing out an example can thus change a sum by
  as much as replacing it.
  """

  kind: ClassVar[str] = 'fixed_size'
  relations: ClassVar[Mapping[str, drawn.Relation]] = {
    adjacencies.ZERO_OUT: (
      2.0,
      adjacencies.REPLACED,
      'an example is protected (zero-out adjacency): the run is compared with the same run in which'
      ' its updates are zeros; since another example is in the batches without it, 2 clip norms'
      ' away, it is accounted as replace-one',
    ),
    adjacencies.REPLACE_ONE: (2.0, adjacencies.REPLACED, batches.SENTENCE),
  }
  how: ClassVar[str] = (
    'a round draws a fixed number of examples of its part without replacement, {probability:.6g} of'
    ' them, every set with the same chance and in secret; shuffled batches are not drawn so'
  )

  def refutations(self, happened: participation_counts.RunCounts) -> list[str]:
    return [*log_checks.parts(happened, self), *log_checks.sizes(happened, self)]
