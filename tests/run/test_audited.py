"""An audit runs a `PrivateAggregator` from the outside, in folders of its own."""

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.run import audited
from tests import made


@pytest.mark.parametrize(
  'noise_multiplier, clip_norm, passes',
  [(2.0, 0.5, True), (3.0, 0.5, False), (4 / 3, 0.5, False), (4.0, 0.25, False)],
  ids=['as it is', 'more noise', 'less noise', 'a smaller clip norm, the same noise'],
)
def test_the_claim_passes_and_others_do_not(noise_multiplier, clip_norm, passes, tmp_path):
  claimed = dict(noise_multiplier=noise_multiplier, clip_norm=clip_norm, delta=1e-5)
  template = np.zeros(3, np.float32)
  with made.aggregator(tmp_path / 'run', template=template, clip_norm=0.5, report_goal=5) as run:
    schema, draws = dpftrl.MinSep(num_rounds=6, min_sep=2), dict(num_draws=4000, seed=3)
    audit = dpftrl.audit(made.BLT, schema, aggregator=run, **claimed, **draws)
    assert run.next_round == 0  # Its own folder is left alone.
  assert audit.passed == passes, audit
  assert [path.name for path in tmp_path.iterdir()] == ['run']


def test_seeded_runs_differ_and_repeat():
  def released(num_runs):
    options = dict(noise_multiplier=1.0, clip_norm=1.0, num_coordinates=64, seed=2)
    subject = audited.Audited(dpftrl.Identity(), **options)
    return [subject.run(lambda t: [np.zeros(64, np.float32)], 1) for _ in range(num_runs)]

  one, other = released(2)
  assert not (one == other).any()
  np.testing.assert_array_equal(released(1), [one])
