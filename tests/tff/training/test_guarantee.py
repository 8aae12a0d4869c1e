"""The claim of a run, and its budget and admission."""

import dataclasses

import numpy as np
import pytest
import tensorflow_federated as tff

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms.families import tree_online
from fl_dpftrl.participation import accountant
from fl_dpftrl.participation.accounting import arithmetics, guarantees
from fl_dpftrl.run import admission, budget
from tests import made, oracle

pytestmark = pytest.mark.tff

SCHEMA = dpftrl.MinSep(num_rounds=40, min_sep=4)
SCHEMA_OF_ALL = dataclasses.replace(SCHEMA, max_participations=10)
VALUE_TYPE = tff.TensorType(np.float32, [3])
AGGREGATOR = made.factory(tree_online.TreeOnline(), report_goal=5)


@made.cases(
  'changes, reason',
  ({}, None),
  (dict(noise_seed=3), 'the noise seed was given, so whoever knows it can remove the noise'),
  (dict(noise_multiplier=0.0), 'noise is off (noise_multiplier 0)'),
  (dict(noise_multiplier=0.0, noise_seed=3), 'noise is off (noise_multiplier 0)'),
)
def test_void_reasons_are_claimed(changes, reason):
  aggregator = dataclasses.replace(AGGREGATOR, **changes)
  both = 'state' if reason is None else f'{reason}; state'
  claim = aggregator.claim(VALUE_TYPE, participation=SCHEMA)
  assert (claim.void_reason, claim.declared) == (reason, SCHEMA_OF_ALL)
  assert aggregator.claim(VALUE_TYPE, void_reason='state').void_reason == both
  assert aggregator.claim(VALUE_TYPE, void_reason=None).void_reason == reason


def test_the_rule_of_an_adaptive_clip_norm_is_claimed():
  rule = dpftrl.AdaptiveClipping(1.0, rounds=3)
  claim = dataclasses.replace(AGGREGATOR, clip_norm=rule).claim(VALUE_TYPE)
  assert claim.adaptive_clipping == rule and claim.report_goal == 5
  assert AGGREGATOR.claim(VALUE_TYPE).adaptive_clipping is None


def test_devices_that_forget_never_pass_the_budget():
  tree = tree_online.TreeOnline()
  claim = lambda numbers: made.claim(tree, participation=SCHEMA, arithmetic=numbers)
  allowed = lambda numbers: budget.Budget(claim(numbers), guarantees.Terms(1e-6), 8.0).max_rounds
  n = allowed(arithmetics.Arithmetic())
  assert 1 < n < 40 and allowed(arithmetics.Arithmetic.covered(2**50)) <= n
  every = np.array(['a', 'b', 'c'])  # All of them, in each round, as if no timer worked.
  gate, cohorts = SCHEMA.gate(tree), []
  for _ in range(n):
    cohorts.append(admission.admit(gate, every).device_ids)
    gate.record(cohorts[-1])
  rounds = np.repeat(np.arange(n), [len(cohort) for cohort in cohorts])
  ids = np.concatenate(cohorts)
  happened = oracle.schema_of(rounds, ids, n)
  assert happened.min_sep == 4
  assert accountant.account(tree, happened, noise_multiplier=2.0, delta=1e-6).epsilon() <= 8.0
