"""A learning process whose rounds keep their numbers when a run is resumed."""

from typing import Any

import tensorflow_federated as tff

from fl_dpftrl import runtime


class NumberedProcess:
  """A learning process in process, whose clients draw by the number of the round.

  Its aggregator adds correlated noise, whose next row is the number. So a round
  that is repeated, or comes after the run was resumed, draws the same for its
  clients: dropout, and whatever else is random in their work.

  Args:
    process: does all else.
    context: runs it.
  """

  def __init__(
    self, process: tff.learning.templates.LearningProcess, context: runtime.InProcessContext
  ):
    self._process, self._context = process, context

  def initialize(self) -> Any:
    return self._process.initialize()

  def next(self, state: Any, data: Any) -> tff.learning.templates.LearningProcessOutput:
    with self._context.numbered(int(state.aggregator.noise.row)):
      return self._process.next(state, data)
