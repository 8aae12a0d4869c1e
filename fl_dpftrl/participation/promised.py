"""Participations that devices keep to, whatever is released: their guarantee is one Gaussian's."""

import dataclasses
import math

from fl_dpftrl.mechanisms import base, lattice
from fl_dpftrl.participation import own_checks
from fl_dpftrl.participation.accounting import adjacencies, arithmetics, gaussian, guarantees
from fl_dpftrl.participation.participation import Participation
from fl_dpftrl.support import checks
from fl_dpftrl.support.text import roundings

_MOST_OTHER_ROWS = 2**14  # of strategies without an end whose rows are not all made alike
_DIGITS = 10  # significant, of noise that is found
_LESS = 1.0 - 1e-15  # more than what dividing and multiplying round


class Promised(Participation):
  """Base class of a participation that devices keep to, in all rounds that a run may have.

  A subclass defines what `Participation` says, and overrides what else differs. Its guarantee is
  that of all these rounds, also where a run ends early: what such a run released is part of what
  all of them would have released, whatever ended it.
  """

  def for_claim(self, strategy: base.Strategy) -> Participation:
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

  def after(self, num_rounds: int) -> Participation:
    """Returns itself; ValueError for a run that had more rounds."""
    if num_rounds > self.num_rows and self.num_rounds is None:
      raise ValueError(f'last_row={self.num_rows} is before the {num_rounds} rounds of the log')
    if num_rounds > self.num_rows:
      raise ValueError(
        f'declared_num_rounds={self.num_rows} must be at least the {num_rounds} rounds of the log:'
        ' no declared guarantee covers rounds beyond those that were declared'
      )
    return self

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
