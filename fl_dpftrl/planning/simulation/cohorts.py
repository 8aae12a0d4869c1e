"""Simulation of the cohorts of a population, check-in by check-in.

A device checks in at random (a Poisson process) at its own rate while it can be reached and its
timer has run. Check-ins are drawn for a period of time at once, from a process that is frequent
enough for every device of a group. They are kept with the probability that gives each device its
own rate (thinning; Lewis and Shedler 1979). A memoryless process may be stopped at any check-in and
drawn anew from there, so the periods do not change the distribution. Devices return from their
timers at the start of a period. The cost grows with the number of check-ins, not of devices.

Everything is a pure function of its arguments: rounds give the same cohorts each time.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

import numpy as np

from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.participation.counts import meter
from fl_dpftrl.planning.simulation import check_ins, pools, populations, seeds, servers
from fl_dpftrl.support import checks

START = 1767225600
"""2026-01-01 00:00 UTC, in UTC seconds: start of simulated time."""

_ROUNDS = 5
_NEVER = -1
_STEP = 60.0
_DAY = 86400.0


class StalledRound(ValueError):
  """Raised if a round cannot meet its report goal."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Simulation:
  """Rounds of a server with a population of devices."""

  population: populations.SimulatedPopulation
  timer: servers.Timer
  server: servers.Server
  seed: int = 0

  def __post_init__(self):
    checks.whole(0, math.inf, seed=self.seed)
    has_life = isinstance(self.timer, servers.Meter) or getattr(self.timer, 'most', None)
    if has_life and self.population.forgetting_per_day:
      raise ValueError(
        f'forgetting_per_day={self.population.forgetting_per_day:g} must be 0 without an end: a'
        ' device that forgets what it took part in has no guarantee'
      )

  def rounds(self) -> Iterator[schemas.Cohort]:
    """Yields the cohorts of rounds 0, 1, … without end."""
    return (cohort for cohort, *_ in self.lives())

  def lives(self) -> Iterator[tuple[schemas.Cohort, int, int, int]]:
    """Yields cohorts; how many others never reported, how many too late, how many may no more."""
    rounds = _Rounds(self)
    while True:
      yield *rounds.next(), rounds.num_ended


class _Chosen(NamedTuple):
  """Devices that a round chose, by their times of check-in; when they end, and if they report."""

  devices: np.ndarray
  at: np.ndarray
  ends: np.ndarray
  reports: np.ndarray

  @classmethod
  def none(cls) -> '_Chosen':
    times = np.zeros(0)
    return cls(np.zeros(0, np.int64), times, times, np.zeros(0, np.bool_))

  def joined(self, other: '_Chosen') -> '_Chosen':
    return _Chosen(*(np.concatenate(pair) for pair in zip(self, other)))

  def where(self, mask: np.ndarray) -> '_Chosen':
    places = np.flatnonzero(mask)
    return self if places.size == mask.size else _Chosen(*(column[places] for column in self))

  def closes(self, report_goal: int) -> float:
    """Returns the time when the goal is met; infinite if it is not met."""
    if np.count_nonzero(self.reports) < report_goal:
      return math.inf
    ends = np.where(self.reports, self.ends, math.inf)
    return float(np.partition(ends, report_goal - 1)[report_goal - 1])


class _Rounds:
  """State of a running simulation; times are in seconds from the start."""

  def __init__(self, simulation: Simulation):
    populations.check_memory(simulation.population.num_devices)
    self._simulation = simulation
    self._population = people = simulation.population
    self._server = simulation.server
    self._round = 0
    self._clock = 0.0
    self._ids: np.ndarray | None = None  # None until devices are replaced.
    self._num_ids = people.num_devices
    self._dropped: list[np.ndarray] = []  # Dropped out of this round and free again.
    self._check_ins = check_ins.CheckIns(people, START)
    self._devices = self._check_ins.records
    self._last_round = self._devices['last_round']
    self._last_round[:] = _NEVER
    self._by_time = pools.Waiting(_STEP)
    self._by_round = pools.Waiting()
    timer = simulation.timer
    self._meters: meter.Meters | None = None
    self.num_ended = 0  # Devices that may take part in no further round, as their lives are over.
    self._times = np.zeros(people.num_devices, np.int32)  # Since a device is new.
    if isinstance(timer, servers.Meter):
      self._meters = meter.Meters(timer.strategy.endless_gram(), numbered=True)
      self._square = timer.budget.square(timer.strategy)
    self._pace = check_ins.Pace(self._server, people.check_ins_per_hour)

  def next(self) -> tuple[schemas.Cohort, int, int]:
    t = self._round
    rng = seeds.generator(self._simulation.seed, _ROUNDS, t)
    began = self._clock + (60.0 * self._server.minutes_between_rounds if t else 0.0)
    self._pass_time(began, rng)
    self._come_back(*self._by_round.due(t))
    self._dropped = []
    chosen = self._choose(rng)
    closed = chosen.closes(self._server.report_goal)
    self._pass_time(closed, rng)
    self._devices['is_chosen'][chosen.devices] = False
    chosen = chosen.where(chosen.at < closed)
    cohort = self._took_part(chosen, closed, rng)
    self._pace.learn(float(chosen.at[-1]) - began, chosen.at.size / self._server.clients_per_round)
    self._round += 1
    names = np.sort(cohort if self._ids is None else self._ids[cohort])
    times = START + math.floor(began), START + math.ceil(closed)
    num_reports = int(np.count_nonzero(chosen.reports))
    dropped = chosen.reports.size - num_reports + sum(map(len, self._dropped))
    return schemas.Cohort(t, names, *times), dropped, num_reports - cohort.size

  def _choose(self, rng: np.random.Generator) -> _Chosen:
    """Chooses the round's devices, including late ones, and moves the clock."""
    server, began = self._server, self._clock
    latest = began + _DAY * server.max_wait_days
    chosen, asked, most = _Chosen.none(), 0, server.clients_per_round
    while True:
      closes = chosen.closes(server.report_goal)
      if closes <= self._clock:
        return chosen
      # Devices that dropped out may check in again like the others.
      gone = ~chosen.reports & (chosen.ends <= self._clock)
      self._devices['is_chosen'][chosen.devices[gone]] = False
      self._dropped.append(chosen.devices[gone])
      chosen = chosen.where(~gone)
      room = most - asked
      if not room:
        # No other device is chosen before all have reported or dropped out.
        until = max(self._clock, float(chosen.ends.max(initial=0.0)))
        self._pass_time(min(closes, until), rng)
        if closes == math.inf:
          most += server.more(int(np.count_nonzero(chosen.reports)))
        continue
      self._check_progress(chosen, latest)
      if not self._check_ins.pool.size:
        until = min(closes, self._by_time.earliest)
        if self._population.changes:  # New devices may come before any timer ends.
          until = min(until, self._clock + 10 * _STEP)
        self._pass_time(max(until, self._clock + _STEP), rng)
        continue
      devices, times, until = self._check_ins.choose(
        self._clock, min(closes, latest + _STEP), room, self._pace.seconds, rng
      )
      asked += devices.size
      chosen = chosen.joined(self._outcomes(devices, times, rng))
      self._pass_time(until, rng)

  def _outcomes(self, devices: np.ndarray, times: np.ndarray, rng: np.random.Generator) -> _Chosen:
    """Draws whether and when chosen devices report."""
    takes = self._devices['report_seconds'][devices]
    takes = takes * rng.uniform(0.5, 1.5, devices.size)
    drops = rng.random(devices.size) < self._population.dropout
    return _Chosen(devices, times, times + takes, ~drops)

  def _took_part(self, chosen: _Chosen, closed: float, rng: np.random.Generator) -> np.ndarray:
    """Starts the cohort's timers, charges meters, and returns the devices of the cohort."""
    self._check_ins.pool.remove(chosen.devices)
    inside = chosen.reports & (chosen.ends <= closed)
    busy = chosen.where(~inside)
    timer = self._simulation.timer
    if isinstance(timer, servers.Meter) and self._meters is not None:
      self._charge(self._meters, timer.budget.last_row, chosen, inside)
      return chosen.devices[inside]
    self._by_time.add(busy.ends, busy.devices, self._last_round[busy.devices])
    devices, ends = chosen.devices[inside], chosen.ends[inside]
    self._last_round[devices] = self._round
    tokens = np.full(devices.size, self._round, np.int32)
    if isinstance(timer, servers.RoundTimer):
      comes = devices
      if timer.most is not None:
        self._times[devices] += 1
        is_over = self._times[devices] >= timer.most
        self._end(devices[is_over])
        comes = devices[~is_over]
      again = np.full(comes.size, self._round + timer.rounds)
      self._by_round.add(again, comes, tokens[: comes.size])
    elif isinstance(timer, servers.HourTimer):
      self._by_time.add(ends + timer.seconds, devices, tokens)
    return devices

  def _charge(
    self, meters: meter.Meters, last_row: int, chosen: _Chosen, inside: np.ndarray
  ) -> None:
    """Charges all who began the round: a device does not know whether its report will arrive."""
    self._last_round[chosen.devices] = self._round
    dropped = np.unique(np.concatenate([chosen.devices[:0], *self._dropped]))
    dropped = dropped[self._last_round[dropped] != self._round]  # Others were chosen again.
    self._last_round[dropped] = self._round
    devices = np.concatenate([chosen.devices, dropped])
    self._check_ins.pool.remove(devices)
    meters.add(devices)
    again = meters.returns(devices, self._square, last_row)
    self._end(devices[again > last_row])
    # Who could come at once, but is busy, comes back at the end of that.
    is_busy = np.append(~inside, np.zeros(dropped.size, bool)) & (again == self._round + 1)
    waits = np.flatnonzero((again <= last_row) & ~is_busy)
    waits = waits[np.argsort(devices[waits])]
    tokens = np.full(devices.size, self._round, np.int32)
    self._by_round.add(again[waits], devices[waits], tokens[waits])
    soon = chosen.where((is_busy & (again <= last_row))[: inside.size])
    self._by_time.add(soon.ends, soon.devices, tokens[: soon.devices.size])

  def _end(self, devices: np.ndarray) -> None:
    """Says that devices may take part in no further round."""
    self._devices['has_ended'][devices] = True
    self.num_ended += devices.size

  def _pass_time(self, until: float, rng: np.random.Generator) -> None:
    """Moves the clock; devices return, are replaced, and lose their timers."""
    days = (until - self._clock) / _DAY
    self._clock = until
    self._come_back(*self._by_time.due(until))
    people = self._population
    if people.changes:
      for devices in (
        self._replaced(self._some(people.turnover_per_day * days, rng)),
        self._some(people.forgetting_per_day * days, rng),
      ):
        self._check_ins.pool.add(devices)

  def _some(self, share: float, rng: np.random.Generator) -> np.ndarray:
    """Returns a random fraction of the devices, except those in the round."""
    size = self._population.num_devices
    if share <= 0.0:
      return np.zeros(0, np.int64)
    devices = np.unique(rng.integers(size, size=rng.poisson(share * size)))
    return devices[~self._devices['is_chosen'][devices]]

  def _replaced(self, devices: np.ndarray) -> np.ndarray:
    """Replaces devices by new ones with the next ids."""
    if devices.size:
      if self._ids is None:
        self._ids = np.arange(self._num_ids)
      self._ids[devices] = self._num_ids + np.arange(devices.size)
      self._num_ids += devices.size
      self._last_round[devices] = _NEVER
      self.num_ended -= int(np.count_nonzero(self._devices['has_ended'][devices]))
      self._devices['has_ended'][devices], self._times[devices] = False, 0
      if self._meters is not None:
        self._meters.forget(devices)
    return devices

  def _come_back(self, devices: np.ndarray, tokens: np.ndarray) -> None:
    """Admits devices, unless they are back already or took part again since."""
    self._check_ins.pool.add(devices[self._last_round[devices] == tokens])

  def _check_progress(self, chosen: _Chosen, latest: float) -> None:
    """Raises StalledRound if the round cannot meet its goal."""
    goal, pool = self._server.report_goal, self._check_ins.pool
    if not self._population.changes:
      if pool.size + self._by_time.size < goal:
        what = 'timers' if self._meters is None else 'meters'
        self._stall(f'the {what} of too few devices run out')
      all_report = pool.size == chosen.at.size and chosen.reports.all()
      if all_report and chosen.at.size < goal and self._by_time.earliest > latest:
        self._stall(
          'the timers of too few devices run out within'
          f' {self._server.max_wait_days:g} simulated days'
        )
    if self._clock > latest:
      self._stall(
        'too few devices could be reached and reported within'
        f' {self._server.max_wait_days:g} simulated days',
        'more devices, a longer wait, or a smaller report goal',
      )

  def _stall(self, reason: str, remedy: str | None = None) -> NoReturn:
    goal, devices = self._server.report_goal, self._population.num_devices
    remedy = remedy or self._simulation.timer.remedy(devices, goal)
    raise StalledRound(
      f'round {self._round} stalled: {reason} for a report goal of {goal} in'
      f' a population of {devices}; try {remedy}'
    )
