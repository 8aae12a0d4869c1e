"""The training benchmark, on a model that takes no time."""

import json

import pytest

from benchmarks.training import cases, side

pytestmark = pytest.mark.tff

SMALL = cases.Case(
  size='small',
  network='lstm',
  num_tokens=12,
  sizes={'embedding': 3, 'units': 4},
  passes=1,
  clients=2,
)


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
