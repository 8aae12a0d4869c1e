"""What whole numbers add to a guarantee, against exact joint laws of coarse releases."""

import json
import math

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import log_tables as log_schema
from fl_dpftrl.logs import participation_log
from fl_dpftrl.mechanisms import lattice
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.participation import accountant, accounting
from fl_dpftrl.participation.accounting import arithmetics, gaussian, guarantees
from fl_dpftrl.prove.replaying import opened_runs, replays
from fl_dpftrl.run import budget
from tests import every_family, made
from tests.noise import joint_law

COVERED = arithmetics.Arithmetic.covered


@pytest.fixture(name='coarse')
def _coarse(monkeypatch):
  """A lattice with four standard deviations of Z in a unit, where roundings show."""
  monkeypatch.setattr(lattice, 'BITS', -2)
  arithmetics.stream_factors.cache_clear()
  yield -2
  arithmetics.stream_factors.cache_clear()


def _mu(noise, schema, *, adjacency='zero_out', group_size=1):
  """μ as a statement has it."""
  value, kind = accounting.adjacencies.scaled(
    run_claim.worst_case([noise], [schema]), adjacency, group_size
  )
  del kind
  effective = noise.noise_multiplier / value
  return 1.0 / run_claim.rounding([noise], [schema.num_rounds]).lengthened(effective)


@pytest.mark.slow
@pytest.mark.parametrize('name', every_family.FAMILIES)
@pytest.mark.parametrize(
  'multiplier, adjacency, group_size',
  [(0.25, 'zero_out', 1), (0.125, 'zero_out', 1), (0.25, 'replace_one', 1), (0.25, 'zero_out', 3)],
  ids=['one unit', 'two units', 'replaced', 'group'],
)
def test_exact_laws_of_releases_keep_to_the_stated_mu(
  name, multiplier, adjacency, group_size, coarse
):
  """A noise multiplier of ¼ makes an update one unit long, and one of ⅛ two units."""
  made = every_family.example(name, 2)
  noise = run_claim.Claim(
    strategy=made, noise_multiplier=multiplier, clip_norm=1.0, arithmetic=COVERED(1)
  )
  mu = _mu(noise, dpftrl.MinSep(2, 1), adjacency=adjacency, group_size=group_size)
  longest = np.full(2, round(2.0**coarse / multiplier))
  this = group_size * longest
  others = -longest if adjacency == 'replace_one' else np.zeros(2, int)
  for signs in ((1, 1), (1, -1)):
    one, other = joint_law.fixed(this * signs), joint_law.fixed(others * signs)
    for pair in ((one, other), (other, one)):
      assert joint_law.worst_ratio(made, 2, coarse, *pair, mu) <= 1.0


def test_the_bound_is_that_of_the_theorem():
  strategy = files.load_strategy('blt-b400')
  added = arithmetics.rounding([(strategy, 100)], 4000)
  norm = lattice.rounding_norm(strategy, 100)
  off = lattice.carried_error(strategy, 100)
  assert added.mu == pytest.approx(norm * (1 + 2 * off) * math.sqrt(400_000) / 2**34, rel=1e-9)
  assert added.chance == pytest.approx(400_000 * 6 * 1.2e-299)
  both = arithmetics.rounding([(strategy, 100), (strategy, 100)], 4000)
  assert both.mu == pytest.approx(math.sqrt(2.0) * added.mu)
  assert both.chance == pytest.approx(2 * added.chance)


def test_figures_grow_by_what_rounding_adds():
  strategy, schema = files.load_strategy('blt-b400'), dpftrl.MinSep(50, 10)
  arguments = dict(noise_multiplier=3.0, delta=1e-8)
  plain = accountant.account(strategy, schema, **arguments)
  covered = accountant.account(strategy, schema, **arguments, num_coordinates=2**53)
  added = arithmetics.rounding([(strategy, 50)], 2**53)
  assert covered.rounding == added and plain.rounding == arithmetics.Rounding()
  assert covered.mu == pytest.approx(plain.mu + added.mu, rel=1e-12)
  assert covered.epsilon() > 1.02 * plain.epsilon()
  with pytest.raises(ValueError, match='num_coordinates: the rounding of so many'):
    accountant.calibrate(strategy, schema, delta=1e-8, epsilon=0.01, num_coordinates=2**53)


def test_the_chance_of_a_far_normal_is_taken_from_delta():
  """δ(ε) of the Gaussian and chance · (1 + e^ε) are within δ together, at the ε that is stated."""
  terms, one = guarantees.Terms(1e-6), dpftrl.Identity().sensitivity(dpftrl.MinSep(1))
  figures = dict(noise_multiplier=1.0, rounding=arithmetics.Rounding(chance=2e-9))
  stated = guarantees.Guarantee.of(one, terms, **figures).epsilon()
  remaining = 1e-6 - 2e-9 * (1.0 + math.exp(stated))
  assert gaussian.epsilon(1.0, remaining) <= stated < 1.1 * gaussian.epsilon(1.0, 1e-6)


@made.cases(
  'kinds, expected',
  (('covered', 'covered'), 'covered'),
  (('covered', 'lattice'), 'lattice'),
  (('lattice', 'covered'), 'lattice'),
  (('covered', 'not covered'), 'not covered'),
)
def test_the_weakest_rounds_decide(kinds, expected):
  first, second = (
    COVERED(9 + i) if kind == 'covered' else arithmetics.Arithmetic(kind=kind)
    for i, kind in enumerate(kinds)
  )
  together = first.and_then(second)
  assert together.kind == expected
  assert together.num_coordinates == (10 if expected == 'covered' else None)


@pytest.mark.parametrize(
  'arguments', [dict(kind='exact'), dict(kind='covered'), dict(num_coordinates=3), dict(kind='')]
)
def test_refuses(arguments):
  with pytest.raises(ValueError, match='arithmetic must be one of|num_coordinates'):
    arithmetics.Arithmetic(**arguments)


def _log(path, found=None):
  strategy = files.load_strategy('blt-b400')
  claim = run_claim.Claim(
    strategy=strategy,
    noise_multiplier=3.0,
    clip_norm=1.0,
    arithmetic=found or arithmetics.Arithmetic(),
  )
  log_schema.write_log(
    path, rounds=[0, 5, 9], device_ids=['a', 'a', 'b'], num_rounds=12, metadata=claim.to_metadata()
  )
  return opened_runs.RecordedRun.of(participation_log.read_log(path), strategy)


def test_a_log_states_it_and_a_statement_has_its_figures(path):
  plain = replays.replay(_log(path), delta=1e-8).to_json()
  assert not {'arithmetic', 'num_coordinates', 'rounding'} & plain.keys()
  on_lattice = replays.replay(_log(path, arithmetics.Arithmetic(kind='lattice')), delta=1e-8)
  assert on_lattice.to_json()['arithmetic'] == 'lattice' and on_lattice.rounding is None
  assert on_lattice.worst_case.epsilon() == plain['worst_case']['epsilon']
  covered = replays.replay(_log(path, COVERED(10**15)), delta=1e-8).to_json()
  assert (covered['arithmetic'], covered['num_coordinates']) == ('covered', 10**15)
  assert covered['rounding']['mu'] > 0.0 and 0.0 < covered['rounding']['delta'] < 1e-200
  for name in ('worst_case', 'observed'):
    grown = covered[name]['mu'] - plain[name]['mu']
    assert grown == pytest.approx(covered['rounding']['mu'], rel=1e-9)
    assert covered[name]['epsilon'] > plain[name]['epsilon']
  json.dumps(covered, allow_nan=False)


def test_a_budget_has_room_for_the_rounding():
  strategy, schema = files.load_strategy('blt-b400'), dpftrl.MinSep(60, 10)
  within = accountant.account(
    strategy, dpftrl.MinSep(50, 10), noise_multiplier=3.0, delta=1e-8
  ).epsilon()
  allowed = [
    budget.Budget(
      run_claim.Claim(
        strategy=strategy, noise_multiplier=3.0, participation=schema, arithmetic=stated
      ),
      guarantees.Terms(1e-8),
      within,
    ).max_rounds
    for stated in (arithmetics.Arithmetic(), COVERED(2**53))
  ]
  assert allowed[1] < 50 <= allowed[0]


def test_runs_of_several_kinds_are_as_the_weakest(tmp_path):
  one, other = (
    _log(tmp_path / f'{i}.parquet', found) for i, found in enumerate((COVERED(9), None))
  )
  together = replays.replay([one, other], delta=1e-8)
  assert together.rounding is None and together.arithmetic.kind == 'not covered'
  both = replays.replay([one, _log(tmp_path / '2.parquet', COVERED(9))], delta=1e-8)
  single = replays.replay(one, delta=1e-8)
  assert both.rounding.mu == pytest.approx(math.sqrt(2.0) * single.rounding.mu)
  few, many = arithmetics.Arithmetic.covered(3), arithmetics.Arithmetic.covered(9)
  assert few.and_then(many) == many.and_then(few) == many
