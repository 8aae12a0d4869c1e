"""A guard in front of `tff.program` logic such as `tff.learning.programs.train_model`.

`train_model` discards a round by starting again from the state before it, with a copy of the data
iterator. The guard then admits a new round, and the rows of those before it are skipped.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow_federated as tff

import tff_inprocess
from fl_dpftrl.rounds import guard as guard_lib

# Iterators are stored as bytes, which cannot hold a guard: they name its log.
_sources: 'weakref.WeakValueDictionary[str, GuardedSource]' = weakref.WeakValueDictionary()


def guarded(
  process: tff.learning.templates.LearningProcess,
  guard: guard_lib.Guard,
  *,
  skip_row: tff.Computation,
  candidates: Callable[[int, int | None], Sequence[Any]],
  client_data: Callable[[Sequence[Any]], Sequence[Any]],
) -> tuple['GuardedProcess', 'GuardedSource']:
  """Returns a learning process whose rows a guard gives out, and the data that it admits.

  They are train_process and train_data_source of `train_model`.

  Args:
    process: a learning process whose aggregator adds correlated noise.
    skip_row: the aggregator's `skip_row(value_type)`.
    candidates: (round, number of clients to select) → ids of devices that could
      take part, in the order of preference. Give more than the number, because
      the guard turns some away.
    client_data: ids of the admitted devices → their data, as process.next takes
      them.
  """
  federated_type = process.next.type_signature.parameter[1]
  source = GuardedSource(guard, federated_type, candidates, client_data)
  return GuardedProcess(process, guard, skip_row), source


class GuardedProcess:
  """A learning process each of whose rounds has the noise row of the round admitted last.

  Args:
    process: does all else.
  """

  def __init__(
    self,
    process: tff.learning.templates.LearningProcess,
    guard: guard_lib.Guard,
    skip_row: tff.Computation,
  ):
    self._process, self._guard, self._skip_row = process, guard, skip_row
    self._context: tff_inprocess.InProcessContext | None = None
    self._computed = guard.num_rounds  # Rounds whose rows were given out.

  def __getattr__(self, name: str) -> Any:
    return getattr(self._process, name)

  def next(self, state: Any, data: Any) -> Any:
    """Computes the round that was admitted last, once; rows before its own are skipped."""
    row, t = int(state.aggregator.noise.row), self._guard.num_rounds - 1
    if t < self._computed:
      raise guard_lib.RepeatedRowError(
        f'noise row {row}: each admitted round has one row, and no round is waiting for its own;'
        ' admit a cohort first'
      )
    if row > t:
      raise ValueError(
        f'noise row {row} does not belong to round {t}: {self._guard.log.path} lacks rounds whose'
        ' rows were used; put the whole log back'
      )
    self._computed = t + 1
    for _ in range(t - row):
      # The program's own context gives results later; a row is skipped at once.
      if self._context is None:
        self._context = tff_inprocess.InProcessContext()
      state = state._replace(aggregator=self._context.invoke(self._skip_row, state.aggregator))
    return self._process.next(state, data)


class GuardedSource(tff.program.FederatedDataSource):
  """Data of the devices that a guard admits, round by round.

  Args:
    federated_type: of a round's data.
    candidates, client_data: see `guarded`.
  """

  def __init__(
    self,
    guard: guard_lib.Guard,
    federated_type: tff.FederatedType,
    candidates: Callable[[int, int | None], Sequence[Any]],
    client_data: Callable[[Sequence[Any]], Sequence[Any]],
  ):
    self.guard, self._federated_type = guard, federated_type
    self._candidates, self._client_data = candidates, client_data
    _sources[str(guard.log.path)] = self

  @property
  def federated_type(self) -> tff.FederatedType:
    return self._federated_type

  def iterator(self) -> 'GuardedIterator':
    return GuardedIterator(self)

  def select(self, k: int | None) -> Sequence[Any]:
    """Admits a cohort of at most k devices and returns its data; see `Guard.admit`."""
    candidates = self._candidates(self.guard.num_rounds, k)
    return self._client_data(self.guard.admit(candidates, at_most=k).device_ids.tolist())


class GuardedIterator(tff.program.FederatedDataSourceIterator):
  """The rounds of a guarded source; all copies give the guard's next round."""

  def __init__(self, source: GuardedSource):
    self._source = source

  def __deepcopy__(self, memo: Any) -> 'GuardedIterator':
    return GuardedIterator(self._source)

  def __eq__(self, other: object) -> bool:
    if not isinstance(other, GuardedIterator):
      return NotImplemented
    return self._source is other._source

  @classmethod
  def from_bytes(cls, buffer: bytes) -> 'GuardedIterator':
    """Returns the iterator of a source of this process, by the path of its guard's log."""
    log = buffer.decode()
    if log not in _sources:
      raise ValueError(f'no guarded source of {log} was made before the program state was loaded')
    return cls(_sources[log])

  def to_bytes(self) -> bytes:
    """Returns the path of the guard's log."""
    return str(self._source.guard.log.path).encode()

  @property
  def federated_type(self) -> tff.FederatedType:
    return self._source.federated_type

  def select(self, k: int | None = None) -> Sequence[Any]:
    """Returns the data of the next round's cohort, of at most k devices."""
    return self._source.select(k)
