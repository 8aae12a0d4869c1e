"""Small runs with canaries, of all kinds: as claimed, and with faults in noise and clipping."""

import contextlib
import functools
from unittest import mock

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import lattice
from fl_dpftrl.noise import ahead, normals
from fl_dpftrl.run import noise_rows, sums
from tests import made

ROUNDS, SIZE, DELTA, GOAL = 14, 512, 1e-6, 4
SCHEMA = dpftrl.MinSep(num_rounds=ROUNDS, min_sep=1, max_participations=1)
CLAIMED = dict(noise_multiplier=1.43, clip_norm=0.5, report_goal=GOAL)
PLAIN = CLAIMED | {'delta': DELTA}
TARGET = np.ones(SIZE, np.float32) / 30


def cohort(t):
  return np.arange(GOAL) + GOAL * t


def private(folder, canaries, skipped=(), **options):
  """Runs all rounds with devices that follow the model; those in `skipped` fail."""
  model = np.zeros(SIZE, np.float32)
  arguments = dict(PLAIN, template=model, participation=SCHEMA, canaries=canaries) | options
  with dpftrl.PrivateAggregator(made.BLT, folder=folder, **arguments) as aggregator:
    for t in range(aggregator.next_round, aggregator.max_rounds):
      with contextlib.suppress(ValueError), aggregator.round(cohort(t)) as round_:
        for _ in range(0 if t in skipped else GOAL):
          round_.add(TARGET - model)
      if t not in skipped:
        model = model + 0.5 * round_.mean
    return aggregator


def any_loop(folder, canaries, skipped=(), are_added=True, **options):
  """Does so in a loop with sums and noise of its own."""
  claim = made.claim(**CLAIMED, canaries=canaries, participation=SCHEMA)
  model, clip_norm = np.zeros(SIZE), claim.clip_norm
  arguments = dict(delta=DELTA, num_coordinates=canaries and SIZE) | options
  with (
    dpftrl.Run(folder, claim, **arguments) as run,
    dpftrl.NoiseRows(made.BLT, SIZE, folder=folder / 'noise') as rows,
  ):
    while run.next_round < run.max_rounds:
      with run.round(cohort(run.next_round)) as round_:
        if round_.row in skipped:
          continue
        updates = [TARGET - model] * len(round_.device_ids)
        updates += round_.canary_updates() if are_added else ()
        total = sum(min(1.0, clip_norm / np.linalg.norm(update)) * update for update in updates)
        total = total + claim.noise_multiplier * clip_norm * rows.row(round_.row)
        round_.released({'public': 1.0}, noised_sum=total if canaries else None)
        model += 0.5 * total / GOAL
    return run


def process_of_tff(canaries, **options):
  """A process of 466 weights, and its aggregator."""
  import tensorflow as tf

  import tff_inprocess
  from tests.tff_inprocess import small_processes

  tff_inprocess.use()
  aggregator = made.factory(**CLAIMED | options, canaries=canaries, memory='engine')
  wide = small_processes.model(lambda: tf.keras.layers.Dense(64))
  if aggregator.private_metrics is None:
    process = small_processes.unweighted(aggregator, wide)
  else:
    process = dpftrl.build_fed_avg(wide, aggregator=aggregator, server_learning_rates=np.ones(1))
  return process, aggregator, small_processes.clients()


usual = functools.cache(process_of_tff)


def trained(folder, canaries, skipped=(), observers=(), **options):
  """Trains in TFF; rounds in `skipped` fail."""
  process, aggregator, data = process_of_tff(canaries, **options) if options else usual(canaries)

  def data_of(t, name):
    if t in skipped:
      raise KeyError
    return data[int(name) % len(data)]

  clients = [str(i) for i in range(GOAL * ROUNDS)]
  arguments = dict(clients=clients, client_data=data_of, delta=DELTA, observers=observers)
  for _ in range(len(skipped) + 1):
    with contextlib.suppress(RuntimeError):
      dpftrl.train(
        process, aggregator, folder=folder, num_rounds=ROUNDS, timer_rounds=ROUNDS, **arguments
      )


every_kind = made.cases(
  'kind, number',
  pytest.param(private, SIZE, id='aggregator'),
  pytest.param(any_loop, SIZE, id='run'),
  pytest.param(trained, 256, id='train', marks=[pytest.mark.tff, pytest.mark.slow]),
)


def run(folder, canaries, kind=private, seed=0, **options):
  """Runs all rounds of a kind of run; the seed is that of the secret noise and coins."""
  with mock.patch.object(normals, 'system_seed', lambda: seed.to_bytes(32, 'big')):
    return kind(folder, canaries, **options)


def audited(folder, norm=1.0, number=SIZE, **options):
  """Returns the audit of a run of as many canaries as there are weights."""
  run(folder, dpftrl.Canaries(number, norm), **options)
  return dpftrl.audit_run(folder, delta=DELTA)


def changed(owner, name, function):
  """Puts a function in the place of a method within a block."""
  whole = getattr(owner, name)
  return mock.patch.object(owner, name, lambda self, *arguments: function(whole, self, *arguments))


def smaller_noise(factor):
  """Noise of a smaller standard deviation, in runs of all kinds."""

  def row(whole, rows, *arguments):
    values, position = whole(rows, *arguments)
    return np.rint(factor * values).astype(np.int64), position

  return changed(ahead.Rows, 'row', row)


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
