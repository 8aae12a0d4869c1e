"""A site without any framework: rounds that fail and starts anew use no row of noise twice."""

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.adapters import sites
from tests import made
from tests.logs import files

PEOPLE, GOAL = [f'p{i}' for i in range(24)], 4
SCHEMA = dpftrl.MinSep(num_rounds=40, min_sep=2, max_participations=9)


def test_a_round_that_fails_is_lost_and_every_round_is_stated(tmp_path):
  model, trained, sent = {'w': np.zeros(3)}, set(), []

  def update(model, person):
    if aggregator.next_round == 3 and len(trained) == 2 * GOAL + 2:
      raise KeyboardInterrupt
    trained.add((aggregator.next_round - 1, person))
    return {'w': np.zeros(3)}

  options = dict(template=model, report_goal=GOAL, participation=SCHEMA)
  with pytest.raises(KeyboardInterrupt), made.aggregator(tmp_path, **options) as aggregator:
    while True:
      sent.append(sites.next_model(aggregator, model, PEOPLE, update)[0]['w'].tolist())
  with made.aggregator(tmp_path, **options) as aggregator:
    for _ in range(6):
      sent.append(sites.next_model(aggregator, model, PEOPLE, update)[0]['w'].tolist())
  assert len(sent) == len({tuple(row) for row in sent}) == 8
  statement = dpftrl.replay(tmp_path, delta=1e-6)
  assert statement.declared.holds and statement.num_rounds == 9
  assert trained <= {row[:2] for row in files.rows(tmp_path / 'participation.parquet')}


def test_a_site_whose_people_may_not_come_sends_the_model_as_it_was(tmp_path):
  model, update = {'w': np.arange(3.0)}, lambda model, person: {'w': np.zeros(3)}
  options = dict(template=model, participation=dpftrl.MinSep(5, min_sep=5))
  with made.aggregator(tmp_path, **options) as aggregator:
    sites.next_model(aggregator, model, PEOPLE[:3], update)
    same, metrics = sites.next_model(aggregator, model, PEOPLE[:3], update)
    assert same == model and not metrics and aggregator.next_round == 1
