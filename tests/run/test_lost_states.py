"""What a loop gets wrong silently: lost states, too many updates, rounds of nobody."""

import re

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.run import guards
from fl_dpftrl.support.files import mark
from tests import made
from tests.run import test_private_aggregator


def test_a_loop_whose_states_are_lost_is_refused(tmp_path):
  with test_private_aggregator.opened(tmp_path) as aggregator:
    aggregator.require_new()
    test_private_aggregator.released(aggregator)
  with test_private_aggregator.opened(tmp_path) as aggregator:
    with pytest.raises(mark.LostStateError, match='has 1 rounds, and no state of them is there'):
      aggregator.require_new()


def test_more_updates_than_the_report_goal_warn(tmp_path, recwarn):
  with test_private_aggregator.opened(tmp_path) as aggregator:
    test_private_aggregator.released(aggregator)
    assert not recwarn
    with pytest.warns(UserWarning, match='6 updates for report_goal=2.* mean is 3 times theirs'):
      test_private_aggregator.released(aggregator, tuple('abcdef'))


def test_a_round_of_nobody_warns(tmp_path, recwarn):
  claim = made.claim(participation=dpftrl.MinSep(9, 3))
  with guards.Guard(claim, log=tmp_path / 'log.parquet') as guard:
    assert guard.admit(['a'], timestamp=1).device_ids.tolist() == ['a'] and not recwarn
    with pytest.warns(UserWarning, match='admits no device: its row of noise is used up'):
      guard.admit(['a'], timestamp=2)
    assert guard.num_rounds == 2


def test_what_is_not_recorded_is_not_said_to_be_none(tmp_path):
  """Updates that arrived, and rounds that failed, are in no log of a loop of one's own."""
  with test_private_aggregator.opened(tmp_path, delta=1e-6) as aggregator:
    for _ in range(2):
      with aggregator.round(['a', 'b'], at_least=1) as round_:
        round_.add(test_private_aggregator.update())
    with pytest.raises(KeyError), aggregator.round(['a', 'b']):
      raise KeyError
    aggregator.report(tmp_path / 'report.html')
  page = re.sub(r'\s+', ' ', re.sub(r'<[^>]+>', ' ', (tmp_path / 'report.html').read_text()))
  assert 'burnt rounds: noise consumed, nothing released not recorded' in page
  assert 'updates that arrived in each round not recorded' in page
  assert 'rounds that admitted fewer devices than the report goal of 2 0' in page
