"""A guard in front of `tff.program` logic such as `tff.learning.programs.train_model`.

`train_model` discards a round by starting again from the state before it, with a
copy of the data iterator from before it. So the copy is behind the guard's log,
and the state's noise row was given out: both are noticed here.
"""

import struct
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow_federated as tff

import tff_inprocess
from fl_dpftrl.guarding import guard as guard_lib

_POSITION = struct.Struct('<q')

# Iterators are stored as bytes, which cannot hold a guard: they name its log.
_sources: 'weakref.WeakValueDictionary[str, GuardedSource]' = weakref.WeakValueDictionary()


class Guarded(NamedTuple):
  """Arguments for `train_model`.

  Attributes:
    train_process: the learning process, whose rows the guard gives out.
    train_data_source: the data of the devices that the guard admits.
  """

  train_process: 'GuardedProcess'
  train_data_source: 'GuardedSource'


def guarded(
  process: tff.learning.templates.LearningProcess,
  guard: guard_lib.Guard,
  *,
  candidates: Callable[[int, int | None], Sequence[Any]],
  client_data: Callable[[Sequence[Any]], Sequence[Any]],
  skip_row: tff.Computation | None = None,
) -> Guarded:
  """Puts a guard in front of a learning process and its data.

  Args:
    process: a learning process whose aggregator adds correlated noise.
    candidates: (round, number of clients to select) → ids of devices that could
      take part, in the order of preference. Give more than the number, because
      the guard turns some away.
    client_data: ids of the admitted devices → their data, as process.next takes
      them.
    skip_row: the aggregator's `skip_row(value_type)`; needed to burn rows.
  """
  if guard.on_repeat == guard_lib.BURN and skip_row is None:
    raise ValueError("skip_row is needed for a guard with on_repeat='burn'")
  federated_type = process.next.type_signature.parameter[1]
  return Guarded(
    GuardedProcess(process, guard, skip_row),
    GuardedSource(guard, federated_type, candidates, client_data),
  )


class GuardedProcess:
  """A learning process each of whose rounds has a noise row of its own.

  A round whose state has a row that was given out before is refused, or the row
  is burnt, as the guard says.

  Args:
    process: does all else.
  """

  def __init__(
    self,
    process: tff.learning.templates.LearningProcess,
    guard: guard_lib.Guard,
    skip_row: tff.Computation | None,
  ):
    self._process, self._guard, self._skip_row = process, guard, skip_row
    self._context: tff_inprocess.InProcessContext | None = None

  def __getattr__(self, name: str) -> Any:
    return getattr(self._process, name)

  def next(self, state: Any, data: Any) -> Any:
    """Computes a round; RepeatedRowError for a row that would enter a second sum."""
    for _ in range(self._guard.take(int(state.aggregator.noise.row))):
      # The program's own context gives results later; a row is burnt at once.
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
    return GuardedIterator(self, self.guard.num_rounds)

  def select(self, position: int, k: int | None) -> Sequence[Any]:
    """Admits a cohort and returns its data.

    Args:
      position: rounds that the iterator stands after.
      k: most devices of the cohort; None for all candidates.

    Raises:
      RepeatedRowError: if the round is a repeated one, unless rows are burnt.
      BudgetSpentError: if the round would pass the budget.
    """
    done = self.guard.num_rounds
    if position < done and self.guard.on_repeat == guard_lib.REFUSE:
      raise guard_lib.RepeatedRowError(
        f'round {position} is repeated, and its noise row was given out: it would enter a second'
        " sum; let no round be discarded, or burn the row: on_repeat='burn'"
      )
    if position > done:
      raise ValueError(
        f'the data iterator stands after {position} rounds, and {self.guard.log.path} has {done};'
        ' put the whole log back'
      )
    admitted = self.guard.admit(self._candidates(done, k), at_most=k)
    return self._client_data(admitted.device_ids.tolist())


class GuardedIterator(tff.program.FederatedDataSourceIterator):
  """The rounds of a guarded source; a copy stands where the original stood."""

  def __init__(self, source: GuardedSource, position: int):
    self._source, self._position = source, position

  def __deepcopy__(self, memo: Any) -> 'GuardedIterator':
    return GuardedIterator(self._source, self._position)

  def __eq__(self, other: object) -> bool:
    if not isinstance(other, GuardedIterator):
      return NotImplemented
    return self._source is other._source and self._position == other._position

  @classmethod
  def from_bytes(cls, buffer: bytes) -> 'GuardedIterator':
    """Returns the iterator of a source of this process, at a stored position."""
    (position,) = _POSITION.unpack_from(buffer)
    log = buffer[_POSITION.size :].decode()
    if log not in _sources:
      raise ValueError(f'no guarded source of {log} was made before the program state was loaded')
    return cls(_sources[log], position)

  def to_bytes(self) -> bytes:
    """Returns the position and the path of the guard's log."""
    return _POSITION.pack(self._position) + str(self._source.guard.log.path).encode()

  @property
  def federated_type(self) -> tff.FederatedType:
    return self._source.federated_type

  def select(self, k: int | None = None) -> Sequence[Any]:
    """Returns the data of the next round's cohort, of at most k devices."""
    data = self._source.select(self._position, k)
    self._position = self._source.guard.num_rounds
    return data
