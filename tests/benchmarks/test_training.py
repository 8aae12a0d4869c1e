"""The training benchmark, on a model that takes no time."""

import json

import pytest

from benchmarks.training import cases, results, side

pytestmark = pytest.mark.tff

SMALL = cases.Case(
  size='small',
  network='lstm',
  num_tokens=12,
  sizes={'embedding': 3, 'units': 4},
  passes=1,
  clients=2,
)


OURS, FAILED = cases.Side('federated', 64), cases.Side('federated', 8)


def measured(*seconds):
  return results.Measured(passes=tuple({'seconds': s, 'cpu_seconds': 2 * s} for s in seconds))


def test_selection():
  assert cases.select([]) == list(cases.CASES)
  assert [c.size for c in cases.select(['lstm'])] == ['lstm-128', 'lstm-670']
  with pytest.raises(ValueError, match="'gru'; there are training-log"):
    cases.select(['gru'])


@pytest.mark.slow
def test_every_side_trains(capsys, monkeypatch):
  monkeypatch.setattr(cases, 'CASES', (SMALL,))
  for name in ('central', 'keras', 'federated'):
    side.main([SMALL.name, name, '64'])
    (only,) = json.loads(capsys.readouterr().out)
    assert only['seconds'] > 0 and only['cpu_seconds'] >= 0


def test_shares_are_of_the_quicker_loop():
  row = results.Row(
    SMALL,
    {
      cases.Side('central', 64): measured(4.0, 2.0, 3.0),
      cases.Side('keras', 64): measured(6.0),
      OURS: measured(4.0, 4.0),
      cases.Side(cases.PEER, 64, 1): measured(5.0),
      cases.Side(cases.PEER, 64, 2): measured(8.0),
      FAILED: results.Measured(failures=('ended',)),
    },
  )
  assert row.share(OURS) == row.share(OURS, 'cpu_seconds') == 0.75
  assert row.share(FAILED) is row.over_peer(FAILED) is None
  # Of the peer, its best.
  assert row.over_peer(OURS) == 0.8
  assert row.fixed_milliseconds(OURS) == pytest.approx(1e3 / SMALL.clients)
  text = results.table([row])
  assert '| small | federated               | 64    | 32  ' in text
  assert 'pfl-research, 1 thread ' in text and 'pfl-research, 2 threads' in text
  assert 'failed: ended' in text
  assert '0.75' in text
  data = json.loads(json.dumps(row.as_json()))
  assert data['sides'][2]['share'] == 0.75
