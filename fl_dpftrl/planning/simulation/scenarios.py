"""Scenarios: a population with its timer and its server, ready to simulate."""

import dataclasses
import math
import os
from collections.abc import Mapping

from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.participation.rules import loss_budgets, separations
from fl_dpftrl.planning.simulation import (
  availabilities,
  cohorts,
  populations,
  servers,
  trace_tables,
)
from fl_dpftrl.support.text import messages

DROPOUT = 0.08
_OVER_SELECTION = 1.3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scenario:
  """Population, timer and server of a deployment to simulate.

  Attributes:
    population: number of devices.
    report_goal: number of reports that a round needs.
    timer_hours: minimum simulated hours before a device participates again.
    timer_rounds: the same in rounds; use instead of timer_hours. With neither of them a device
      may participate in every round.
    max_participations: with timer_rounds, the rounds of a device ever, in a run without an end.
    loss_budget: budget of a run without an end, kept by meters in place of timers.
    strategy: C, or its file or name, by which devices meter their losses; with loss_budget.
    seed: seed of all random draws.
    availability: 'nightly', 'always', the path of a Parquet table of times (see
      `trace_tables.read_traces`), or an availability of `fl_dpftrl.planning.simulation`.
    clients_per_round: number of devices chosen per round; None for 130 % of the report goal.
    dropout: fraction of the chosen devices that never report.
    devices: other attributes of `planning.simulation.populations.SimulatedPopulation`, by name.
    rounds: other attributes of `planning.simulation.servers.Server`, by name.
  """

  population: int
  report_goal: int
  timer_hours: float | None = None
  timer_rounds: int | None = None
  max_participations: int | None = None
  loss_budget: loss_budgets.LossBudget | None = None
  strategy: files.Given | None = None
  seed: int = 0
  availability: availabilities.Availability | str = 'nightly'
  clients_per_round: int | None = None
  dropout: float = DROPOUT
  devices: Mapping[str, float] = dataclasses.field(default_factory=dict)
  rounds: Mapping[str, float] = dataclasses.field(default_factory=dict)

  def simulation(self, *, seed: int | None = None) -> cohorts.Simulation:
    """Returns the simulation of the scenario, with its own seed or another."""
    seed, goal = self.seed if seed is None else seed, self.report_goal
    chosen = self.clients_per_round
    if chosen is None:
      chosen = math.ceil(_OVER_SELECTION * goal)
    return cohorts.Simulation(
      population=populations.SimulatedPopulation(
        num_devices=self.population,
        seed=seed,
        availability=self._availability(),
        dropout=self.dropout,
        **self.devices,
      ),
      timer=self._timer(),
      server=servers.Server(report_goal=goal, clients_per_round=chosen, **self.rounds),
      seed=seed,
    )

  def planned_schema(self, num_rounds: int) -> separations.MinSep:
    """Returns the participation that a strategy is optimised for, before the run.

    A timer in rounds says what min-sep is. For one in hours it is what the population allows at
    best, as production systems guess it.
    """
    if self.loss_budget is not None:
      raise ValueError('loss_budget: a run without an end has no schema to plan for')
    if self.timer_hours is not None:
      min_sep = self.population // self.report_goal
    else:
      min_sep = self.timer_rounds or 1
    return separations.MinSep(
      num_rounds, min(max(min_sep, 1), num_rounds), max_participations=self.max_participations
    )

  def declared_schema(self, num_rounds: int) -> separations.MinSep | loss_budgets.LossBudget | None:
    """Returns the schema that the timers enforce, if known in rounds; or the loss budget."""
    if self.loss_budget is not None:
      return self.loss_budget
    if self.timer_rounds is None:
      return None
    most = self.max_participations
    return separations.MinSep(num_rounds if most is None else None, self.timer_rounds, most)

  def _timer(self) -> servers.Timer:
    if self.max_participations is not None and self.timer_rounds is None:
      raise ValueError(f'max_participations={self.max_participations} needs timer_rounds')
    if (self.loss_budget is None) != (self.strategy is None):
      raise ValueError('loss_budget and strategy are needed together: the loss is that of C')
    if self.loss_budget is not None and self.strategy is not None:
      for name in ('timer_hours', 'timer_rounds'):
        if getattr(self, name) is not None:
          raise ValueError(f'{name}={getattr(self, name)} and loss_budget exclude each other')
      return servers.Meter(files.resolved(self.strategy), self.loss_budget)
    if self.timer_hours is None:
      timer_rounds = 1 if self.timer_rounds is None else self.timer_rounds
      return servers.RoundTimer(timer_rounds, self.max_participations)
    if self.timer_rounds is not None:
      raise ValueError(
        f'timer_hours={self.timer_hours} and timer_rounds={self.timer_rounds} exclude each other'
      )
    return servers.HourTimer(self.timer_hours)

  def _availability(self) -> availabilities.Availability:
    if not isinstance(self.availability, str):
      return self.availability
    if self.availability == 'nightly':
      return availabilities.Nightly()
    if self.availability == 'always':
      return availabilities.Always()
    if not os.path.exists(self.availability):
      raise ValueError(
        "availability must be 'always', 'nightly' or a Parquet table that exists, got"
        f' {messages.quoted(self.availability, 200)}'
      )
    return trace_tables.read_traces(self.availability)
