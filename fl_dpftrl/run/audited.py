"""A `PrivateAggregator` as an audit runs it: anew for each run, from the outside."""

import functools
import importlib
import tempfile
import warnings
from typing import Any

import numpy as np

from fl_dpftrl.mechanisms import base
from fl_dpftrl.prove.auditing import subjects


class Audited:
  """Subject of an audit; see `prove.auditing.subjects.Subject`.

  Each run has a folder and a seed of its own, which go with it.
  """

  def __init__(
    self,
    strategy: base.Strategy,
    *,
    num_coordinates: int,
    seed: int | None,
    report_goal: int = 7,  # Not a number of devices of any probe.
    kind: Any = None,
    **options: Any,
  ):
    """Makes a subject of a kind of aggregator, ours if None, and its options."""
    kind = kind or importlib.import_module('fl_dpftrl.run.private_aggregator').PrivateAggregator
    self.description = f'{kind.__name__} with {strategy.family}'
    self.sizes = subjects.tensor_sizes(num_coordinates)
    self._report_goal, self._seed, self._runs = report_goal, seed, 0
    self._make = functools.partial(kind, strategy, report_goal=report_goal, **options)

  def run(self, cohorts: subjects.Cohorts, num_rounds: int) -> np.ndarray:
    self._runs += 1
    seed = None if self._seed is None else subjects.run_seed(self._seed, self._runs)
    zeros = [np.zeros(size, np.float32) for size in self.sizes]
    released = np.empty((num_rounds, sum(self.sizes)))
    with (
      tempfile.TemporaryDirectory(prefix='fl_dpftrl-audit-') as folder,
      self._make(template=zeros, folder=folder, noise_seed=seed) as aggregator,
      warnings.catch_warnings(),
    ):
      warnings.simplefilter('ignore', UserWarning)  # Its sums are of more updates than the goal.
      for t in range(num_rounds):
        updates = np.array(cohorts(t), np.float32)
        with aggregator.round(range(len(updates)), at_least=1) as round_:
          round_.add_batch(np.split(updates, np.cumsum(self.sizes)[:-1], axis=1))
        released[t] = self._report_goal * np.concatenate(round_.mean).astype(np.float64)
    return released
