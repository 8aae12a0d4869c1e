"""The best number of bands with amplification, against the BandMF paper's table."""

import json
import pathlib

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import workload_error
from fl_dpftrl.participation.accounting import sampled_gaussian
from fl_dpftrl.participation.rules import sampling
from fl_dpftrl.planning import optimization

TABLE = json.loads(pathlib.Path(__file__).with_name('amplified_bands_1024.json').read_text())
NUM_ROUNDS = TABLE['setting']['num_rounds']
DELTA = TABLE['setting']['delta']
EPOCHS = TABLE['setting']['max_participations']
RMS_ERRORS = {int(bands): e for bands, e in TABLE['rms_errors'].items()}
# Two bands there, one here. The paper's is the best by a privacy loss
# distribution in steps of 1e-4, the default of the library that it names: that
# overstates the noise of 1024 releases by 1 % where ε is this small, and of 512
# by half as much. With finer steps one band is ahead by 0.3 %.
EXCEPTION = ('0.03125', 2)
CELLS = [(e, k) for e in TABLE['best_bands'] for k in EPOCHS]


def noise(epsilon: str, epochs: int) -> dict[int, float]:
  """Returns the RMS of the noise by number of bands, with the recorded multipliers."""
  row = TABLE['multipliers'][epsilon][EPOCHS.index(epochs)]
  return {2**i: m * RMS_ERRORS[2**i] for i, m in enumerate(row)}


def published(epsilon: str, epochs: int) -> int:
  return TABLE['best_bands'][epsilon][EPOCHS.index(epochs)]


@pytest.mark.parametrize('epsilon, epochs', CELLS)
def test_best_number_of_bands(epsilon, epochs):
  found = noise(epsilon, epochs)
  assert max(found) == NUM_ROUNDS // epochs
  best = min(found, key=found.get)
  if (epsilon, epochs) == EXCEPTION:
    assert (best, published(epsilon, epochs)) == (1, 2)
    assert found[2] / found[1] == pytest.approx(1.003, abs=0.001)
  else:
    assert best == published(epsilon, epochs)


def chances(epsilon: str, epochs: int, bands: int):
  draws = sampling.CyclicPoisson(
    num_rounds=NUM_ROUNDS, num_examples=NUM_ROUNDS, batch_size=epochs, num_parts=bands
  )
  row = TABLE['multipliers'][epsilon][EPOCHS.index(epochs)]
  return row[bands.bit_length() - 1], {
    'probability': draws.sampling_probability,
    'count': draws.turns,
  }


@pytest.mark.slow
def test_cells_anew():
  """With the most epochs, everything but the RMS errors."""
  for epochs in (512, 1024):
    scheme = sampling.CyclicPoisson(
      num_rounds=NUM_ROUNDS, num_examples=NUM_ROUNDS, batch_size=epochs
    )
    found = {
      b: RMS_ERRORS[b]
      * sampled_gaussian.effective_noise_multiplier(8.0, DELTA, **chances('8', epochs, b)[1])
      for b in scheme.candidate_bands()
    }
    assert min(found, key=found.get) == published('8', epochs)
    assert found == pytest.approx(noise('8', epochs), rel=3e-5)


def first_two(epsilon: str, epochs: int) -> list[int]:
  found = noise(epsilon, epochs)
  return sorted(found, key=found.get)[:2]


@pytest.mark.parametrize(
  'epsilon, epochs',
  [
    pytest.param(e, k, marks=[] if e == '16' else [pytest.mark.slow])
    for e, k in CELLS
    if e in ('0.03125', '1', '16')
  ],
)
def test_multipliers_on_record(epsilon, epochs):
  """Those that decide a cell, against a fresh account."""
  for bands in first_two(epsilon, epochs):
    multiplier, sampled = chances(epsilon, epochs, bands)
    found = sampled_gaussian.epsilon(multiplier, DELTA, **sampled)
    assert found == pytest.approx(float(epsilon), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
  'num_bands',
  [pytest.param(b, marks=[] if b <= 64 else [pytest.mark.thorough]) for b in sorted(RMS_ERRORS)],
)
def test_rms_errors_on_record(num_bands):
  once = dpftrl.MinSep(num_rounds=NUM_ROUNDS, max_participations=1)
  strategy = optimization.optimize('banded', once, objective='rms', num_bands=num_bands)
  found = workload_error.error(strategy, NUM_ROUNDS).rms
  assert found == pytest.approx(RMS_ERRORS[num_bands], rel=3e-6)


def test_rms_error_is_below_every_band_fewer():
  errors = [RMS_ERRORS[b] for b in sorted(RMS_ERRORS)]
  assert errors == sorted(errors, reverse=True)
