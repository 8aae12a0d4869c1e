"""The problem that an optimiser solves."""

import dataclasses
import itertools
import math
from collections.abc import Callable

from fl_dpftrl import sensitivities, workload_error, workloads
from fl_dpftrl.families import base
from fl_dpftrl.participation import schemas
from fl_dpftrl.participations import loss_budgets

Progress = Callable[[int, float], None]
"""Called with the number of steps and the loss, or the value that stands for it."""


@dataclasses.dataclass(frozen=True)
class Problem:
  """A loss to minimise: the sensitivity under a schema times the error of a workload.

  With a budget the sensitivity is that of the budget, and the schema has only the rounds of which
  the error is.
  """

  schema: schemas.MinSep
  objective: str = 'max'
  workload: workloads.Workload = workloads.Workload()
  progress: Progress | None = None
  budget: loss_budgets.LossBudget | None = None

  def __post_init__(self):
    workload_error.check_objective(self.objective)

  def loss(self, strategy: base.Strategy) -> float:
    """Returns sensitivity times error."""
    errors = workload_error.error(strategy, self.schema.num_rounds, self.workload)
    return self._sensitivity(strategy) * getattr(errors, self.objective)

  def _sensitivity(self, strategy: base.Strategy) -> float:
    if self.budget is None:
      return sensitivities.sensitivity(strategy, self.schema).value
    return math.sqrt(self.budget.square(strategy))

  def counted(self, loss: Callable[[float], float]) -> Progress:
    """Returns a callback that counts the steps of successive minimisations."""
    steps = itertools.count(1)

    def report(_, value):
      if self.progress is not None:
        self.progress(next(steps), loss(value))

    return report
