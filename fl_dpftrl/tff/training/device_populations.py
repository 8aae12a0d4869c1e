"""Devices of a run of `train`, which come to its rounds."""

from typing import Any

from fl_dpftrl.participation.participation import Participation
from fl_dpftrl.participation.rules import loss_budgets, separations
from fl_dpftrl.planning.simulation import scenarios
from fl_dpftrl.support.text import messages
from fl_dpftrl.tff.aggregators import factories


def devices(
  aggregator: factories.CorrelatedNoiseFactory,
  num_clients: int,
  *,
  num_rounds: int,
  timer_rounds: int,
  seed: int,
  scenario: scenarios.Scenario | None,
  participation: Participation | None,
) -> scenarios.Scenario:
  """Returns the population of a run: the given scenario, or clients that are always available.

  Raises:
    ValueError: for arguments of `train` that exclude each other, and for too few clients.
  """
  goal = aggregator.report_goal
  if participation is not None and getattr(participation, 'num_rounds', 0) is not None:
    raise ValueError(
      f'participation must be without an end, got {messages.quoted(participation)}; a schema of'
      ' num_rounds is that of timer_rounds or of a scenario'
    )
  if participation is not None and (scenario is not None or timer_rounds != 1):
    raise ValueError('participation excludes timer_rounds and scenario: it is a meter of its own')
  if scenario is not None:
    if timer_rounds != 1:
      raise ValueError('timer_rounds and scenario exclude each other: the scenario has a timer')
    if scenario.report_goal != goal:
      raise ValueError(
        f'scenario has report_goal={scenario.report_goal}, and the aggregator has {goal}'
      )
    if scenario.population > num_clients:
      raise ValueError(
        f'scenario has population={scenario.population}, and there are {num_clients} clients'
      )
    return scenario
  timer: dict[str, Any] = {'timer_rounds': min(timer_rounds, num_rounds)}
  if isinstance(participation, loss_budgets.LossBudget):
    timer = {'loss_budget': participation, 'strategy': aggregator.strategy}
  elif isinstance(participation, separations.MinSep):
    most = participation.max_participations
    timer = {'timer_rounds': participation.min_sep, 'max_participations': most}
  elif (needed := min(timer_rounds, num_rounds) * goal) > num_clients:
    raise ValueError(
      f'timer_rounds={timer_rounds} with report_goal={goal} needs {needed} clients, got'
      f' {num_clients}'
    )
  return scenarios.Scenario(
    population=num_clients,
    report_goal=goal,
    seed=seed,
    availability='always',
    clients_per_round=goal,
    dropout=0.0,
    **timer,
  )
