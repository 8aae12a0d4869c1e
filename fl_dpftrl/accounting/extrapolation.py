"""Guarantees extrapolated from one run to hypothetical deployments.

If noise multiplier and report goal grow by the same factor, the noise on the mean update stays
the same. That utility then stays the same too is a hypothesis, and so is the min-sep of another
population. The results here are therefore predictions.

Source: McMahan, Xu and Zhang 2024 (BLT-DP-FTRL), section 5, "Extrapolation".
"""

import dataclasses

from fl_dpftrl.accounting import gaussian
from fl_dpftrl.families import base
from fl_dpftrl.participation import schemas


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reference:
  """Noise level whose effect on utility is known.

  Attributes:
    noise_multiplier: standard deviation of Z over the clip norm.
    report_goal: number of updates summed per round under that noise.

  Raises:
    ValueError: if noise_multiplier is not positive and finite, or report_goal is not a whole
      number of at least 1.
  """

  noise_multiplier: float
  report_goal: int

  def __post_init__(self):
    gaussian.check_positive('noise_multiplier', self.noise_multiplier)
    schemas.positive_integer('report_goal', self.report_goal)

  def at(self, report_goal: int) -> float:
    """Returns the noise multiplier with the same noise on the mean update."""
    return self.noise_multiplier * (report_goal / self.report_goal)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deployment:
  """Hypothetical deployment: its devices, rounds and participation.

  Attributes:
    report_goal: number of updates summed per round.
    num_rounds: n, number of noise rows used.
    population: number of eligible devices; None if unknown.
    min_sep: b; None for ⌊population / report_goal⌋. Devices that take turns reach this value,
      and no larger b is possible.
    max_participations: k; None for as many as fit.

  Raises:
    ValueError: if an attribute is not a whole number of at least 1, population and min_sep are
      both missing, or the population is too small for the rounds under min_sep and
      max_participations.
  """

  report_goal: int
  num_rounds: int
  population: int | None = None
  min_sep: int | None = None
  max_participations: int | None = None

  def __post_init__(self):
    schemas.positive_integer('report_goal', self.report_goal)
    if self.population is None:
      if self.min_sep is None:
        raise ValueError('population or min_sep must be given, got neither')
    else:
      schemas.positive_integer('population', self.population)
      if self.population < self.report_goal:
        raise ValueError(f'population={self.population} is below report_goal={self.report_goal}')
    schema = self.schema  # validates the other attributes
    if self.population is not None and self.population < self._least(schema):
      raise ValueError(
        f'population={self.population} is too small: {schema.num_rounds}'
        f' rounds of report_goal={self.report_goal} devices with'
        f' min_sep={schema.min_sep} and'
        f' max_participations={schema.participations} need'
        f' {self._least(schema)}'
      )

  def _least(self, schema: schemas.MinSep) -> int:
    """Returns the smallest population whose rounds can keep to the schema."""
    apart = min(schema.min_sep, schema.num_rounds) * self.report_goal
    all_updates = schema.num_rounds * self.report_goal
    return max(apart, -(-all_updates // schema.participations))

  @property
  def schema(self) -> schemas.MinSep:
    """Participation schema that is expected of the deployment."""
    min_sep = self.min_sep
    if min_sep is None:
      min_sep = (self.population or 0) // self.report_goal
    return schemas.MinSep(
      num_rounds=self.num_rounds, min_sep=min_sep, max_participations=self.max_participations
    )


def predict(
  strategy: base.Strategy, deployment: Deployment, reference: Reference, *, delta: float
) -> gaussian.Guarantee:
  """Predicts the guarantee at the reference's noise on the mean update.

  Args:
    strategy: C as it would be run, and as it was run for the reference.
    deployment: hypothetical deployment and its expected participation.
    reference: noise level of a run with the same strategy.
    delta: δ of (ε, δ).

  Raises:
    ValueError: if delta is out of range, or the deployment has more rounds than the strategy
      supports.
  """
  return gaussian.account(
    strategy, deployment.schema, noise_multiplier=reference.at(deployment.report_goal), delta=delta
  )


def hypotheses(*, min_sep_given: bool) -> tuple[str, ...]:
  """Returns the hypotheses of a prediction, beyond a guarantee's assumptions."""
  return (
    'utility is the same where noise multiplier / report goal is, whatever the min-sep',
    'min-sep is as given, and every device keeps to it'
    if min_sep_given
    else 'min-sep is ⌊population / report goal⌋, the most there can be: a real run'
    ' may have less, and a larger ε',
  )
