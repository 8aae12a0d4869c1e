"""Min-sep without a last round: one sensitivity for any number of rounds, and the plain gate."""

import dataclasses
import functools

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import sensitivities
from fl_dpftrl.prove.replaying import counted
from fl_dpftrl.run import guards
from tests import every_family

BLT = dpftrl.BLT([0.9, 0.4], [0.2, 0.3])
SCHEMA = dpftrl.MinSep(None, 4, 3)
DELTA = 1e-6


def claim(participation=SCHEMA, **changes) -> dpftrl.Claim:
  return dpftrl.Claim(
    strategy=BLT, noise_multiplier=3.0, participation=participation, clip_norm=1.0, **changes
  )


def test_opposed_signs_are_an_upper_bound_that_no_updates_reach():
  strategy = dpftrl.BandedToeplitz(np.array([1.0, -0.4, -0.2]))
  gram = (matrix := strategy.strategy_matrix(40)[:, :3]).T @ matrix
  angles = np.linspace(0.0, 2.0 * np.pi, 400)
  first, second = np.meshgrid(angles, angles)
  reached = (
    3.0 * gram[0, 0]
    + 2.0 * gram[0, 1] * (np.cos(first) + np.cos(second - first))
    + 2.0 * gram[0, 2] * np.cos(second)
  ).max()
  value = sensitivities.sensitivity(strategy, dpftrl.MinSep(None, 1, 3)).value
  assert gram[0, 2] < 0.0 and reached < value**2 - 0.1


def test_one_figure_for_schema_and_budget_of_one_name():
  schema = dpftrl.account(BLT, SCHEMA, noise_multiplier=3.0, delta=DELTA)
  budget = dpftrl.LossBudget(max_participations=3, min_sep=4)
  spent = dpftrl.account(BLT, budget, noise_multiplier=3.0, delta=DELTA)
  assert schema.epsilon() <= spent.epsilon() <= schema.epsilon() * (1.0 + 1e-7)
  planned = dpftrl.calibrate(BLT, SCHEMA, epsilon=4.0, delta=DELTA)
  assert planned.epsilon() == pytest.approx(4.0, abs=1e-9)
  assert 'at most 3 of any number of rounds, at least 4 apart' in schema.assumptions[0]


@pytest.mark.slow
def test_a_guard_keeps_to_it_and_a_log_has_one_figure(tmp_path):
  figures, rounds = set(), {}
  for _ in range(3):  # Resumed, each time for more rounds.
    with guards.Guard(claim(), DELTA, max_epsilon=5.0, log=tmp_path / 'participation.parquet') as g:
      for t in range(g.num_rounds, g.num_rounds + 7):
        admitted = g.admit([f'd{i}' for i in range(t % 4, 8 + t)])
        for device in admitted.device_ids.tolist():
          rounds.setdefault(device, []).append(t)
      figures.add(g.privacy_loss(DELTA).epsilon())
      g.claim.save(tmp_path, g.log.run)
  assert all(SCHEMA.allows(np.array(times)) for times in rounds.values())
  assert max(map(len, rounds.values())) == 3
  stated = dpftrl.replay(tmp_path, delta=DELTA)
  before = dpftrl.account(BLT, SCHEMA, noise_multiplier=3.0, delta=DELTA).epsilon()
  assert figures == {before} == {stated.worst_case.epsilon()}
  assert stated.headline is stated.declared and stated.declared.holds
  assert stated.quoted.endswith('of any number of rounds') and stated.observed.epsilon() <= before
  text = ' '.join(stated.assumptions)
  assert 'whatever ended it' in text and 'loss budget' not in text
  assert stated.to_json()['declared']['num_rounds'] is None
  assert dpftrl.open_run(tmp_path).claim == claim()
  with pytest.raises(ValueError, match='replay the log of a run without an end'):
    counted.check(tmp_path / 'counts.csv', dpftrl.open_run(tmp_path))
  loose = dataclasses.replace(claim(), participation=dpftrl.MinSep(None, 5, 3))
  (tmp_path / 'broken').mkdir()
  with dpftrl.LogWriter(tmp_path / 'broken' / 'participation.parquet', loose) as log:
    for t in range(5):
      log.append(t, ['d0'] if t in (0, 4) else [], t)
  loose.save(tmp_path / 'broken')
  broken = dpftrl.replay(tmp_path / 'broken', delta=DELTA)
  assert not broken.declared.holds and broken.violations.first_rounds[0]['round'] == 4


@pytest.mark.slow
def test_an_aggregator_is_lengthened(tmp_path):
  figures = set()
  for length in (2, 5):
    with dpftrl.PrivateAggregator(
      BLT, template=np.zeros(3), noise_multiplier=3.0, clip_norm=1.0, report_goal=2,
      folder=tmp_path / 'run', participation=SCHEMA, delta=DELTA,
    ) as aggregator:  # fmt: skip
      for t in range(length):
        with aggregator.round([f'd{2 * aggregator.next_round + i}' for i in range(2)]) as round_:
          round_.add(np.ones(3))
          round_.add(np.ones(3))
      figures.add(aggregator.privacy_loss().epsilon())
      figures.add(aggregator.statement().declared.guarantee.epsilon())
  covered = dpftrl.account(BLT, SCHEMA, noise_multiplier=3.0, delta=DELTA, num_coordinates=3)
  assert figures == {covered.epsilon()}


@pytest.mark.slow
def test_runs_without_an_end_and_with_one_add_up(tmp_path):
  folders = []
  for participation in (SCHEMA, dpftrl.MinSep(9, 3, 3)):
    folders.append(tmp_path / f'run{len(folders)}')
    folders[-1].mkdir()
    with dpftrl.LogWriter(folders[-1] / 'participation.parquet', claim(participation)) as log:
      log.append(0, ['a'], 0)
    claim(participation).save(folders[-1])
  for order in (folders, folders[::-1]):
    stated = dpftrl.replay(order, delta=DELTA)
    squares = [
      dpftrl.account(BLT, p, noise_multiplier=3.0, delta=DELTA).mu ** 2
      for p in (SCHEMA, dpftrl.MinSep(9, 3, 3))
    ]
    assert stated.headline.guarantee.mu == pytest.approx(sum(squares) ** 0.5)
    assert stated.declared.participation == dpftrl.MinSep(None, 3, 3)


def test_what_cannot_be_is_refused_in_one_line():
  refused = [
    (lambda: dpftrl.MinSep(None, 3), 'num_rounds=None is for a MinSep with max_participations'),
    (lambda: dpftrl.FixedSeparation(None, 3, 2), 'num_rounds=None is for a MinSep'),
    (lambda: dpftrl.describe(BLT, SCHEMA), 'num_rounds=None must be a number of rounds'),
    (
      lambda: dpftrl.optimize('banded', SCHEMA, horizons=(5, 9)),
      'is optimised for a last round only',
    ),
    (lambda: dpftrl.optimize('blt', SCHEMA), 'horizons must be two numbers'),
    (lambda: dpftrl.audit(BLT, SCHEMA, noise_multiplier=1.0, delta=DELTA), 'num_rounds=None'),
  ]
  for name in ('tree_online', 'tree_full', 'dense', 'banded', 'low_rank'):
    strategy = every_family.example(name, 9)
    account = functools.partial(dpftrl.account, noise_multiplier=1.0, delta=DELTA)
    refused.append((functools.partial(account, strategy, SCHEMA), 'last round'))
  for call, message in refused:
    with pytest.raises(ValueError, match=message) as error:
      call()
    assert len(str(error.value)) < 300 and '\n' not in str(error.value)
