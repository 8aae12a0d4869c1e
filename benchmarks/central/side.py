"""One side of the benchmark of central training, in a process of its own; prints JSON.

    python -m benchmarks.central.side time aggregator text
    python -m benchmarks.central.side utility peer 16 4

Sides: `aggregator` is the step of examples/central.py. `rows` clips and sums in JAX, in floating
point, and adds a row of `NoiseRows`; it writes the log and the model too. `peer` is jax-privacy's
execution plan for the same mechanism: its sampling, clipped gradient and streaming noise, compiled
as one step.
"""

import collections
import json
import pathlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.central import cases, names

WARM, STEPS = 15, 40
EPSILON, DELTA = names.SETTINGS['epsilon'], names.SETTINGS['delta']
UTILITY_ROUNDS, SEEDS = names.SETTINGS['utility_rounds'], range(names.SETTINGS['seeds'])


def _folder(in_memory: bool = False) -> pathlib.Path:
  cache = pathlib.Path('/dev/shm') if in_memory else cases.ROOT / 'benchmarks' / '.cache'
  cache.mkdir(exist_ok=True)
  return pathlib.Path(tempfile.mkdtemp(prefix='central-', dir=cache))


def _scheme(case: cases.Case, num_rounds: int, num_bands: int):
  from fl_dpftrl.amplification import sampling

  return sampling.CyclicPoisson(
    num_rounds=num_rounds, num_examples=len(case.y), batch_size=cases.BATCH, num_parts=num_bands
  )


def _strategy(num_rounds: int, num_bands: int):
  import fl_dpftrl as dpftrl

  once = dpftrl.MinSep(num_rounds=num_rounds, max_participations=1)
  return dpftrl.optimize('banded_toeplitz', once, objective='rms', num_bands=num_bands)


def _padded(ids: np.ndarray) -> np.ndarray:
  return np.resize(ids, -(-len(ids) // cases.MULTIPLE) * cases.MULTIPLE)


class Parts(collections.defaultdict):
  """Seconds of the parts of steps: parts[name] is a list."""

  def __init__(self):
    super().__init__(list)

  def timed(self, name: str, function: Callable, *arguments):
    began = time.perf_counter()
    value = jax.block_until_ready(function(*arguments))
    self[name].append(time.perf_counter() - began)
    return value


def aggregator_steps(case: cases.Case, folder: pathlib.Path, parts: Parts) -> Iterator[None]:
  """Yields after each step of examples/central.py, whose parts are timed."""
  import fl_dpftrl as dpftrl
  from fl_dpftrl.simulation import partition

  trainer = cases.trainer()
  gradients = jax.jit(jax.vmap(jax.grad(case.loss), in_axes=(None, 0, 0)))
  scheme = _scheme(case, case.num_rounds, case.num_bands)
  weights = case.initial(0)
  velocity = jax.tree.map(jnp.zeros_like, weights)

  def each_of(weights, ids):
    each = gradients(weights, case.x[ids], case.y[ids])
    return {name: np.asarray(part) for name, part in each.items()}

  with dpftrl.PrivateAggregator(
    _strategy(case.num_rounds, case.num_bands),
    template=weights,
    noise_multiplier=1.0,
    clip_norm=cases.CLIP_NORM,
    report_goal=cases.BATCH,
    folder=folder / 'run',
    sampling=scheme,
    delta=DELTA,
  ) as aggregator:
    for batch in partition.Partition(scheme=scheme, seed=0).rounds():
      round_ = parts.timed('log of the batch', aggregator.round(batch.device_ids).begin)
      each = parts.timed('gradients', each_of, weights, _padded(batch.device_ids))
      each = {name: part[: len(batch.device_ids)] for name, part in each.items()}
      parts.timed('clipping and sum', round_.add_batch, each)
      parts.timed('row of noise', round_.end)
      weights, velocity = parts.timed(
        'step', trainer.step, weights, velocity, round_.mean, cases.LEARNING_RATE, cases.MOMENTUM
      )
      parts.timed('model on disk', trainer.save, folder / 'model.npz', weights, velocity)
      yield


def _clipped_sum(case: cases.Case):
  """Returns a compiled function: sum of clipped gradients of the first examples of a batch."""

  def one(weights, x, y, counts):
    gradient = jax.grad(case.loss)(weights, x, y)
    norm = optax.global_norm(gradient)
    return jax.tree.map(lambda g: g * jnp.minimum(1.0, cases.CLIP_NORM / norm) * counts, gradient)

  def summed(weights, x, y, count):
    counts = (jnp.arange(len(y)) < count).astype(jnp.float32)
    each = jax.vmap(one, in_axes=(None, 0, 0, 0))(weights, x, y, counts)
    return jax.tree.map(lambda part: part.sum(axis=0), each)

  return jax.jit(summed)


def rows_steps(case: cases.Case, folder: pathlib.Path, parts: Parts) -> Iterator[None]:
  """Yields after each step that sums in JAX, and adds a row of `NoiseRows`."""
  import fl_dpftrl as dpftrl
  from fl_dpftrl.simulation import partition

  trainer, summed = cases.trainer(), _clipped_sum(case)
  scheme = _scheme(case, case.num_rounds, case.num_bands)
  weights = case.initial(0)
  velocity = jax.tree.map(jnp.zeros_like, weights)
  flat, unravel = jax.flatten_util.ravel_pytree(weights)

  def noised(total, row):
    noise = unravel(jnp.asarray(row * cases.CLIP_NORM, jnp.float32))
    return jax.tree.map(lambda t, n: (t + n) / cases.BATCH, total, noise)

  strategy = _strategy(case.num_rounds, case.num_bands)
  rows = dpftrl.NoiseRows(strategy, flat.size, folder=folder / 'noise')
  with rows, dpftrl.LogWriter(folder / 'log.parquet') as log:
    for batch in partition.Partition(scheme=scheme, seed=0).rounds():
      rows.prepare()
      parts.timed('log of the batch', log.append, batch.round, batch.device_ids, 0)
      ids = _padded(batch.device_ids)
      total = parts.timed(
        'gradients, clipping and sum',
        summed,
        weights,
        case.x[ids],
        case.y[ids],
        len(batch.device_ids),
      )
      row = parts.timed('row of noise', rows.row, batch.round)
      weights, velocity = parts.timed(
        'step',
        trainer.step,
        weights,
        velocity,
        noised(total, row),
        cases.LEARNING_RATE,
        cases.MOMENTUM,
      )
      parts.timed('model on disk', trainer.save, folder / 'model.npz', weights, velocity)
      yield


def peer_plan(case: cases.Case, num_rounds: int, num_bands: int, seed: int | None, **noise):
  """Returns jax-privacy's plan."""
  from jax_privacy.experimental import execution_plan

  return execution_plan.BandMFExecutionPlanConfig.default(
    num_bands=num_bands,
    iterations=num_rounds,
    l2_clip_norm=cases.CLIP_NORM,
    normalize_by=float(cases.BATCH),
    sampling_prob=cases.BATCH / (len(case.y) // num_bands),
    noise_seed=seed,
    **noise,
  ).plan


def peer_training(case: cases.Case, plan, seed: int) -> Iterator:
  """Yields the weights after each step of jax-privacy's plan."""
  from jax_privacy import batch_selection

  optimizer = optax.sgd(cases.LEARNING_RATE, cases.MOMENTUM)
  clipped = plan.clipped_grad(case.loss, batch_argnums=(1, 2), keep_batch_dim=False)

  def step(weights, state, x, y, is_padding):
    noise, momentum = state
    mean = clipped(weights, x, y, is_padding_example=is_padding)
    private, noise = plan.noise_addition_transform.update(mean, noise)
    changes, momentum = optimizer.update(private, momentum)
    return optax.apply_updates(weights, changes), (noise, momentum)

  compiled = jax.jit(step, donate_argnums=(0, 1))
  weights = case.initial(seed)
  state = plan.noise_addition_transform.init(weights), optimizer.init(weights)
  for ids in plan.batch_selection_strategy.batch_iterator(len(case.y)):
    padded = batch_selection.pad_to_multiple_of(ids, cases.MULTIPLE)
    weights, state = compiled(weights, state, case.x[padded], case.y[padded], padded < 0)
    yield weights


def peer_steps(case: cases.Case, folder: pathlib.Path, parts: Parts) -> Iterator[None]:
  """Yields after each step of the peer."""
  del folder, parts
  plan = peer_plan(
    case, case.num_rounds, case.num_bands, None, epsilon=None, delta=None, noise_multiplier=1.0
  )
  for weights in peer_training(case, plan, 0):
    jax.block_until_ready(weights)
    yield


TIMED = {'aggregator': aggregator_steps, 'rows': rows_steps, 'peer': peer_steps}


def measure(side: str, name: str) -> dict:
  """Returns milliseconds a step, by the clock and of the processor, and of parts: medians."""
  case, parts = cases.CASES[name](), Parts()
  folder = _folder(in_memory=side.endswith(names.IN_MEMORY))
  try:
    steps = TIMED[side.removesuffix(names.IN_MEMORY)](case, folder, parts)
    for _ in range(WARM):
      next(steps)
    parts.clear()
    seconds, busy = [], []
    for _ in range(STEPS):
      began, before = time.perf_counter(), time.process_time()
      next(steps)
      seconds.append(time.perf_counter() - began)
      busy.append(time.process_time() - before)
    steps.close()
  finally:
    shutil.rmtree(folder, ignore_errors=True)  # A snapshot of noise may just be written.
  return {
    'ms': 1e3 * float(np.median(seconds)),
    'cpu_ms': 1e3 * float(np.median(busy)),
    'parts': {part: 1e3 * float(np.median(each)) for part, each in parts.items()},
  }


def utility(side: str, num_bands: int) -> dict:
  """Returns test accuracies by seed at equal ε, and the noise."""
  case, trainer = cases.text(), cases.trainer()
  data = trainer.text()['test']
  accuracies, began = [], time.process_time()
  if side == 'peer':
    # The event's noise multiplier is std(Z) over the sensitivity, for columns of any norm.
    target = {'epsilon': EPSILON, 'delta': DELTA}
    plan = peer_plan(case, UTILITY_ROUNDS, num_bands, None, **target)
    effective = _noise_multiplier(plan.dp_event)
    known = {'epsilon': None, 'delta': None, 'noise_multiplier': effective}
    for seed in SEEDS:  # Each with a key of its own.
      plan = peer_plan(case, UTILITY_ROUNDS, num_bands, None, **known)
      *_, weights = peer_training(case, plan, seed)
      accuracies.append(trainer.accuracy(weights, data))
  else:
    from fl_dpftrl.amplification import accountant

    strategy = _strategy(UTILITY_ROUNDS, num_bands)
    scheme = _scheme(case, UTILITY_ROUNDS, num_bands)
    planned = accountant.calibrate(strategy, scheme, epsilon=EPSILON, delta=DELTA)
    for seed in SEEDS:
      folder = _folder()
      try:
        weights = trainer.train(
          trainer.Setting(
            folder=folder / 'run',
            scheme=scheme,
            strategy=strategy,
            noise_multiplier=planned.noise_multiplier,
            delta=DELTA,
            clip_norm=cases.CLIP_NORM,
            learning_rate=cases.LEARNING_RATE,
            momentum=cases.MOMENTUM,
            seed=seed,
          ),
          trainer.text()['train'],
        )
      finally:
        shutil.rmtree(folder, ignore_errors=True)  # A snapshot of noise may just be written.
      accuracies.append(trainer.accuracy(weights, data))
    effective = planned.effective_noise_multiplier
  return {
    'accuracies': accuracies,
    'effective_noise_multiplier': effective,
    'cpu_seconds': time.process_time() - began,
  }


def _noise_multiplier(event) -> float:
  """Returns the noise multiplier of the Gaussian release within an event."""
  while not hasattr(event, 'noise_multiplier'):
    event = event.event if hasattr(event, 'event') else event.events[0]
  return float(event.noise_multiplier)


def main(arguments: list[str]) -> None:
  what, side, which = arguments
  found = measure(side, which) if what == 'time' else utility(side, int(which))
  print(json.dumps(found))


if __name__ == '__main__':
  main(sys.argv[1:])
