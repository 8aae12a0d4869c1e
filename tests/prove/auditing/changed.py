"""Audits of noise rows of the engine that are changed before they are released."""

from fl_dpftrl.prove.auditing import procedure, subjects

MULTIPLIER, DRAWS = 2.0, 4000


class Changed(subjects.RowSubject):
  """Noise rows for tensors of given sizes, and a change of all of them."""

  def __init__(self, strategy, sizes, change=lambda rows: rows, *, seed=3):
    super().__init__(strategy, noise_multiplier=MULTIPLIER, clip_norm=1.0, sizes=sizes, seed=seed)
    self._change = change

  def run(self, cohorts, num_rounds):
    updates = [sum(cohorts(t)) for t in range(num_rounds)]
    return self._change(super().run(lambda t: [], num_rounds)) + updates


def checks(subject, strategy, num_rounds=16, repeats=2):
  """Returns the checks of a subject that claims the noise of a strategy, by name."""
  noising = MULTIPLIER * strategy.noising_matrix(num_rounds)
  found = procedure.subject_checks(subject, noising, clip_norm=1.0, repeats=repeats)
  return {check.name: check for check in found}


def failed(found):
  """Returns the names of the checks that did not pass."""
  return {name for name, check in found.items() if not check.passed}
