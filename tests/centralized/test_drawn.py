"""Claims that a log of sampled batches supports."""

import functools
import json
import re

import numpy as np
import pyarrow as pa
import pytest

from fl_dpftrl.accounting import gaussian
from fl_dpftrl.centralized import amplification, partition, sampling
from fl_dpftrl.families import banded_toeplitz as toeplitz
from fl_dpftrl.families import blt
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import schema
from fl_dpftrl.replaying import publication, replay, runs
from fl_dpftrl.reports import privacy

STRATEGY = toeplitz.BandedToeplitz([1.0, 0.5, 0.25], 120)
SIZES = dict(num_rounds=120, num_examples=1205, batch_size=40, num_parts=3)
SCHEMES = {name: kind(**SIZES) for name, kind in sampling.SCHEMES.items()}
SAMPLED = ('poisson', 'fixed_size')
SHUFFLED = ('shuffled', 'shuffled_once')


def columns(scheme, seed=0):
  cohorts = list(partition.Partition(scheme=scheme, seed=seed).rounds())
  return {
    'rounds': np.repeat(np.arange(len(cohorts)), [c.device_ids.size for c in cohorts]),
    'device_ids': np.concatenate([c.device_ids for c in cohorts]),
  }


@functools.cache
def statement(true, said=None, *, noise_multiplier=3.0, deltas=1e-6, **kwargs):
  drawn = columns(SCHEMES[true])
  log = log_lib.of_table(
    pa.table({'round': drawn['rounds'], 'device_id': drawn['device_ids']}), num_rounds=120
  )
  run = runs.Run.of(
    log, STRATEGY, noise_multiplier=noise_multiplier, sampling=SCHEMES[said or true]
  )
  return replay.replay(run, deltas=deltas, **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize('name', SAMPLED)
@pytest.mark.parametrize('adjacency', ['zero_out', 'replace_one'])
def test_amplified_is_the_account_of_the_scheme(name, adjacency):
  stated = statement(name, adjacency=adjacency, deltas=(1e-6, 1e-8))
  account = amplification.account(
    STRATEGY, SCHEMES[name], noise_multiplier=3.0, delta=1e-6, adjacency=adjacency
  )
  found = stated.to_json()['amplified']
  assert found['epsilon'] == account.epsilon
  assert found['curve'] == [
    {'delta': 1e-6, 'epsilon': account.epsilon},
    {'delta': 1e-8, 'epsilon': account.epsilon_at(1e-8)},
  ]
  assert found['sensitivity'] == account.sensitivity
  assert found['sensitivity_kind'] == 'exact'
  assert found['effective_noise_multiplier'] == account.effective_noise_multiplier
  assert (found['rho'], found['adjacency']) == (None, adjacency)
  assert (found['sampling'], found['holds']) == (name, True)
  assert found['reason'] is None
  assert 'secret' in found['assumption']
  # Less than what the rounds of the log cost, whoever drew them.
  assert found['epsilon'] < stated.worst_case.epsilon
  assert {f'amplified: {s}' for s in account.assumptions} < set(stated.assumptions)
  assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize('name', SHUFFLED)
@pytest.mark.parametrize('group_size', [1, 2])
def test_shuffled_is_the_account_of_the_schema(name, group_size):
  stated = statement(name, adjacency='replace_one', group_size=group_size)
  scheme = SCHEMES[name]
  account = gaussian.account(
    STRATEGY,
    scheme.schema,
    noise_multiplier=3.0,
    delta=1e-6,
    adjacency='replace_one',
    group_size=group_size,
  )
  found = stated.to_json()['shuffled']
  for field in ('sensitivity', 'sensitivity_kind', 'effective_noise_multiplier', 'rho', 'epsilon'):
    assert found[field] == getattr(account, field)
  assert found['holds'] is True
  assert found['min_sep'] == scheme.schema.min_sep
  assert found['separation'] == ('fixed' if 'once' in name else 'min')
  assert 'amplifies nothing' in found['assumption']
  assert 'amplified' not in stated.to_json()
  assert not any('secret as the draws' in s for s in stated.assumptions)


def test_without_a_sampling_nothing_is_said_of_it():
  log = log_lib.of_table(pa.table({'round': [0, 3], 'device_id': [1, 1]}), num_rounds=9)
  stated = replay.replay(runs.Run.of(log, STRATEGY, noise_multiplier=3.0), deltas=1e-6)
  assert stated.drawn is None
  assert not {'amplified', 'shuffled'} & set(stated.to_json())


@pytest.mark.slow
@pytest.mark.parametrize(
  'true, said',
  [
    ('shuffled', 'poisson'),
    ('fixed_size', 'poisson'),
    ('shuffled_once', 'fixed_size'),
    ('poisson', 'fixed_size'),
    ('poisson', 'shuffled'),
    ('shuffled', 'shuffled_once'),
  ],
)
def test_a_log_that_contradicts_it_claims_nothing(true, said):
  deltas = (1e-6, 1e-8)
  stated = statement(true, said, deltas=deltas)
  name = 'amplified' if said in SAMPLED else 'shuffled'
  found = stated.to_json()[name]
  assert found['holds'] is False
  assert found['epsilon'] is None and found['rho'] is None
  assert [p['epsilon'] for p in found['curve']] == [None, None]
  assert len(found['reason']) > 20
  loud = f'{name}: THE LOG CONTRADICTS THE SAMPLING'
  assert any(s.startswith(loud) for s in stated.assumptions)
  assert not any('does not contradict' in s for s in stated.assumptions)
  # What takes the rounds as given is as it was.
  plain = statement(true, true, deltas=deltas)
  assert stated.worst_case == plain.worst_case
  assert stated.observed == plain.observed
  assert stated.per_device == plain.per_device


@pytest.mark.parametrize('said', ['fixed_size', 'shuffled'])
def test_the_file_itself_may_say_otherwise(tmp_path, said):
  """A single turn of each part: any kind of fixed size could be it."""
  short = {**SIZES, 'num_rounds': 3}
  path = tmp_path / 'log.parquet'
  schema.write_log(
    path,
    **columns(sampling.Shuffled(**short)),
    num_rounds=3,
    metadata=partition.Partition(scheme=sampling.Shuffled(**short), seed=0).metadata(),
  )
  run = runs.Run.of(
    log_lib.read_log(path), STRATEGY, noise_multiplier=3.0, sampling=sampling.SCHEMES[said](**short)
  )
  stated = replay.replay(run, deltas=1e-6)
  assert stated.drawn.holds is (said == 'shuffled')
  if said == 'fixed_size':
    assert '"sampling": "shuffled"' in stated.drawn.reason
    assert stated.drawn.loss.epsilon is None


def test_without_noise_there_is_no_epsilon():
  for name in ('poisson', 'shuffled'):
    found = statement(name, noise_multiplier=0.0).drawn
    assert found.holds and found.loss.epsilon is None
    assert found.loss.sensitivity > 0.0


def test_refuses_what_no_guarantee_is_known_of():
  with pytest.raises(ValueError, match='group_size=2 is refused'):
    statement('poisson', group_size=2)
  with pytest.raises(ValueError, match='add_or_remove is refused'):
    statement('poisson', adjacency='add_or_remove')
  log = log_lib.of_table(pa.table({'round': [0, 3], 'device_id': [1, 1]}), num_rounds=120)
  common = dict(noise_multiplier=3.0, sampling=SCHEMES['poisson'])
  with pytest.raises(ValueError, match="needs a banded strategy.*'blt'"):
    run = runs.Run.of(log, blt.BLT([0.9], [0.1]), **common)
    replay.replay(run, deltas=1e-6)
  with pytest.raises(ValueError, match='sampling is for one run'):
    run = runs.Run.of(log, STRATEGY, **common)
    replay.replay([run, run], deltas=1e-6)
  for change in (dict(restarts=(5,)), dict(changes=((5, 2.0),))):
    with pytest.raises(ValueError, match='noise was the same throughout'):
      runs.Run.of(log, STRATEGY, **common, **change)
  with pytest.raises(ValueError, match='sampling is of 120 rounds, but'):
    runs.Run.of(
      log_lib.of_table(pa.table({'round': [0], 'device_id': [1]}), num_rounds=9), STRATEGY, **common
    )
  more_bands = toeplitz.BandedToeplitz([1.0, 0.5, 0.25, 0.1], 120)
  with pytest.raises(ValueError, match='num_parts=3 is fewer than the 4 bands'):
    replay.replay(runs.Run.of(log, more_bands, **common), deltas=1e-6)


def page_of(stated):
  return privacy.report(stated, privacy.Setting(run='r', noise_multiplier=3.0, command='fl-dpftrl'))


def words(text):
  return re.sub(r'\s+', ' ', re.sub(r'<[^>]+>', ' ', text))


@pytest.mark.slow
@pytest.mark.parametrize('name', SCHEMES)
def test_the_report_has_a_card_for_it(name):
  stated = statement(name, deltas=(1e-6, 1e-8))
  text = page_of(stated)
  part = 'amplified' if name in SAMPLED else 'shuffled'
  assert 'Four figures and their assumptions' in text
  for field in ('epsilon', 'curve.1.epsilon'):
    value = stated.to_json()[part]
    for key in field.split('.'):
      value = value[int(key) if key.isdigit() else key]
    assert f'value="{value!r}" data-field="{part}.{field}"' in text
  assert 'The log does not contradict it.' in text
  assert 'The log contradicts the stated sampling' not in text
  assert ('have to stay secret' in text) is (part == 'amplified')
  gained = 'uses no amplification by sampling or shuffling'
  assert (gained in words(text)) is (part == 'shuffled')
  # The headline is what needs no secret draws.
  assert text.index('worst_case.epsilon') < text.index(f'{part}.epsilon')


@pytest.mark.parametrize('said', ['poisson', 'shuffled_once'])
def test_a_contradiction_is_loud_in_the_report(said):
  stated = statement('shuffled', said)
  part = 'amplified' if said in SAMPLED else 'shuffled'
  text = page_of(stated)
  before = text.partition('figures and their assumptions')[0]
  assert 'The log contradicts the stated sampling' in before
  assert f'were said to be drawn by {said}, of 1,205 examples' in words(before)
  assert stated.drawn.reason[:30] in words(before)
  assert text.count('card bad void') == 1
  assert f'data-field="{part}.epsilon"' not in text
  assert 'The log CONTRADICTS it: void.' in text


@pytest.mark.slow
@pytest.mark.parametrize('said', ['poisson', 'fixed_size', 'shuffled_once'])
@pytest.mark.parametrize('true', ['fixed_size', 'shuffled_once'])
def test_publication_tells_nothing_of_secret_draws(true, said):
  public = publication.publishable(statement(true, said))
  text = page_of(public)
  assert 'amplified' not in public.to_json()
  assert 'amplified:' not in text and 'successive turns' not in text
  assert 'drawn in secret' not in text
  if said in SAMPLED:
    assert 'Two figures' in text
  else:
    assert 'Three figures' in text
    assert public.drawn.reason is None
    loud = 'The log contradicts the stated sampling' in text
    assert loud is (true != said)
