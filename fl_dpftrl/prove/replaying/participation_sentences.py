"""Sentences of a statement about its participation, chosen by what a participation is."""

from collections.abc import Mapping

from fl_dpftrl.participation import drawn
from fl_dpftrl.participation.accounting import adjacencies
from fl_dpftrl.participation.participation import Participation
from fl_dpftrl.participation.rules import loss_budgets, per_units, population_budgets, separations
from fl_dpftrl.support.text import roundings

_NO_LOG_SHOWS = (
  'that it was drawn so, in secret and whatever the data, no log shows: this one has nothing that'
  ' such draws rule out, however improbable they make it'
)
_LOG_IS_SECRET = (
  'the log, which tells whose examples were drawn, is as secret as the draws, and so is what was'
  ' counted in it, min_sep and max_participations too; worst case and observed take the rounds of'
  ' the log as given, and need no secret draws'
)


def part(participation: Participation) -> str:
  """Returns the name of its guarantee in a statement."""
  if participation.is_secret:
    return 'amplified'
  return 'shuffled' if participation.is_drawn else 'declared'


def extent(participation: Participation) -> str:
  """Returns the rounds that its guarantee is of."""
  if isinstance(participation, population_budgets.PopulationBudget):
    return 'any number of runs and rounds'
  if participation.num_rounds is None:
    return 'any number of rounds'
  return f'{participation.num_rounds}{"" if participation.is_drawn else " declared"} rounds'


def broken(participation: Participation) -> str:
  """Returns that it was not kept, or that the log is not of such draws."""
  if participation.is_drawn:
    return f'the log contradicts --sampling={participation.kind}'
  return f'the {_limits(participation)} was not kept'


def _limits(participation: Participation) -> str:
  """Returns what devices keep to, in words."""
  if isinstance(participation, population_budgets.PopulationBudget):
    return 'budget of the population'
  is_budget = isinstance(participation, loss_budgets.LossBudget)
  return 'loss budget' if is_budget else 'declared schema'


def warning(participation: Participation, reason: str | None) -> str:
  """Returns the warning that it does not hold."""
  if participation.is_drawn:
    return (
      f'THE LOG CONTRADICTS --sampling={participation.kind}, so nothing is guaranteed under'
      f' {part(participation)}: {reason}'
    )
  if participation.num_rounds is None and not isinstance(participation, separations.MinSep):
    name = _limits(participation).upper()
    return f'THE {name} DOES NOT HOLD: {reason}; the figures of it are void'
  return f'THE DECLARED SCHEMA DOES NOT HOLD: {reason}; the declared figures are void'


def assumptions(participation: Participation, adjacency: str, group_size: int) -> list[str]:
  """Returns what its part of a statement assumes."""
  sentences = [participation.assumption]
  if isinstance(participation, drawn.Secret):
    sentences = [*participation.conditions, participation.relation(adjacency)[2], _LOG_IS_SECRET]
  elif participation.is_drawn:
    sentences = [participation.schema.assumption, participation.assumption]
  elif isinstance(participation, per_units.PerUnit):
    sentences.append(
      f'the table of units has every device of each {participation.name}, and did not depend on'
      ' data that training protects, nor on what was released from it; the table itself is not'
      ' protected'
    )
  elif isinstance(participation, population_budgets.PopulationBudget):
    sentences += _of_budgets(participation, (adjacency, group_size) == (adjacencies.ZERO_OUT, 1))
  return [f'{part(participation)}: {sentence}' for sentence in sentences]


def _of_budgets(budget: population_budgets.PopulationBudget, is_plain: bool) -> list[str]:
  """Returns the figures of classes, which are of zero-out of one unit, and what budgets assume."""
  at = f'at δ = {roundings.exact(budget.delta)}'
  at = at if is_plain else f'{at} for zero-out of it alone, and more here'
  sentences = [
    'all runs that draw on the budget are in the ledger, and which of them drew next, their'
    ' strategies and their noise depended only on what was released before'
  ]
  if len(budget.epsilons) > 1:
    figures = (
      f'a {budget.name} that was always of class {name} has ε = {roundings.up(epsilon)} {at}'
      for name, epsilon in budget.epsilons.items()
    )
    sentences += [
      *figures,
      'classes did not depend on data that training protects; they themselves are not protected',
    ]
  if budget.num_ended:
    sentences.append(
      f'the noise of each run that ended ({budget.num_ended}), and every copy of it, was deleted'
      ' before it was charged only for the rows that it had'
    )
  if budget.num_withdrawn:
    sentences.append(
      f'no {budget.name} that withdrew ({budget.num_withdrawn}) is in a round that was reserved'
      ' later'
    )
  return sentences


def verdicts(
  participation: Participation, is_recorded: Mapping[str, bool], holds: bool
) -> list[str]:
  """Returns what logs show of it; is_recorded: by name of a run, whether its log records it."""
  if participation.is_drawn:
    why = 'THE LOG CONTRADICTS THE SAMPLING that was stated, so that nothing is guaranteed here'
    shown = _NO_LOG_SHOWS if holds else why
    return [f'{part(participation)}: {shown}'] if participation.is_secret or not holds else []
  if isinstance(participation, population_budgets.PopulationBudget):
    name, unconfirmed = 'the budgets', ''
    recorded = ' are those of the ledger, which were fixed before its first run'
    void = f'THE {_limits(participation).upper()} DOES NOT HOLD: the figures of it'
  elif isinstance(participation, loss_budgets.LossBudget):
    name, void = 'the loss budget', 'THE LOSS BUDGET DOES NOT HOLD in this log: the figures of it'
    recorded = (
      ' is the one in the metadata of the log, where it was recorded before the first round'
    )
    unconfirmed = ' was fixed before the first round'
  else:
    name = 'these limits'
    void = 'THE DECLARED SCHEMA DOES NOT HOLD in this log: the figures under declared'
    recorded = ' are those that the log recorded before the first round'
    unconfirmed = ', the number of rounds too, were fixed before the first round'
  unconfirmed += '; the log cannot confirm it'
  sentences = [
    f'{part(participation)}: {name}{of_run}{recorded if is_there else unconfirmed}'
    for of_run, is_there in is_recorded.items()
  ]
  return sentences if holds else [*sentences, f'{void} are void']


def adaptivity(participation: Participation, end: str) -> str:
  """Returns what its part assumes of choices that followed releases; end: of a run, in words."""
  name = part(participation)
  if participation.is_drawn:
    return f'{name} assumes that {end} did not depend on what was released'
  if participation.num_rounds is None:
    sentence = (
      f'{name} is the guarantee of a run of any length, whatever ended it: the cohort of every'
      ' device may depend on what was released, and on nothing else of the data of a device'
    )
  else:
    sentence = (
      f'{name} is the guarantee of all {extent(participation)}: it holds whatever decided who took'
      f' part and {end}, a budget (max_epsilon) too, if devices themselves keep to the limits and'
      ' no further round could follow'
    )
  return sentence.replace('device', participation.unit)


def voided(participation: Participation, recorded: Participation) -> str | None:
  """Returns why a run is void that was replayed with it, but recorded another; None if not.

  Another participation that the log of draws records is a contradiction of them.
  """
  if participation.is_drawn or participation.covers(recorded):
    return None
  if recorded.is_drawn:
    return 'the log is of a run whose participation was drawn, and it was said to keep to a schema'
  return (
    f'the log is of a run whose declared schema allows {_allowed(recorded)}, and it was said to'
    f' allow {_allowed(participation)}'
  )


def _allowed(participation: Participation) -> str:
  """Returns the patterns that it allows, in a few words."""
  if not isinstance(participation, separations.MinSep):
    return participation.assumption
  extent = participation.num_rounds or 'any number of'
  return (
    f'at most {participation.participations} of {extent} rounds, at least {participation.min_sep}'
    ' apart'
  )


def check_public(*participations: Participation | None) -> None:
  """Raises ValueError where nothing of a log may be published; of None, a run has none."""
  if any(participation and participation.is_secret for participation in participations):
    raise ValueError(
      'participation that was drawn in secret has no public report: least separation and most'
      ' participations in the log are as secret; publish what account says of the sampling'
    )
