"""The noise of a run: budget, admission, metadata and void reasons."""

import dataclasses

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl import accounting
from fl_dpftrl.accounting import arithmetic
from fl_dpftrl.families import tree_online
from fl_dpftrl.logs import keys, noise_record
from fl_dpftrl.participation import schemas
from fl_dpftrl.training import guarantee, loop
from tests import oracle

pytestmark = pytest.mark.tff

SCHEMA = schemas.MinSep(num_rounds=40, min_sep=4)
AGGREGATOR = dpftrl.CorrelatedNoiseFactory(
  tree_online.TreeOnline(), noise_multiplier=2.0, clip_norm=1.0, report_goal=5
)


def run_of(void=None, **changes):
  return loop.TrainingRun(
    folder=None,
    num_rounds=40,
    process=None,
    rounds=None,
    client_data=None,
    aggregator=dataclasses.replace(AGGREGATOR, **changes),
    void_reason=void,
  )


def test_devices_that_forget_never_pass_the_budget():
  tree = tree_online.TreeOnline()
  allowed = lambda numbers: guarantee.allowed_rounds(
    tree, 2.0, SCHEMA, numbers, delta=1e-6, max_epsilon=8.0
  )
  n = allowed(arithmetic.Arithmetic())
  assert 1 < n < 40 and allowed(arithmetic.Arithmetic.covered(2**50)) <= n
  every = np.array(['a', 'b', 'c'])  # All of them, in each round, as if no timer worked.
  given = [schemas.Cohort(t, every, t, t) for t in range(n)]
  seen = list(guarantee.admitted(iter(given), SCHEMA))
  rounds = np.array([c.round for c in seen for _ in c.device_ids])
  ids = np.concatenate([c.device_ids for c in seen])
  happened = oracle.schema_of(rounds, ids, n)
  assert happened.min_sep == 4
  assert accounting.account(tree, happened, noise_multiplier=2.0, delta=1e-6).epsilon() <= 8.0


@pytest.mark.parametrize(
  'changes, reason',
  [
    ({}, None),
    (dict(noise_seed=3), 'the noise seed was given, so whoever knows it can remove the noise'),
    (dict(noise_multiplier=0.0), 'noise is off (noise_multiplier 0)'),
    (dict(noise_multiplier=0.0, noise_seed=3), 'noise is off (noise_multiplier 0)'),
  ],
)
def test_void_reasons_are_in_the_log(changes, reason):
  run = run_of(reason, **changes)
  assert guarantee.void_reason(run.aggregator) == reason
  both = 'state' if reason is None else f'{reason}; state'
  assert guarantee.void_reason(run.aggregator, 'state') == both
  metadata = guarantee.log_metadata(run, not_private=['a'])
  assert metadata.get(keys.VOID_KEY) == reason
  assert '["a"]' in metadata.values()
  assert '["a"]' not in guarantee.log_metadata(run).values()


def test_the_rule_of_an_adaptive_clip_norm_is_in_the_log():
  rule = dpftrl.AdaptiveClipping(1.0, rounds=3)
  assert noise_record.read_clipping(guarantee.log_metadata(run_of(clip_norm=rule))) == rule
  assert noise_record.read_clipping(guarantee.log_metadata(run_of())) is None
