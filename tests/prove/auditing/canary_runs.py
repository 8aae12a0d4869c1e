"""Small runs with canaries: as claimed, and with faults in noise and clipping."""

import contextlib
from unittest import mock

import numpy as np

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import lattice
from fl_dpftrl.noise import normals
from fl_dpftrl.run import noise_rows, sums
from tests import made

ROUNDS, SIZE, DELTA, GOAL = 14, 512, 1e-6, 4
SCHEMA = dpftrl.MinSep(num_rounds=ROUNDS, min_sep=1, max_participations=1)
PLAIN = dict(noise_multiplier=1.43, clip_norm=0.5, report_goal=GOAL, delta=DELTA)


def run(folder, canaries, skipped=(), seed=0, **options):
  """Runs all rounds with devices that follow the model; those in `skipped` fail.

  The seed is that of the secret noise and coins.
  """
  model, target = np.zeros(SIZE, np.float32), np.ones(SIZE, np.float32) / 30
  arguments = dict(PLAIN, template=model, participation=SCHEMA, canaries=canaries) | options
  secret = mock.patch.object(normals, 'system_seed', lambda: seed.to_bytes(32, 'big'))
  with secret, dpftrl.PrivateAggregator(made.BLT, folder=folder, **arguments) as aggregator:
    for t in range(aggregator.next_round, aggregator.max_rounds):
      with contextlib.suppress(ValueError), aggregator.round(np.arange(GOAL) + GOAL * t) as round_:
        for _ in range(0 if t in skipped else GOAL):
          round_.add(target - model)
      if t not in skipped:
        model = model + 0.5 * round_.mean
    return aggregator


def audited(folder, norm=1.0, **options):
  """Returns the audit of such a run."""
  run(folder, dpftrl.Canaries(SIZE, norm), **options)
  return dpftrl.audit_run(folder, delta=DELTA)


def changed(owner, name, function):
  """Puts a function in the place of a method within a block."""
  whole = getattr(owner, name)
  return mock.patch.object(owner, name, lambda self, *arguments: function(whole, self, *arguments))


def smaller_noise(factor):
  """Noise of a smaller standard deviation."""
  return changed(
    noise_rows.NoiseRows,
    'integers',
    lambda whole, rows, t: np.rint(factor * whole(rows, t)).astype(np.int64),
  )


def reused_row():
  """Row 4 of noise in round 5 too."""
  rows_of: dict[int, np.ndarray] = {}

  def integers(whole, rows, t):
    row = rows_of[t] = whole(rows, t).copy()
    return rows_of[4] if t == 5 else row

  return changed(noise_rows.NoiseRows, 'integers', integers)


def independent_noise():
  """Noise that is not correlated, where a strategy was claimed."""
  generator = np.random.default_rng(0)
  fresh = lambda size: generator.normal(0.0, 2.0**lattice.BITS, size).astype(np.int64)
  return changed(
    noise_rows.NoiseRows, 'integers', lambda whole, rows, t: fresh(whole(rows, t).size)
  )


def no_clipping():
  """Updates enter the sums as they are."""

  def add(whole, total, arrays):
    values = np.concatenate(arrays, axis=1).astype(np.float64) * total._scale
    total.total[: values.shape[1]] += np.trunc(values).astype(np.int64).sum(axis=0)
    return [sums.KEPT] * len(values)

  return changed(sums.Sum, 'add', add)


FAULTS = {
  'none': (contextlib.nullcontext, 1.0),
  'noise 10 % too small': (lambda: smaller_noise(0.9), 1.0),
  'noise 20 % too small': (lambda: smaller_noise(0.8), 1.0),
  'clip not applied': (no_clipping, 10.0),
  'a row used twice': (reused_row, 1.0),
  'independent noise': (independent_noise, 1.0),
}
