"""Audits of noise rows of the reference that are changed before they are released."""

import numpy as np

from fl_dpftrl import accounting, auditing
from fl_dpftrl.auditing import subjects

DELTA, MULTIPLIER, DRAWS = 1e-6, 2.0, 4000


class Changed(subjects.Rows):
  """Noise rows for tensors of given sizes, and a change of all of them."""

  def __init__(self, strategy, sizes, change=None, *, executor='reference', seed=3):
    super().__init__(
      executor, strategy, noise_multiplier=MULTIPLIER, clip_norm=1.0, sizes=sizes, seed=seed
    )
    self._change = change

  def run(self, cohorts, num_rounds):
    updates = np.array([sum(cohorts(t)) for t in range(num_rounds)])
    return self._change(super().run(lambda t: [], num_rounds)) + updates


def audit(subject, strategy, schema, *, draws=DRAWS, seed=3):
  return auditing.audit_subject(
    subject,
    strategy,
    accounting.account(strategy, schema, noise_multiplier=MULTIPLIER, delta=DELTA),
    clip_norm=1.0,
    largest_update=1.0,
    confidence=0.95,
    num_draws=draws,
    seed=seed,
  )


def failed(found):
  """Returns the names of the checks that an audit did not pass."""
  return {check.name for check in found.checks if not check.passed}
