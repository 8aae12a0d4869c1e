"""Guarantees of deployments that were not run, from one that was.

Where noise multiplier and report goal grow alike, the noise on the mean update
stays the same. That a model's utility then stays the same too is a hypothesis,
and so is the min-sep that a population would have: what is found here predicts.

Source: McMahan, Xu and Zhang 2024 (BLT-DP-FTRL), section 5, "Extrapolation".
"""

import dataclasses

from fl_dpftrl import participation
from fl_dpftrl.accounting import gaussian
from fl_dpftrl.families import base


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reference:
  """Noise whose effect on utility is known.

  Attributes:
    noise_multiplier: standard deviation of Z over the clip norm.
    report_goal: the updates that a round sums under that noise.

  Raises:
    ValueError: where noise_multiplier is not positive and finite, or
      report_goal not a whole number of at least 1.
  """

  noise_multiplier: float
  report_goal: int

  def __post_init__(self):
    gaussian.check_positive('noise_multiplier', self.noise_multiplier)
    participation.positive_integer('report_goal', self.report_goal)

  def at(self, report_goal: int) -> float:
    """The noise multiplier that gives the mean update the same noise."""
    return self.noise_multiplier * (report_goal / self.report_goal)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deployment:
  """Devices and rounds of a run that was not.

  Attributes:
    report_goal: updates that a round sums.
    num_rounds: n, the rows of noise that are consumed.
    population: devices that can take part; None where it is not known.
    min_sep: b; None for ⌊population / report_goal⌋, which there is where
      devices take turns, and no larger b is possible.
    max_participations: k; None for as many as fit.

  Raises:
    ValueError: where an attribute is not a whole number of at least 1, neither
      population nor min_sep is given, or the population is too small for the
      rounds under min_sep and max_participations.
  """

  report_goal: int
  num_rounds: int
  population: int | None = None
  min_sep: int | None = None
  max_participations: int | None = None

  def __post_init__(self):
    participation.positive_integer('report_goal', self.report_goal)
    if self.population is None:
      if self.min_sep is None:
        raise ValueError('population or min_sep must be given, got neither')
    else:
      participation.positive_integer('population', self.population)
      if self.population < self.report_goal:
        raise ValueError(
            f'population={self.population} is below'
            f' report_goal={self.report_goal}'
        )
    schema = self.schema  # which checks the others
    if self.population is not None and self.population < self._least(schema):
      raise ValueError(
          f'population={self.population} is too small: {schema.num_rounds}'
          f' rounds of report_goal={self.report_goal} devices with'
          f' min_sep={schema.min_sep} and'
          f' max_participations={schema.participations} need'
          f' {self._least(schema)}'
      )

  def _least(self, schema: participation.MinSep) -> int:
    """Devices without which the rounds cannot keep to the schema."""
    apart = min(schema.min_sep, schema.num_rounds) * self.report_goal
    all_updates = schema.num_rounds * self.report_goal
    return max(apart, -(-all_updates // schema.participations))

  @property
  def schema(self) -> participation.MinSep:
    """How devices take part, as far as it can be known beforehand."""
    min_sep = self.min_sep
    if min_sep is None:
      min_sep = self.population // self.report_goal
    return participation.MinSep(
        num_rounds=self.num_rounds,
        min_sep=min_sep,
        max_participations=self.max_participations,
    )


def predict(
    strategy: base.Strategy,
    deployment: Deployment,
    reference: Reference,
    *,
    delta: float,
) -> gaussian.Guarantee:
  """What the deployment would guarantee at the reference's noise on the mean.

  Args:
    strategy: C as it would be run, and was under the reference.
    deployment: with the participation that is expected of it.
    reference: for that strategy; other strategies have noise of their own.
    delta: δ of (ε, δ).

  Raises:
    ValueError: where delta is outside its range, or the deployment has more
      rounds than the strategy can run.
  """
  return gaussian.account(
      strategy,
      deployment.schema,
      noise_multiplier=reference.at(deployment.report_goal),
      delta=delta,
  )


def hypotheses(*, min_sep_given: bool) -> tuple[str, ...]:
  """What predictions take for granted beyond what a guarantee assumes."""
  return (
      'utility is the same where noise multiplier / report goal is,'
      ' whatever the min-sep',
      'min-sep is as given, and every device keeps to it' if min_sep_given else
      'min-sep is ⌊population / report goal⌋, the most there can be: a real run'
      ' may have less, and a larger ε',
  )
