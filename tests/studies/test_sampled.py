"""Studies of training in one place: noise of the sampling scheme, bands by ε."""

import dataclasses
import json
import math

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.centralized import amplification, sampling

SCHEME = sampling.CyclicPoisson(num_rounds=16, num_examples=4000, batch_size=400)
DELTA = 1e-5


def train(cell, **changes):
  scheme = cell.sampling
  accuracy = 0.9 / (1.0 + cell.noise.rms) if cell.noise else 0.9
  accuracy += 1e-3 * cell.seed * len(cell.setting.label)
  stated = {'num_parts': scheme.num_parts, 'batch_size': scheme.batch_size}
  stated |= {'num_examples': scheme.num_examples, 'sampling': sampling.name(scheme)}
  return {
    'validation': {'accuracy': accuracy},
    'test': {'accuracy': accuracy},
    'noise_multiplier': cell.noise_multiplier,
    **stated,
    **changes,
  }


def study(folder, run=train, scheme=SCHEME, **changes):
  options = dict(
    folder=folder,
    mechanisms=['identity', 'banded_toeplitz', 'banded_toeplitz:4'],
    epsilons=[0.5, 8.0],
    server_learning_rates=[1.0],
    seeds=[0, 1],
    sampling=scheme,
    clip_norm=2.0,
    report_goal=400,
    delta=DELTA,
    say=lambda line: None,
  )
  return dpftrl.study(run, **options | changes)


@pytest.mark.parametrize('kind', [sampling.CyclicPoisson, sampling.CyclicFixedSize])
def test_noise_is_that_of_the_scheme_with_a_part_for_each_band(kind, tmp_path):
  scheme = kind(num_rounds=16, num_examples=4000, batch_size=400)
  done = study(tmp_path / 'study', scheme=scheme)
  assert not done.failed and len(done.rows) == 7
  bands = {}
  for row in done.rows:
    (cell, *_) = (result.cell for result in row.results)
    if row.setting.mechanism is None:
      assert cell.sampling == scheme and cell.noise_multiplier == 0.0
      continue
    bands[row.label, row.epsilon] = cell.sampling.num_parts
    stated = dataclasses.replace(scheme, num_parts=cell.sampling.num_parts)
    assert cell.sampling == stated
    guarantee = amplification.account(
      cell.strategy, stated, noise_multiplier=cell.noise_multiplier, delta=DELTA
    )
    assert 0.999 * row.epsilon < guarantee.epsilon <= row.epsilon
    assert amplification.num_bands(cell.strategy) == stated.num_parts
  assert [bands['identity', e] for e in (0.5, 8.0)] == [1, 1]
  assert [bands['banded_toeplitz:4', e] for e in (0.5, 8.0)] == [4, 4]
  assert 1 <= bands['banded_toeplitz', 0.5] < bands['banded_toeplitz', 8.0]
  # The least of all numbers of bands.
  by_label = {(row.label, row.epsilon): row.noise.rms for row in done.rows if row.noise}
  for epsilon in (0.5, 8.0):
    chosen = by_label['banded_toeplitz', epsilon]
    assert chosen <= by_label['banded_toeplitz:4', epsilon] < math.inf
    assert chosen <= by_label['identity', epsilon]
  page = (tmp_path / 'study' / 'table.md').read_text()
  assert f'bands: {bands["banded_toeplitz", 8.0]}' in page and 'drawn as stated, in secret' in page


@pytest.mark.parametrize(
  'changes, reason',
  [
    ({'num_parts': 1}, 'num_parts=1, and its noise is calibrated for at least 4'),
    ({'num_parts': 5}, 'num_parts=5, and its noise is calibrated for at most 4'),
    ({'batch_size': 401.0}, 'batch_size=401'),
    ({'num_examples': 3999}, 'num_examples=3999, and its noise is calibrated for at least 4000'),
    ({'noise_multiplier': 0.01}, 'noise_multiplier=0.01'),
    ({'num_rounds': 17}, 'num_rounds=17'),
    ({'sampling': 'shuffled'}, 'drawn by shuffled, and its noise is for poisson'),
  ],
)
def test_a_run_that_draws_otherwise_has_failed(changes, reason, tmp_path):
  done = study(
    tmp_path / 'study',
    run=lambda cell: train(cell, **changes),
    mechanisms=['banded_toeplitz:4'],
    epsilons=[8.0],
    without_noise=False,
  )
  assert {reason in result.reason for result in done.failed} == {True} and len(done.failed) == 1


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'sampling': None}, 'schema or sampling; it has neither'),
    ({'schema': dpftrl.MinSep(16)}, 'schema or sampling; it has both'),
    ({'sampling': sampling.Shuffled(num_rounds=9, num_examples=9, batch_size=1)}, 'amplifies'),
    ({'deployment_report_goal': 1000}, 'deployment_report_goal has no meaning'),
    ({'mechanisms': ['tree_full']}, 'tree_full: amplification needs a banded strategy'),
  ],
)
def test_arguments_that_do_not_fit(changes, message, tmp_path):
  with pytest.raises(ValueError, match=message):
    study(tmp_path / 'study', **changes)


def test_a_folder_of_another_scheme_is_refused(tmp_path):
  done, again = (  # The second has nothing left to train.
    study(tmp_path / 'study', run, mechanisms=['identity'], epsilons=[8.0]) for run in (train, None)
  )
  assert [row.mean for row in again.rows] == [row.mean for row in done.rows]
  flags = json.loads((tmp_path / 'study' / 'study.json').read_text())['flags']
  assert any('CyclicPoisson' in flag for flag in flags)
  other = dataclasses.replace(SCHEME, batch_size=50)
  with pytest.raises(ValueError, match='differs in sampling'):
    study(tmp_path / 'study', mechanisms=['identity'], epsilons=[8.0], scheme=other)
