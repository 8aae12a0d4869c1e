"""Simulates rounds on many machines, and prints the table of docs/decisions/many-machines.md.

    python -m benchmarks.rounds.simulated

Each machine has one actor, and one link each way, on which one total travels at a time. All take
the model from the driver. Blocks are handed out, taken in order and merged as by
`tff_inprocess.actors`. A merge beside training slows neither. Speeds are assumptions.
"""

import dataclasses
import functools
import heapq
import itertools
from collections.abc import Callable

from benchmarks import sides
from tff_inprocess import clients

NUM_MACHINES, NUM_CLIENTS = 100, 6500
CASES = ((4_000_000, (0.05, 0.2, 1.0)), (100_000_000, (1.0, 5.0, 20.0)))
"""Parameters of a model, and seconds that a client trains."""
_NETWORK, _MEMORY = 1e9, 5e9  # Bytes a second.
# To copy a total reads and writes one, to add it reads two and writes one.
_TRAFFIC = 5
_DRIVER = -1


@dataclasses.dataclass(frozen=True)
class Round:
  """What a simulated round took.

  Attributes:
    seconds: from the first model sent to the last total merged.
    driver_seconds: time in which the driver received or merged.
    most_waiting: most totals on other machines that were not merged yet.
  """

  seconds: float
  driver_seconds: float
  most_waiting: int


class Simulation:
  """One round.

  Args:
    num_parameters: float32 numbers of a total, and of the model.
    client_seconds: time that a client trains.
    merges: whether actors merge groups of blocks.
    num_machines: machines beside the driver's.
    num_clients: clients of the round.
  """

  def __init__(
    self,
    num_parameters: int,
    client_seconds: float,
    merges: bool,
    num_machines: int = NUM_MACHINES,
    num_clients: int = NUM_CLIENTS,
  ):
    self._send_seconds = 4 * num_parameters / _NETWORK
    self._merge_seconds = _TRAFFIC * 4 * num_parameters / _MEMORY
    self._client_seconds = client_seconds
    self._blocks = clients.blocks(num_clients)
    alone = [range(index, index + 1) for index in range(len(self._blocks))]
    self._merges = merges
    self._parts = clients.groups(len(self._blocks)) if merges else alone
    self._machines = range(num_machines)
    self._window = 2 * num_machines
    self._events: list[tuple[float, int, Callable[[], None]]] = []
    self._count = itertools.count()
    self._now = 0.0
    # When the link of a machine is free again, by its direction.
    self._sends = dict.fromkeys([_DRIVER, *self._machines], 0.0)
    self._receives = dict(self._sends)
    self._next_block, self._num_taken, self._driver_seconds = 0, 0, 0.0
    self._idle: list[int] = []
    self._is_taking = False
    self._trained: dict[int, int] = {}  # Block → its machine.
    self._merged: dict[int, int] = {}  # Group → the machine that merges it.
    self._merging: set[int] = set()
    self._num_waiting = self._most_waiting = 0

  def run(self) -> Round:
    """Returns what the round took."""
    for machine in self._machines:
      self._send(_DRIVER, machine, functools.partial(self._idle.append, machine))
    while self._events:
      self._now, _, event = heapq.heappop(self._events)
      event()
      self._hand_out()
      self._merge_groups()
      self._take()
    return Round(self._now, self._driver_seconds, self._most_waiting)

  def _at(self, time: float, event: Callable[[], None]) -> None:
    heapq.heappush(self._events, (time, next(self._count), event))

  def _send(self, source: int, target: int, then: Callable[[], None]) -> None:
    """Sends a total, once both links are free."""
    end = self._now
    if source != target:
      end = max(end, self._sends[source], self._receives[target]) + self._send_seconds
      self._sends[source] = self._receives[target] = end
    self._at(end, then)

  def _hand_out(self) -> None:
    taken = self._num_taken
    first = self._parts[taken].start if taken < len(self._parts) else len(self._blocks)
    end = min(first + self._window, len(self._blocks))
    while self._idle and self._next_block < end:
      machine, index = self._idle.pop(0), self._next_block
      self._next_block += 1
      seconds = len(self._blocks[index]) * self._client_seconds
      self._at(self._now + seconds, functools.partial(self._train, machine, index))

  def _train(self, machine: int, index: int) -> None:
    self._trained[index] = machine
    self._idle.append(machine)
    self._wait(1)

  def _wait(self, totals: int) -> None:
    self._num_waiting += totals
    self._most_waiting = max(self._most_waiting, self._num_waiting)

  def _merge_groups(self) -> None:
    busy = {self._merged[group] for group in self._merging}
    for group in range(self._num_taken, len(self._parts)) if self._merges else ():
      is_trained = all(index in self._trained for index in self._parts[group])
      if is_trained and group not in self._merged:
        machine = next(machine for machine in self._machines if machine not in busy)
        busy.add(machine)
        self._merging.add(group)
        self._merged[group] = machine
        self._merge(machine, group, list(self._parts[group]))

  def _merge(self, machine: int, group: int, left: list[int]) -> None:
    """Has a machine fetch the next total of a group, and merge it."""
    if not left:
      self._merging.remove(group)
      self._wait(1)
      return
    index, *rest = left

    def arrived() -> None:
      self._wait(-1)
      self._at(self._now + self._merge_seconds, lambda: self._merge(machine, group, rest))

    self._send(self._trained[index], machine, arrived)

  def _take(self) -> None:
    """Has the driver fetch and merge what comes next, if it is there and the driver is free."""
    part = self._num_taken
    source = (self._merged if self._merges else self._trained).get(part)
    if self._is_taking or source is None or part in self._merging:
      return
    self._is_taking, begun = True, self._now

    def arrived() -> None:
      self._wait(-1)
      self._at(self._now + self._merge_seconds, merged)

    def merged() -> None:
      self._is_taking = False
      self._num_taken += 1
      self._driver_seconds += self._now - begun

    self._send(source, _DRIVER, arrived)


def table() -> str:
  """Returns the table of all cases."""
  lines = []
  for num_parameters, seconds in CASES:
    for client_seconds in seconds:
      alone, tree = (
        Simulation(num_parameters, client_seconds, merges).run() for merges in (False, True)
      )
      lines.append(
        [
          f'{num_parameters // 1_000_000} M',
          f'{client_seconds:g}',
          f'{NUM_CLIENTS * client_seconds / NUM_MACHINES:.0f}',
          f'{alone.seconds:.0f} ({alone.driver_seconds:.0f})',
          f'{tree.seconds:.0f} ({tree.driver_seconds:.0f})',
          f'{alone.most_waiting}, {tree.most_waiting}',
        ]
      )
  titles = (
    'parameters',
    'seconds a client',
    'training alone',
    'the driver merges',
    'actors merge',
    'totals that wait',
  )
  return sides.table(titles, lines)


if __name__ == '__main__':
  print(table())
