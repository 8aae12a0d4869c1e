"""The result of an audit: typed, frozen, with one JSON form."""

import dataclasses
import math
from typing import Any

from fl_dpftrl.participation import accounting
from fl_dpftrl.participation.rules import separations
from fl_dpftrl.support import tables
from fl_dpftrl.support.files import json_files


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
  """One test of the audit.

  Attributes:
    name: name of the check.
    statistic: measured value.
    lowest, highest: limits of the statistic where the check passes; None for no limit.
    where: round, rows or input of the statistic; '' if it covers all of them.
    meaning: sentence that says what a failure would mean.
  """

  name: str
  statistic: float
  lowest: float | None = None
  highest: float | None = None
  where: str = ''
  meaning: str = ''

  @property
  def passed(self) -> bool:
    """True if the statistic lies within its limits; NaN does not."""
    above = self.lowest is None or self.statistic >= self.lowest
    below = self.highest is None or self.statistic <= self.highest
    return above and below and not math.isnan(self.statistic)

  @property
  def result(self) -> str:
    """'passed' or 'FAILED'."""
    return 'passed' if self.passed else 'FAILED'

  def to_json(self) -> json_files.Object:
    """Returns the check as a JSON object; a statistic without a value is null."""
    return {
      'name': self.name,
      'statistic': self.statistic if math.isfinite(self.statistic) else None,
      'threshold': {'lowest': self.lowest, 'highest': self.highest},
      'passed': self.passed,
      'where': self.where,
      'meaning': self.meaning,
    }


class Checked:
  """A result with checks, in a fixed order, and a summary in words."""

  checks: Any  # A tuple of `Check`.
  summary: Any

  @property
  def passed(self) -> bool:
    """True if every check passed."""
    return not self.failed

  @property
  def failed(self) -> list[Check]:
    """Checks that did not pass."""
    return [check for check in self.checks if not check.passed]

  @property
  def names(self) -> str:
    """Names of the checks that did not pass, '' for none."""
    return ', '.join(check.name for check in self.failed)

  @property
  def rows(self) -> list[json_files.Object]:
    """A row for each check."""
    names = ('name', 'result', 'statistic', 'lowest', 'highest', 'where')
    return [{name: getattr(check, name) for name in names} for check in self.checks]

  def __repr__(self) -> str:
    title = f'{type(self).__name__}: {"passed" if self.passed else "FAILED"}'
    return tables.at_a_prompt(title, tables.table(self.summary).splitlines())


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Audit(Checked):
  """Claim of a mechanism, and the checks of what it releases.

  Attributes:
    subject: what ran, in words.
    claim: guarantee that the accountant gives for the claimed noise.
    clip_norm: claimed bound on an update.
    schema: participation schema of the claim.
    num_draws: number of noise samples per round.
    seed: seed of the audit; None for fresh randomness.
    checks: all checks, in a fixed order.
  """

  subject: str
  claim: accounting.Guarantee
  clip_norm: float
  schema: separations.MinSep
  num_draws: int
  seed: int | None
  checks: tuple[Check, ...]

  @property
  def summary(self) -> json_files.Object:
    """The verdict, and what it is of."""
    passed = f'passed: {len(self.checks)} checks found no difference from the claim'
    return {
      'subject': self.subject,
      'verdict': f'failed: {self.names}; the claim does not hold' if self.names else passed,
      'claimed_epsilon': self.claim.epsilon(),
      'delta': self.claim.delta,
      'adjacency': self.claim.adjacency,
      'num_draws': self.num_draws,
    }

  def to_json(self) -> json_files.Object:
    """Returns what `fl-dpftrl audit --json` prints."""
    return {
      'passed': self.passed,
      'subject': self.subject,
      'claimed_epsilon': self.claim.epsilon(),
      'delta': self.claim.delta,
      'adjacency': self.claim.adjacency,
      'noise_multiplier': self.claim.noise_multiplier,
      'clip_norm': self.clip_norm,
      'num_draws': self.num_draws,
      'seed': self.seed,
      **self.schema.numbers,
      'checks': [check.to_json() for check in self.checks],
    }
