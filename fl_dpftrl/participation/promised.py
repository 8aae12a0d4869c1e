"""Participations that devices keep to, whatever is released: their guarantee is one Gaussian's."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fl_dpftrl.mechanisms import base, lattice, sensitivities
from fl_dpftrl.participation import own_checks, protocol
from fl_dpftrl.participation.accounting import adjacencies, arithmetics, gaussian, guarantees
from fl_dpftrl.support import checks
from fl_dpftrl.support.files import json_files
from fl_dpftrl.support.text import roundings

_MOST_OTHER_ROWS = 2**14  # of strategies without an end whose rows are not all made alike
_DIGITS = 10  # significant, of noise that is found
_LESS = 1.0 - 1e-15  # more than what dividing and multiplying round


class Promised:
  """Base class of a participation that devices keep to, in all rounds that a run may have.

  A subclass defines `worst_case`, `assumption` (the pattern in words), `gate`, `wrong`,
  `contradictions` and `summary`, and overrides what else differs. Its guarantee is that of all
  these rounds, also where a run ends early: what such a run released is part of what all of them
  would have released, whatever ended it.
  """

  is_drawn: ClassVar[bool] = False
  is_secret: ClassVar[bool] = False
  part: ClassVar[str] = protocol.DECLARED
  subject: ClassVar[str] = protocol.LOG
  unit: ClassVar[str] = 'device'
  charges_rows: ClassVar[bool] = False
  is_min_sep: ClassVar[bool] = False
  budget: Any = None
  num_rounds: Any  # An int, or None.

  @property
  def num_rows(self) -> int:
    """Rows of noise that a run may use up."""
    raise NotImplementedError

  @property
  def assumption(self) -> str:
    """The allowed patterns in words."""
    raise NotImplementedError

  @property
  def needs_rows(self) -> bool:
    return True

  def worst_case(self, strategy: base.Strategy) -> sensitivities.Sensitivity:
    raise NotImplementedError

  def for_claim(self, strategy: base.Strategy) -> Any:
    """Returns itself; ValueError where the strategy has fewer rows, or no bound without an end."""
    if self.num_rounds is None:
      self.worst_case(strategy)
    else:
      try:
        base.check_num_rounds(strategy, self.num_rows)
      except ValueError as error:
        raise ValueError(f'declared_num_rounds={self.num_rows}: {error}') from error
    own_checks.check(self, strategy)
    return self

  def after(self, num_rounds: int) -> Any:
    """Returns itself; ValueError for a run that had more rounds."""
    if num_rounds > self.num_rows and self.num_rounds is None:
      raise ValueError(f'last_row={self.num_rows} is before the {num_rounds} rounds of the log')
    if num_rounds > self.num_rows:
      raise ValueError(
        f'declared_num_rounds={self.num_rows} must be at least the {num_rounds} rounds of the log:'
        ' no declared guarantee covers rounds beyond those that were declared'
      )
    return self

  def rounds_may_follow(self, num_rounds: int) -> bool:
    """Returns whether there were fewer rounds than all."""
    return num_rounds < self.num_rows

  def check(self, strategy: base.Strategy, terms: guarantees.Terms) -> None:
    """Raises ValueError for a value out of range, and for rounding that has no bound."""
    adjacencies.check(terms.adjacency, terms.group_size)
    own_checks.check(self, strategy)
    if terms.num_coordinates is None:
      return
    checks.whole(num_coordinates=terms.num_coordinates)
    most, last = _MOST_OTHER_ROWS, self.num_rows
    if self.num_rounds is None and last > most and not lattice.all_alike(strategy, last):
      raise ValueError(
        f'last_row={last}: the rounding of whole numbers of {strategy.family} is bounded up to'
        f' {most} rows; give fewer, as last_row of a LossBudget'
      )

  def guarantee(
    self, strategy: base.Strategy, noise_multiplier: float, terms: guarantees.Terms
  ) -> guarantees.Guarantee:
    """Returns the guarantee of one Gaussian release of this sensitivity."""
    rounding = arithmetics.Rounding()
    if terms.num_coordinates is not None and noise_multiplier:
      rounding = arithmetics.rounding([(strategy, self.num_rows)], terms.num_coordinates)
    return guarantees.Guarantee.of(
      self.worst_case(strategy),
      terms,
      noise_multiplier=noise_multiplier,
      rounding=rounding,
      assumptions=(
        self.assumption,
        *guarantees.ASSUMPTIONS,
        *adjacencies.assumptions(terms.adjacency, terms.group_size),
      ),
    )

  def least_noise(
    self, strategy: base.Strategy, epsilon: float | None, rho: float | None, terms: guarantees.Terms
  ) -> guarantees.Guarantee:
    """Returns the guarantee of one Gaussian release with the least noise for ε or ρ."""
    trial = self.guarantee(strategy, 1.0, terms)
    added = trial.rounding
    if epsilon is not None and rho is None:
      checks.positive(epsilon=epsilon)
      remaining_delta = added.left(trial.delta, epsilon + 1.0)
      mu = (
        1.0 / gaussian.effective_noise_multiplier(epsilon, remaining_delta)
        if remaining_delta > 0.0
        else math.inf
      )
    elif rho is not None and epsilon is None:
      checks.positive(rho=rho)
      mu = math.sqrt(2.0 * rho) * _LESS
    else:
      raise ValueError('give epsilon or rho, and not both')
    if mu <= added.mu:
      raise ValueError('num_coordinates: the rounding of so many would pass the target by itself')
    # Last digits would differ between processors, and a run is bound to all of them.
    least = float(roundings.up(trial.sensitivity / (mu - added.mu), digits=_DIGITS))
    result = dataclasses.replace(trial, noise_multiplier=least)
    if epsilon is not None and result.epsilon() > epsilon:
      raise ValueError(f'epsilon={epsilon:g} is more than releases in whole numbers can prove')
    return result

  def voided_by(self, recorded: Any) -> str | None:
    """Returns a sentence where a log recorded another participation."""
    if recorded.is_drawn:
      return (
        'the log is of a run whose participation was drawn, and it was said to keep to a schema'
      )
    if self.covers(recorded):
      return None
    return (
      f'the log is of a run whose declared schema allows {recorded.allowed}, and it was said to'
      f' allow {self.allowed}'
    )

  def covers(self, recorded: Any) -> bool:
    """Returns whether it allows all that another one does."""
    return bool(recorded == self)

  @property
  def allowed(self) -> str:
    """The patterns that it allows, in a few words."""
    return self.assumption

  def assumptions(self, adjacency: str) -> tuple[str, ...]:
    """Returns the pattern in words."""
    return (f'{self.part}: {self.assumption}',)

  def verdicts(self, recorded: Mapping[str, bool], holds: bool) -> tuple[str, ...]:
    """Returns whether logs record the schema, and that it does not hold if it does not."""
    sentences = [
      f'{self.part}: these limits{of_run} are those that the log recorded before the first round'
      if is_recorded
      else f'{self.part}: these limits{of_run}, the number of rounds too, were fixed before the'
      ' first round; the log cannot confirm it'
      for of_run, is_recorded in recorded.items()
    ]
    if not holds:
      sentences.append(
        'THE DECLARED SCHEMA DOES NOT HOLD in this log: the figures under declared are void'
      )
    return tuple(sentences)

  def adaptivity(self, end: str) -> str:
    """Returns that the guarantee holds whatever participation and end depended on."""
    if self.num_rounds is None:
      return (
        f'{self.part} is the guarantee of a run of any length, whatever ended it: the cohort of'
        ' every device may depend on what was released, and on nothing else of the data of a device'
      )
    return (
      f'{self.part} is the guarantee of all {self.extent}: it holds whatever decided who took part'
      f' and {end}, a budget (max_epsilon) too, if devices themselves keep to the limits and no'
      ' further round could follow'
    )

  @property
  def extent(self) -> str:
    return (
      'any number of rounds' if self.num_rounds is None else f'{self.num_rounds} declared rounds'
    )

  @property
  def broken(self) -> str:
    """That devices did not keep to it, in words."""
    return 'the declared schema was not kept'

  def warning(self, reason: str | None) -> str:
    """Returns the warning that it does not hold."""
    return f'THE DECLARED SCHEMA DOES NOT HOLD: {reason}; the declared figures are void'

  def fields(self: Any, strategy: base.Strategy) -> json_files.Object:
    fields: json_files.Object = self.summary()
    return fields

  def together(self, others: Sequence[Any]) -> Any:
    """Returns itself, which stands for no other."""
    if others:
      raise ValueError(
        f'participations of {type(self).__name__} are not composed over several runs'
      )
    return self

  def check_public(self) -> None:
    """Raises nothing: whether devices kept to it may be published."""

  def flags(self, is_recorded: bool) -> list[str]:
    """Returns none: a log records it."""
    return []
