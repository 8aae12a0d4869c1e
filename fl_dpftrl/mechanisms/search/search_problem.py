"""The problem that an optimiser solves."""

import dataclasses
import itertools
import math
from collections.abc import Callable

from fl_dpftrl.mechanisms import base, schemas, sensitivities, workload_error, workloads
from fl_dpftrl.mechanisms.sensitivities import endless

Progress = Callable[[int, float], object]
"""Called with the number of steps and the loss, or the value that stands for it."""

_STEPS = 10  # The last steps, which together must gain something.


@dataclasses.dataclass(frozen=True)
class Problem:
  """A loss to minimise: the sensitivity under a schema times the error of a workload.

  With a budget, of a run without an end, the schema has only the rounds of which the error is.

  Attributes:
    budget: min_sep and max_participations of the patterns that a run without an end admits; None
      for the patterns of the schema.
    least_gain: a search ends where its last steps together lower the loss by a smaller share, or
      where it is proven this close to the least; 0 to search until nothing is gained.
  """

  schema: schemas.Schema
  objective: str = 'max'
  workload: workloads.Workload = workloads.Workload()
  progress: Progress | None = None
  budget: tuple[int, int] | None = None
  least_gain: float = 0.0

  def __post_init__(self):
    workload_error.check_objective(self.objective)

  def loss(self, strategy: base.Strategy) -> float:
    """Returns sensitivity times error."""
    errors = workload_error.error(strategy, self.schema.num_rounds, self.workload)
    if self.budget is None:
      sensitivity = sensitivities.sensitivity(strategy, self.schema).value
    else:
      sensitivity = strategy.endless_gram().worst_square(*self.budget).value * math.sqrt(
        endless.SLACK
      )
    return sensitivity * getattr(errors, self.objective)

  def counted(self, loss: Callable[[float], float]) -> Progress:
    """Returns a callback that counts the steps of successive minimisations.

    It returns True where the last steps of one gain too little.
    """
    steps, losses = itertools.count(1), list[float]()

    def report(step, value):
      current = loss(value)
      if self.progress is not None:
        self.progress(next(steps), current)
      losses[:] = [*losses[-_STEPS:], current] if step > 1 else [current]
      return len(losses) > _STEPS and losses[0] - current < self.least_gain * current

    return report
