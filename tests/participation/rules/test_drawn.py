"""Guarantees that a log of sampled batches supports, and the pages that show them."""

import functools
import json
import math
import re

import pytest

from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import log_tables, participation_log
from fl_dpftrl.mechanisms.families import banded_toeplitz as toeplitz
from fl_dpftrl.participation import accountant
from fl_dpftrl.participation.rules import sampling
from fl_dpftrl.prove.replaying import opened_runs, replays
from fl_dpftrl.prove.reports import privacy
from tests import drawn

STRATEGY = toeplitz.BandedToeplitz([1.0, 0.5, 0.25], 120)
SIZES = dict(num_rounds=120, num_examples=1205, batch_size=40, num_parts=3)
SCHEMES = {name: kind(**SIZES) for name, kind in sampling.BATCHES.items()}
SAMPLED = ('poisson', 'fixed_size')
SHUFFLED = ('shuffled', 'shuffled_once')


def run_of(log, strategy=STRATEGY, scheme=SCHEMES['poisson'], noise_multiplier=3.0, **kwargs):
  return opened_runs.RecordedRun.of(
    log, strategy, noise_multiplier=noise_multiplier, participation=scheme, **kwargs
  )


@functools.cache
def statement(true, said=None, *, noise_multiplier=3.0, deltas=1e-6, **kwargs):
  log, scheme = drawn.log_of(drawn.batches(SCHEMES[true])), SCHEMES[said or true]
  run = run_of(log, scheme=scheme, noise_multiplier=noise_multiplier)
  return replays.replay(run, delta=deltas, **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize('name', SAMPLED)
@pytest.mark.parametrize('adjacency', ['zero_out', 'replace_one'])
def test_amplified_is_the_account_of_the_scheme(name, adjacency):
  stated = statement(name, adjacency=adjacency, deltas=(1e-6, 1e-8))
  account = accountant.account(
    STRATEGY, SCHEMES[name], noise_multiplier=3.0, delta=1e-6, adjacency=adjacency
  )
  amplified = stated.to_json()['amplified']
  expected = {
    'sampling': name,
    'epsilon': account.epsilon(),
    'curve': [
      {'delta': 1e-6, 'epsilon': account.epsilon()},
      {'delta': 1e-8, 'epsilon': account.epsilon(1e-8)},
    ],
    'sensitivity': account.sensitivity,
    'sensitivity_kind': 'exact',
    'effective_noise_multiplier': account.effective_noise_multiplier,
    'rho': None,
    'adjacency': adjacency,
    'holds': True,
    'reason': None,
  }
  assert {field: amplified[field] for field in expected} == expected
  assert 'secret' in amplified['assumption']
  # Less than what the rounds of the log cost, whoever drew them.
  assert amplified['epsilon'] < stated.worst_case.epsilon()
  assert {f'amplified: {s}' for s in account.assumptions} < set(stated.assumptions)
  assert json.loads(json.dumps(amplified, allow_nan=False)) == amplified


@pytest.mark.parametrize('name', SHUFFLED)
@pytest.mark.parametrize('group_size', [1, 2])
def test_shuffled_is_the_account_of_the_schema(name, group_size):
  options = {'adjacency': 'replace_one', 'group_size': group_size}
  stated, scheme = statement(name, **options), SCHEMES[name].schema
  account = accountant.account(STRATEGY, scheme, noise_multiplier=3.0, delta=1e-6, **options)
  shuffled = stated.to_json()['shuffled']
  assert account.to_json().items() <= shuffled.items()
  assert shuffled['holds'] is True
  assert shuffled['min_sep'] == scheme.min_sep
  assert shuffled['separation'] == ('fixed' if 'once' in name else 'min')
  assert 'amplifies nothing' in shuffled['assumption']
  assert 'amplified' not in stated.to_json()
  assert not any('secret as the draws' in s for s in stated.assumptions)


@pytest.mark.slow
@pytest.mark.parametrize(
  'true, said', [('poisson', 'fixed_size'), ('poisson', 'shuffled'), ('shuffled', 'shuffled_once')]
)
def test_a_log_that_contradicts_it_claims_nothing(true, said):
  deltas = (1e-6, 1e-8)
  stated = statement(true, said, deltas=deltas)
  name = 'amplified' if said in SAMPLED else 'shuffled'
  void = stated.to_json()[name]
  assert void['holds'] is False
  assert void['epsilon'] is None and void['rho'] is None
  assert [p['epsilon'] for p in void['curve']] == [None, None]
  assert len(void['reason']) > 20
  loud = f'{name}: THE LOG CONTRADICTS THE SAMPLING'
  assert any(s.startswith(loud) for s in stated.assumptions)
  assert not any('does not contradict' in s for s in stated.assumptions)
  # What takes the rounds as given is as it was.
  plain = statement(true, true, deltas=deltas)
  for part in ('worst_case', 'observed', 'per_device'):
    assert getattr(stated, part) == getattr(plain, part)


@pytest.mark.parametrize('said', ['fixed_size', 'shuffled'])
def test_the_file_itself_may_say_otherwise(tmp_path, said):
  """A single turn of each part: any kind of fixed size could be it."""
  short = {**SIZES, 'num_rounds': 3}
  scheme, path = sampling.Shuffled(**short), tmp_path / 'log.parquet'
  metadata = run_claim.Claim(
    strategy=STRATEGY, noise_multiplier=3.0, participation=scheme
  ).to_metadata()
  log_tables.write_log(
    path, **drawn.columns(drawn.batches(scheme)), num_rounds=3, metadata=metadata
  )
  run = run_of(participation_log.read_log(path), scheme=sampling.BATCHES[said](**short))
  stated = replays.replay(run, delta=1e-6).drawn
  assert stated.holds is (said == 'shuffled')
  if said == 'fixed_size':
    assert '"kind": "shuffled"' in stated.reason
    assert stated.guarantee.epsilon() == math.inf


@pytest.mark.parametrize('name', ['poisson', 'shuffled'])
def test_without_noise_there_is_no_epsilon(name):
  stated = statement(name, noise_multiplier=0.0).drawn
  assert stated.holds and stated.guarantee.sensitivity > 0.0
  assert stated.guarantee.epsilon() == math.inf


def test_refuses_what_no_guarantee_is_known_of():
  log = drawn.log_of([[1], *[[]] * 118, [1]])
  with pytest.raises(ValueError, match='sampling is for one run'):
    replays.replay([run_of(log)] * 2, delta=1e-6)
  with pytest.raises(ValueError, match='sampling is of 100 rounds, but the log has 120'):
    run_of(log, scheme=sampling.CyclicPoisson(**{**SIZES, 'num_rounds': 100}))
  more_bands = toeplitz.BandedToeplitz([1.0, 0.5, 0.25, 0.1], 120)
  with pytest.raises(ValueError, match='num_parts=3 is fewer than the 4 bands'):
    replays.replay(run_of(log, more_bands), delta=1e-6)


def page_of(stated):
  return privacy.report(stated, privacy.Setting(run='r', command='fl-dpftrl'))


def words(text):
  return re.sub(r'\s+', ' ', re.sub(r'<[^>]+>', ' ', text))


@pytest.mark.slow
@pytest.mark.parametrize('name', SCHEMES)
def test_the_report_has_a_card_for_it(name):
  stated = statement(name, deltas=(1e-6, 1e-8))
  text, part = page_of(stated), 'amplified' if name in SAMPLED else 'shuffled'
  assert 'Four figures and their assumptions' in text
  own = stated.to_json()[part]
  for field, value in {
    'epsilon': own['epsilon'],
    'curve.1.epsilon': own['curve'][1]['epsilon'],
  }.items():
    assert f'value="{value!r}" data-field="{part}.{field}"' in text
  assert 'The log does not contradict it.' in text
  assert 'The log contradicts the stated sampling' not in text
  assert ('have to stay secret' in text) is (part == 'amplified')
  gained = 'uses no amplification by sampling or shuffling'
  assert (gained in words(text)) is (part == 'shuffled')
  # The headline is what needs no secret draws.
  assert text.index('worst_case.epsilon') < text.index(f'{part}.epsilon')


@pytest.mark.slow
@pytest.mark.parametrize('true', ['shuffled', 'shuffled_once'])
def test_publication_tells_nothing_of_draws(true):
  with pytest.raises(ValueError, match='drawn in secret has no public report'):
    statement('poisson', 'poisson').publishable()
  public = statement(true, 'shuffled_once').publishable()
  assert public.drawn.reason is None and 'Three figures' in (text := page_of(public))
  assert ('The log contradicts the stated sampling' in text) is (true == 'shuffled')


@pytest.mark.parametrize('true, said', [('poisson', 'fixed_size'), ('shuffled', 'shuffled_once')])
def test_a_contradiction_is_loud_in_the_report(true, said):
  stated = statement(true, said)
  text, part = page_of(stated), 'amplified' if said in SAMPLED else 'shuffled'
  before = text.partition('figures and their assumptions')[0]
  assert 'The log contradicts the stated sampling' in before
  assert f'were said to be drawn by {said}, of 1,205 examples' in words(before)
  assert stated.drawn.reason[:30] in words(before)
  assert text.count('card bad void') == 1
  assert f'data-field="{part}.epsilon"' not in text
  assert 'The log CONTRADICTS it: void.' in text
