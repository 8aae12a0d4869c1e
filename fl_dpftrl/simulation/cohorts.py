"""Who takes part in which round.

The cohort of a round is a pure function of the population, the timer, the seed,
the round and the participation so far, and that can be rebuilt from the log. So
a run that was killed goes on with the cohorts that it would have had.
"""

import dataclasses
import itertools
import operator
from typing import NamedTuple, NoReturn, Sequence

import numpy as np

from fl_dpftrl.simulation import population as population_lib
from fl_dpftrl.simulation import seeds
from fl_dpftrl.simulation import timer as timer_lib

START = 1767225600
"""2026-01-01 00:00 UTC, in UTC seconds: when simulated time begins."""

_COHORTS = 2
_RETRY_SECONDS = 600


class StalledRound(ValueError):
  """A round that cannot get its report goal."""


class State(NamedTuple):
  """Participation so far.

  Attributes:
    round: the next round.
    clock: UTC second at which the round before it closed.
    last_round: int64, shape [num_devices]; −1 for none.
    last_time: int64, shape [num_devices]; UTC second at which it closed.
  """

  round: int
  clock: int
  last_round: np.ndarray
  last_time: np.ndarray


class Cohort(NamedTuple):
  """The devices whose updates form a round's sum.

  Attributes:
    round: from 0.
    device_indices: int64, shape [report_goal], sorted.
    device_ids: of the same devices, in that order.
    started: UTC second at which devices were invited.
    closed: UTC second at which the last of the cohort reported; also the
      timestamp of the round in the log, from which timers run.
  """

  round: int
  device_indices: np.ndarray
  device_ids: np.ndarray
  started: int
  closed: int


@dataclasses.dataclass(frozen=True)
class CohortSelector:
  """Fills each round from the devices that are eligible and available.

  A round invites clients_per_round of them at random. Each drops out with
  probability dropout, or reports after 0.5 to 1.5 times round_minutes; the
  first report_goal to report are the cohort. Where too few can be reached, or
  report, simulated time moves on and others are invited. Who was invited in
  vain has not taken part.

  Attributes:
    population: the devices.
    timer: keeps devices away after they took part.
    report_goal: devices a cohort has.
    seed: names the draws of all rounds.
    clients_per_round: devices invited; None for as many as report_goal.
    dropout: probability that an invited device never reports.
    round_minutes: simulated minutes that a device takes to report, on average.
    max_wait_days: simulated days that a round may wait for its report goal.
    start: UTC second at which simulated time begins.

  Raises:
    ValueError: for values outside these ranges, and where dropout leaves fewer
      than report_goal reports to be expected.
  """

  population: population_lib.Population
  timer: timer_lib.Timer
  report_goal: int
  _: dataclasses.KW_ONLY
  seed: int
  clients_per_round: int | None = None
  dropout: float = 0.0
  round_minutes: float = 30.0
  max_wait_days: float = 30.0
  start: int = START

  def __post_init__(self):
    seeds.check_seed(self.seed)
    if self.clients_per_round is None:
      object.__setattr__(self, 'clients_per_round', self.report_goal)
    for name in ('report_goal', 'clients_per_round', 'start'):
      object.__setattr__(self, name, operator.index(getattr(self, name)))
    if self.report_goal < 1:
      raise ValueError(
          f'report_goal must be at least 1, got {self.report_goal}'
      )
    if self.clients_per_round < self.report_goal:
      raise ValueError(
          f'clients_per_round={self.clients_per_round} is below'
          f' report_goal={self.report_goal}'
      )
    if not 0.0 <= self.dropout < 1.0:
      raise ValueError(f'dropout must lie in 0 to 1, got {self.dropout!r}')
    if self.clients_per_round * (1.0 - self.dropout) < self.report_goal:
      raise ValueError(
          f'clients_per_round={self.clients_per_round} with'
          f' dropout={self.dropout!r} leaves fewer than'
          f' report_goal={self.report_goal} reports to be expected; invite at'
          f' least {int(np.ceil(self.report_goal / (1.0 - self.dropout)))}'
      )
    for name in ('round_minutes', 'max_wait_days'):
      if not (np.isfinite(getattr(self, name)) and getattr(self, name) > 0.0):
        raise ValueError(
            f'{name} must be a finite number above 0, got'
            f' {getattr(self, name)!r}'
        )

  def init(self) -> State:
    """The state before round 0: nobody has taken part."""
    num_devices = self.population.num_devices
    return State(
        round=0,
        clock=self.start,
        last_round=np.full(num_devices, -1, np.int64),
        last_time=np.zeros(num_devices, np.int64),
    )

  def next(self, state: State) -> tuple[Cohort, State]:
    """The cohort of the state's round, and the state after it.

    Raises:
      StalledRound: where too few devices' timers will ever have run, or the
        report goal is not met within max_wait_days.
    """
    participation = (state.last_round, state.last_time)
    now = self.timer.earliest(
        state.round, state.clock, *participation, self.report_goal
    )
    if now is None:
      self._stall(state, 'too few devices have a timer that will have run')
    for attempt in itertools.count():
      if now - state.clock > self.max_wait_days * 86400.0:
        self._stall(
            state,
            'too few devices could be reached and reported within'
            f' {self.max_wait_days:g} simulated days',
        )
      candidates = np.flatnonzero(
          self.timer.eligible(state.round, now, *participation)
          & self.population.available(now)
      )
      if candidates.size >= self.report_goal:
        cohort, seconds = self._reports(state.round, attempt, candidates)
        if cohort.size == self.report_goal:
          return self._close(state, cohort, now, now + seconds)
      now += _RETRY_SECONDS

  def restore(
      self,
      rounds: Sequence[int] | np.ndarray,
      device_ids: Sequence[str] | Sequence[int] | np.ndarray,
      timestamps: Sequence[int] | np.ndarray,
  ) -> State:
    """The state after the rounds of a log, as `next` left it.

    Args:
      rounds: shape [num_participations]; rounds 0 to the last, none missing.
      device_ids: of that shape; ids of the population, not its indices.
      timestamps: of that shape, UTC seconds; one value a round: when it closed.

    Raises:
      ValueError: for another shape, unknown devices, a missing round, a device
        twice in a round, or timestamps that differ within a round.
    """
    devices = self.population.indices(device_ids)
    rounds, times = (np.asarray(a, np.int64) for a in (rounds, timestamps))
    if not rounds.ndim == 1 or not rounds.shape == devices.shape == times.shape:
      raise ValueError(
          'rounds, device_ids and timestamps must have one shape, got'
          f' {rounds.shape}, {devices.shape} and {times.shape}'
      )
    state = self.init()
    if not rounds.size:
      return state
    order = np.lexsort((devices, rounds))
    rounds, devices, times = rounds[order], devices[order], times[order]
    present = np.unique(rounds)
    if present[0] != 0 or present[-1] != present.size - 1:
      raise ValueError(
          f'rounds must be 0 to {present[-1]} without a gap, got'
          f' {present.size} of them from {present[0]}'
      )
    same_round = rounds[1:] == rounds[:-1]
    if (same_round & (devices[1:] == devices[:-1])).any():
      raise ValueError('device_ids holds a device twice in a round')
    if (same_round & (times[1:] != times[:-1])).any():
      raise ValueError('timestamps differ within a round')
    # Rounds ascend, so each device keeps its last assignment.
    state.last_round[devices] = rounds
    state.last_time[devices] = times
    return state._replace(round=int(rounds[-1]) + 1, clock=int(times[-1]))

  def _reports(
      self, round_index: int, attempt: int, candidates: np.ndarray
  ) -> tuple[np.ndarray, int]:
    """The first devices to report, and seconds until the last of them did."""
    draws = seeds.generator(self.seed, _COHORTS, round_index, attempt)
    num_devices = self.population.num_devices
    order, drops, delay = (draws.random(num_devices) for _ in range(3))
    places = np.argsort(order[candidates], kind='stable')
    invited = candidates[places[: self.clients_per_round]]
    reported = invited[drops[invited] >= self.dropout]
    first = np.argsort(delay[reported], kind='stable')[: self.report_goal]
    cohort = np.sort(reported[first]).astype(np.int64)
    slowest = delay[cohort].max(initial=0.0)
    return cohort, int(np.ceil((0.5 + slowest) * self.round_minutes * 60.0))

  def _close(
      self, state: State, devices: np.ndarray, started: int, closed: int
  ) -> tuple[Cohort, State]:
    last_round, last_time = state.last_round.copy(), state.last_time.copy()
    last_round[devices], last_time[devices] = state.round, closed
    return (
        Cohort(
            round=state.round,
            device_indices=devices,
            device_ids=self.population.device_ids[devices],
            started=started,
            closed=closed,
        ),
        State(state.round + 1, closed, last_round, last_time),
    )

  def _stall(self, state: State, reason: str) -> NoReturn:
    goal, devices = self.report_goal, self.population.num_devices
    raise StalledRound(
        f'round {state.round} stalled: {reason} for a report goal of {goal} in'
        f' a population of {devices}; what would do:'
        f' {self.timer.remedy(devices, goal)}'
    )
