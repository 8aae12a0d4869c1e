"""A `PrivateAggregator` as an audit runs it: anew for each run, from the outside."""

import functools
import tempfile
import warnings
from typing import Any

import numpy as np

from fl_dpftrl.prove.auditing import subjects


class Audited:
  """Subject of an audit; see `prove.auditing.subjects.Subject`.

  Each run has a folder and a seed of its own, which go with it. Zeros are added to a round with
  fewer updates than the report goal.
  """

  clips = True

  def __init__(self, aggregator: Any, *, num_coordinates: int, seed: int | None):
    self.description = f'{type(aggregator).__name__} with {aggregator.strategy.family}'
    self.sizes = subjects.tensor_sizes(num_coordinates)
    self._report_goal, self._seed, self._runs = aggregator.report_goal, seed, 0
    kind: Any = type(aggregator)
    self._make = functools.partial(
      kind,
      aggregator.strategy,
      noise_multiplier=aggregator.noise_multiplier,
      clip_norm=aggregator.clip_norm,
      report_goal=aggregator.report_goal,
      zeroing_norm=aggregator.zeroing_norm,
    )

  def run(self, cohorts: subjects.Cohorts, num_rounds: int) -> np.ndarray:
    self._runs += 1
    seed = None if self._seed is None else subjects.run_seed(self._seed, self._runs)
    zeros = [np.zeros(size, np.float32) for size in self.sizes]
    released = np.empty((num_rounds, sum(self.sizes)))
    ends = np.cumsum(self.sizes)[:-1]
    with (
      tempfile.TemporaryDirectory(prefix='fl_dpftrl-audit-') as folder,
      self._make(template=zeros, folder=folder, noise_seed=seed) as aggregator,
      warnings.catch_warnings(),
    ):
      warnings.simplefilter('ignore', UserWarning)  # Its sums are of more updates than the goal.
      for t in range(num_rounds):
        updates = [np.split(np.asarray(update, np.float32), ends) for update in cohorts(t)]
        updates += [zeros] * (self._report_goal - len(updates))
        with aggregator.round(range(len(updates))) as round_:
          for update in updates:
            round_.add(update)
        released[t] = self._report_goal * np.concatenate(round_.mean).astype(np.float64)
    return released
