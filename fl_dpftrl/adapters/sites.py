"""A round of a site that trusts nobody outside of it: a private mean over people of its own."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fl_dpftrl.run import private_aggregator

Arrays = Mapping[str, np.ndarray]
Update = Callable[[Arrays, Any], Arrays]
_LOG = logging.getLogger(__name__)


def next_model(
  aggregator: private_aggregator.PrivateAggregator,
  model: Arrays,
  people: Sequence[str] | Sequence[int],
  update: Update,
  cohort: int | None = None,
  at_least: int | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
  """Returns the model plus the private mean of a round, and the metrics that were released.

  A site whose people may not take part now, or whose rounds are over, returns the model as it came,
  and uses no row of noise.

  Args:
    aggregator: of this site only. Its template is the model's arrays by name.
    model: arrays by name.
    people: ids of all who may take part at this site.
    update: (model, id) → the update of one person, in the form of the template.
    cohort: people in a round; None for the report goal.
    at_least: see `PrivateAggregator.round`.
  """
  t, cohort = aggregator.next_round, cohort or aggregator.report_goal
  if t >= aggregator.max_rounds:
    _LOG.warning('the %s rounds of this site are over', t)
    return dict(model), {}
  order = np.random.default_rng(t).permutation(np.asarray(people)).tolist()
  admitted = aggregator.admissible(order, at_most=cohort).tolist()
  needed = at_least or aggregator.report_goal
  if len(admitted) < needed:
    _LOG.warning('%s people may take part now, and %s are needed', len(admitted), needed)
    return dict(model), {}
  with aggregator.round(admitted, at_least=at_least) as round_:
    for person in admitted:
      round_.add(update(model, person), device_id=person)
  result = {name: np.asarray(value + round_.mean[name]) for name, value in model.items()}
  return result, dict(round_.metrics or {})
