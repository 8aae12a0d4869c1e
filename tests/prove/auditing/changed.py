"""Audits of noise rows of the engine that are changed before they are released."""

import numpy as np

from fl_dpftrl.claims import lattice_units
from fl_dpftrl.noise import integer_rows, normals
from fl_dpftrl.prove.auditing import procedure, subjects

MULTIPLIER, DRAWS = 2.0, 4000


class RowSubject:
  """Noise rows of the engine with clipped updates, in whole numbers; each run has another seed."""

  description = 'noise rows'

  def __init__(self, strategy, *, noise_multiplier, clip_norm, sizes, seed):
    self.sizes = tuple(sizes)
    self._strategy, self._seed = strategy, seed
    self._unit, self._clip_norm = lattice_units.Unit.of(noise_multiplier), clip_norm
    self._runs = 0

  def run(self, cohorts, num_rounds):
    self._runs += 1
    seed = normals.fixed_seed(subjects.run_seed(self._seed, self._runs))
    size = sum(self.sizes)
    maker = integer_rows.RowMaker(
      self._strategy, size=size, num_rounds=num_rounds, seed=seed, num_threads=1
    )
    rows = np.empty((num_rounds, size), np.int64)
    for t, row in enumerate(rows):
      maker.make(row)
      for update in cohorts(t):
        row += self._unit.integers(update, self._clip_norm) << self._unit.shift
    maker.close()
    return self._unit.size * self._clip_norm * rows


class Changed(RowSubject):
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
  found, _ = procedure.noise_checks(subject, noising, clip_norm=1.0, repeats=repeats)
  return {check.name: check for check in found}


def failed(found):
  """Returns the names of the checks that did not pass."""
  return {name for name, check in found.items() if not check.passed}
