"""Audits in NumPy: sound noise passes, and each fault is found."""

import json
import math

import numpy as np
import pytest

from fl_dpftrl import auditing
from fl_dpftrl.auditing import residues, subjects
from fl_dpftrl.families import banded_toeplitz, blt, identity, lambda_cgd, tree_online
from fl_dpftrl.participation import schemas
from tests.auditing import changed
from tests.auditing.changed import DELTA, DRAWS, MULTIPLIER, failed

SCHEMA = schemas.MinSep(num_rounds=16, min_sep=4, max_participations=3)
STRATEGIES = {
  'identity': identity.Identity(),
  'tree_online': tree_online.TreeOnline(),
  'blt': blt.BLT((0.99, 0.8), (0.25, 0.3)),
  'banded': banded_toeplitz.BandedToeplitz([1.0, 0.5, 0.3, 0.2], None),
  'lambda_cgd': lambda_cgd.LambdaCGD(0.8),
}


def audit(strategy, change, draws=DRAWS):
  subject = changed.Changed(strategy, subjects.tensor_sizes(draws // 2), change)
  return changed.audit(subject, strategy, SCHEMA)


@pytest.mark.parametrize('executor', ['engine', 'reference'])
@pytest.mark.parametrize('name', STRATEGIES)
def test_sound_noise_passes(name, executor):
  found = auditing.audit(
    STRATEGIES[name],
    SCHEMA,
    noise_multiplier=MULTIPLIER,
    delta=DELTA,
    executor=executor,
    num_draws=DRAWS,
    seed=11,
  )
  assert failed(found) == set()
  assert found.passed
  assert 0.8 * found.attainable_epsilon < found.lower_bound_epsilon <= found.claimed_epsilon
  assert found.attainable_epsilon <= found.claimed_epsilon


class Floats(changed.Changed):
  """Noise rows and updates in float32, with a sum in float32."""

  def run(self, cohorts, num_rounds):
    released = subjects.Rows.run(self, lambda t: [], num_rounds).astype(np.float32)
    for t in range(num_rounds):
      for update in cohorts(t):
        released[t] += update
    return released.astype(np.float64)


@pytest.mark.parametrize('seed', range(3))
def test_the_last_bits_of_float32_sums_show_a_device(seed):
  sizes = subjects.tensor_sizes(DRAWS // 2)
  floats = lambda: Floats(STRATEGIES['blt'], sizes, executor='engine', seed=seed)
  low_bits, atoms = residues.checks(residues.measure(floats(), 16, 1.0), 1e-4)
  assert not low_bits.passed and low_bits.statistic > 2 * low_bits.highest
  assert atoms.passed
  assert failed(changed.audit(floats(), STRATEGIES['blt'], SCHEMA)) == {'low_bits'}


@pytest.mark.parametrize('grid', [2.0**-6, 2.0**-12])
def test_values_that_come_again_show_a_device(grid):
  """Noise on a coarse grid, and an update that is not on it."""
  noise = np.random.default_rng(0).normal(size=(2, 40_000))
  present = np.rint(noise[0] / grid) * grid + np.linspace(0.0, 1e-3, 40_000)
  release = residues.Release(
    present.astype(np.float32), (np.rint(noise[1] / grid) * grid).astype(np.float32)
  )
  assert not all(check.passed for check in residues.checks(release, 1e-4))


@pytest.mark.parametrize('name', STRATEGIES)
def test_too_little_noise_is_found(name):
  found = audit(STRATEGIES[name], lambda rows: 0.9 * rows)
  assert {'noise_scale', 'noise_scale_of_rows'} <= failed(found)
  assert 'noise_shape' not in failed(found)


def test_too_little_noise_shows_in_the_lower_bound():
  assert 'epsilon_gaussian' in failed(
    audit(STRATEGIES['blt'], lambda rows: 0.9 * rows, draws=20_000)
  )


@pytest.mark.parametrize('name', [n for n in STRATEGIES if n != 'identity'])
def test_rows_in_another_order_are_found(name):
  order = np.arange(16) ^ 1
  assert 'rows_uncorrelated' in failed(audit(STRATEGIES[name], lambda rows: rows[order]))


@pytest.mark.parametrize('name', STRATEGIES)
def test_a_reused_row_is_found(name):
  order = np.where(np.arange(16) == 9, 4, np.arange(16))
  found = audit(STRATEGIES[name], lambda rows: rows[order])
  assert {'rows_distinct', 'rows_uncorrelated', 'epsilon_gaussian'} <= failed(found)
  assert found.lower_bound_epsilon > 1000.0
  rows = {check.name: check.where for check in found.checks}['rows_distinct']
  assert rows == 'round 4 and round 9'


def _equal_tensors(rows):
  size = rows.shape[1] // 4
  return np.hstack([rows[:, : 3 * size], rows[:, 2 * size : 3 * size]])


def _cut(rows):
  return np.clip(rows, -3.0 * MULTIPLIER, 3.0 * MULTIPLIER)


def _drawn_as_uniform(rows):
  generator = np.random.default_rng(8)
  width = MULTIPLIER * math.sqrt(3.0)
  return generator.uniform(-width, width, rows.shape)


@pytest.mark.parametrize(
  'change, check',
  [
    (lambda rows: rows + 0.5, 'noise_mean'),
    (lambda rows: 1.1 * rows, 'noise_scale'),
    (_equal_tensors, 'coordinates_uncorrelated'),
    (_cut, 'noise_tail'),
    (_drawn_as_uniform, 'noise_shape'),
    (np.zeros_like, 'epsilon_counted'),
    (lambda rows: rows * np.where(np.arange(16) == 5, 0.8, 1.0)[:, None], 'noise_scale_of_rows'),
  ],
)
def test_other_faults_are_found(change, check):
  assert check in failed(audit(identity.Identity(), change))


def test_a_seed_that_is_not_fresh_is_found():
  released = np.random.default_rng(1).normal(0.0, MULTIPLIER, (16, DRAWS // 2))
  constant = lambda rows: released
  assert {'rows_distinct', 'runs_uncorrelated'} <= failed(audit(identity.Identity(), constant))


def test_noise_that_is_not_gaussian_gets_the_counted_bound_alone():
  found = audit(identity.Identity(), _drawn_as_uniform)
  statistics = {check.name: check.statistic for check in found.checks}
  assert statistics['epsilon_gaussian'] == 0.0
  assert found.lower_bound_epsilon == statistics['epsilon_counted']


def test_no_noise_on_a_device_shows_in_counted_errors():
  """Noise that depends on the data: coordinates of a device get none."""

  class Dependent(changed.Changed):
    def run(self, cohorts, num_rounds):
      updates = np.array([sum(cohorts(t)) for t in range(num_rounds)])
      released = subjects.Rows.run(self, lambda t: [], num_rounds)
      return np.where(np.any(updates, axis=0), 4.0 * updates, released)

  subject = Dependent(STRATEGIES['identity'], subjects.tensor_sizes(DRAWS // 2))
  assert 'epsilon_counted' in failed(changed.audit(subject, STRATEGIES['identity'], SCHEMA))


def test_audits_repeat_with_a_seed_and_have_one_json_form():
  options = {'noise_multiplier': 2.0, 'delta': DELTA, 'executor': 'reference', 'num_draws': 2000}
  one, other = (
    auditing.audit(STRATEGIES['blt'], SCHEMA, seed=5, **options).to_json() for _ in range(2)
  )
  assert one == other
  assert json.loads(json.dumps(one, allow_nan=False)) == one
  assert one['passed'] is True
  assert one['claimed_epsilon'] >= one['lower_bound_epsilon'] > 0.0
  assert {check['name'] for check in one['checks']} > {'epsilon_gaussian', 'noise_scale'}
  fresh = auditing.audit(STRATEGIES['blt'], SCHEMA, **options)
  again = auditing.audit(STRATEGIES['blt'], SCHEMA, **options)
  assert fresh.checks != again.checks


@pytest.mark.parametrize(
  'options, words',
  [
    ({'num_draws': 10}, 'num_draws must be at least 1000'),
    ({'confidence': 1.0}, 'confidence must lie strictly between'),
    ({'executor': 'worker'}, 'executor must be one of'),
    ({'clip_norm': 0.0}, 'clip_norm must be positive'),
    ({'largest_update': 0.5}, 'largest_update must be finite and at least clip_norm'),
    ({'noise_multiplier': 0.0}, 'noise_multiplier must be positive'),
    ({'seed': 1.5}, 'seed must be a whole number'),
  ],
)
def test_bad_arguments_are_refused(options, words):
  plain = {'noise_multiplier': 1.0, 'delta': DELTA, 'executor': 'reference'}
  with pytest.raises(ValueError, match=words):
    auditing.audit(identity.Identity(), SCHEMA, **{**plain, **options})


def test_long_runs_are_refused():
  with pytest.raises(ValueError, match='num_rounds=513 is beyond the 512'):
    auditing.audit(
      identity.Identity(),
      schemas.MinSep(num_rounds=513),
      noise_multiplier=1.0,
      delta=DELTA,
      executor='reference',
    )


@pytest.mark.parametrize('cls', [schemas.MinSep, schemas.FixedSeparation])
@pytest.mark.parametrize('num_rounds, min_sep, most', [(1, 1, 1), (9, 3, 2), (12, 2, 4), (7, 7, 1)])
def test_patterns_keep_to_the_schema_and_are_bad_enough(cls, num_rounds, min_sep, most):
  schema = cls(num_rounds=num_rounds, min_sep=min_sep, max_participations=most)
  matrix = np.random.default_rng(4).standard_normal((num_rounds + 3, num_rounds))
  gram = matrix.T @ matrix
  pattern = subjects.worst_pattern(gram, schema)
  rounds = np.flatnonzero(pattern)
  assert 1 <= rounds.size <= schema.participations
  apart = np.diff(rounds)
  assert (apart == min_sep).all() if cls is schemas.FixedSeparation else (apart >= min_sep).all()
  best = max(
    float(np.abs(gram[np.ix_(p, p)]).sum()) for p in _patterns(schema, cls is not schemas.MinSep)
  )
  assert 0.6 * best <= pattern @ gram @ pattern <= best * (1 + 1e-12)


def _patterns(schema, fixed, so_far=()):
  if so_far:
    yield list(so_far)
  if len(so_far) == schema.participations:
    return
  first = so_far[-1] + schema.min_sep if so_far else 0
  for t in range(first, schema.num_rounds):
    if not (fixed and so_far and t != first):
      yield from _patterns(schema, fixed, (*so_far, t))
