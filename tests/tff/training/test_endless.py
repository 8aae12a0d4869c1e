"""A run without an end stops, goes on for more rounds, and has the same ε throughout."""

import json

import numpy as np
import pytest

import fl_dpftrl as dpftrl
import tff_inprocess
from tests import made
from tests.tff_inprocess import small_processes

pytestmark = [pytest.mark.tff, pytest.mark.slow]


def test_a_run_is_lengthened_at_the_same_epsilon(tmp_path):
  tff_inprocess.use()
  strategy = dpftrl.BLT([0.9, 0.4], [0.2, 0.3])
  budget = dpftrl.LossBudget(max_participations=3, min_sep=2)
  data, names = small_processes.clients(), [f'client {i}' for i in range(12)]
  # One process serves all runs: each begins with a state of its own, and compiles nothing anew.
  aggregator = made.factory(strategy)
  process = small_processes.unweighted(aggregator)

  def trained(num_rounds, **changes):
    data_of = lambda t, client: data[int(client.split()[1]) % 2]
    arguments = dict(folder=tmp_path / 'run', clients=names, client_data=data_of)
    arguments |= dict(num_rounds=num_rounds, participation=budget, say=lambda line: None) | changes
    return dpftrl.train(process, aggregator, **arguments)

  def stated_after(num_rounds):
    trained(num_rounds)
    return json.loads((tmp_path / 'run' / 'privacy.json').read_text())

  first, second = stated_after(2), stated_after(5)
  assert (first['num_rounds'], second['num_rounds']) == (2, 5)
  figures = [stated[part] for stated in (first, second) for part in ('worst_case', 'declared')]
  assert len({figure['epsilon'] for figure in figures}) == 1
  assert second['declared']['holds'] and second['declared']['num_rounds'] is None
  stated = dpftrl.replay(tmp_path / 'run', delta=1e-6)
  real = dpftrl.account(strategy, budget, noise_multiplier=2.0, delta=1e-6)
  assert real.epsilon() <= stated.headline.guarantee.epsilon() <= real.epsilon() * (1.0 + 1e-3)
  with np.load(tmp_path / 'run' / 'model.npz') as archive:
    assert all(np.isfinite(archive[name]).all() for name in archive)
  said: list[str] = []
  short = dpftrl.LossBudget(max_participations=3, min_sep=2, last_row=3)
  so_far = dpftrl.observers.EpsilonSoFar(1)
  ended = trained(
    5, folder=tmp_path / 'short', participation=short, observers=[so_far], say=said.append
  )
  assert ended.history.rounds.tolist() == [0, 1, 2]
  assert any('last_row allows 3 of 5 rounds' in line for line in said)
  # Each device was in one round so far; an end by releases has the guarantee of the budget alone.
  assert set(ended.history['epsilon']) == {ended.statement.declared.guarantee.epsilon()}
  with pytest.raises(ValueError, match='participation excludes timer_rounds'):
    trained(6, timer_rounds=3)
  with pytest.raises(ValueError, match='participation must be without an end'):
    trained(6, participation=dpftrl.MinSep(9))
  # A schema without an end keeps its devices to k rounds: no device is in more than 2.
  schema = dpftrl.MinSep(None, 2, 2)
  trained(3, folder=tmp_path / 'schema', participation=schema)
  long = trained(9, folder=tmp_path / 'schema', participation=schema).statement
  assert (long.num_rounds, long.max_participations) == (9, 2) and long.declared.holds
  real = dpftrl.account(strategy, schema, noise_multiplier=2.0, delta=1e-6)
  assert real.epsilon() <= long.headline.guarantee.epsilon() <= real.epsilon() * (1.0 + 1e-3)
