"""Canaries of a training run: their flags."""

import dataclasses

import pytest

import fl_dpftrl as dpftrl
from experiments.stackoverflow import configuration, training
from fl_dpftrl.aggregators import canaries
from fl_dpftrl.logs import canaries as ids
from fl_dpftrl.participation import schemas

pytestmark = pytest.mark.tff

HPARAMS = configuration.Hparams(noise_multiplier=1.0, report_goal=6, num_rounds=12, canaries=8)
SCHEMA = schemas.MinSep(num_rounds=12, min_sep=4)


def with_canaries(schema=SCHEMA, clients=('a', 'b'), **changes):
  factory = dpftrl.CorrelatedNoiseFactory(
    dpftrl.Identity(), noise_multiplier=1.0, clip_norm=1.0, report_goal=6
  )
  return training.with_canaries(
    factory, dataclasses.replace(HPARAMS, **changes), schema=schema, size=50, clients=clients
  )


def test_a_run_has_none_by_default():
  assert configuration.Hparams(noise_multiplier=1, report_goal=1, num_rounds=1).canaries is None
  assert not isinstance(with_canaries(canaries=None), canaries.CanaryFactory)
  assert with_canaries().channel.canaries.num_canaries == 8


@pytest.mark.parametrize(
  'kwargs, words',
  [
    (dict(canaries=7), '--canaries=7 must be at least 8'),
    (dict(canaries=13), 'at most 12 are possible with --report_goal=6 and a min-sep of 4'),
    (dict(clip_quantile=0.5), 'leave --clip_quantile out'),
    (dict(clients=[ids.device_id(0)]), 'reserved'),
    (dict(schema=schemas.MinSep(num_rounds=10_001, min_sep=4)), 'at most 10000 rounds'),
  ],
)
def test_flags_that_do_not_fit_are_refused(kwargs, words):
  with pytest.raises(ValueError, match=words):
    with_canaries(**kwargs)
