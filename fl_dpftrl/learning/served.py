"""A process whose rows of noise are served before each of its rounds."""

from typing import Any, Protocol

import tensorflow_federated as tff


class Rows(Protocol):
  """An object that makes noise rows readable, such as a `RowServer`."""

  def open(self) -> None: ...

  def serve(self, row: int) -> None: ...

  def complete(self, row: int) -> None: ...


class ServedProcess:
  """A learning process, with the row of each round served beforehand.

  The memory of its `CorrelatedNoiseFactory` is a `RowServer`. A round whose row is in the
  sum of a completed one, or before the last that was given out, is an error, and nothing
  is computed. One that failed may be repeated.

  Args:
    process: does all else.
    rows: of the aggregator.
  """

  def __init__(self, process: tff.learning.templates.LearningProcess, rows: Rows):
    self._process, self._rows = process, rows

  def initialize(self) -> Any:
    self._rows.open()  # A state is worth nothing without the seed of its noise.
    return self._process.initialize()

  def next(self, state: Any, data: Any) -> tff.learning.templates.LearningProcessOutput:
    row = int(state.aggregator.noise.row)
    self._rows.serve(row)
    output = self._process.next(state, data)
    self._rows.complete(row)
    return output
