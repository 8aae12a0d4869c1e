"""Sites of NVFlare that release private means over people of their own.

    with dpftrl.PrivateAggregator(…, folder='site') as aggregator:
      nvflare.answer_rounds(aggregator, patients, update)

A site keeps noise, ledger and budget to itself, and sends the model plus its private mean. So
server and other sites need no trust. A round that the server repeats or loses is another round of
the site, and a round that a site misses takes no row of its noise: docs/sites.md.
"""

from collections.abc import Sequence

import numpy as np

from fl_dpftrl import adapters
from fl_dpftrl.adapters import sites
from fl_dpftrl.run import private_aggregator

with adapters.peer('NVFlare', 'nvflare'):
  from nvflare import client
  from nvflare.apis.fl_constant import FLMetaKey


def answer_rounds(
  aggregator: private_aggregator.PrivateAggregator,
  people: Sequence[str] | Sequence[int],
  update: sites.Update,
  cohort: int | None = None,
  at_least: int | None = None,
) -> None:
  """Answers the rounds of NVFlare's server until its job ends; all sites have the same weight.

  A site whose rounds are over answers with the model as it came, after a restart too. Args are
  those of `sites.next_model`.
  """
  client.init()
  while client.is_running():
    received = client.receive()
    if received is None:
      break
    model = {name: np.asarray(value) for name, value in received.params.items()}
    params, metrics = sites.next_model(aggregator, model, people, update, cohort, at_least)
    meta = {FLMetaKey.NUM_STEPS_CURRENT_ROUND: 1}
    client.send(client.FLModel(params_type='FULL', params=params, metrics=metrics, meta=meta))
