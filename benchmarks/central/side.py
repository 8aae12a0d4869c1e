"""One side of the benchmark of central training, in a process of its own; prints JSON.

    python -m benchmarks.central.side time aggregator text
    python -m benchmarks.central.side utility peer 16 4

Sides: `aggregator` is the step of examples/central.py. `peer` is jax-privacy's execution plan for
the same mechanism: its sampling, clipped gradient and streaming noise, compiled as one step. Every
SAVE_EVERY steps, each stores the model by the same function.
"""

import collections
import functools
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

WARM, BLOCKS = 2 * names.SAVE_EVERY, 5  # Batches of most sizes were compiled then.
EPSILON, DELTA = names.SETTINGS['epsilon'], names.SETTINGS['delta']
UTILITY_ROUNDS, SEEDS = names.SETTINGS['utility_rounds'], range(names.SETTINGS['seeds'])


def _folder() -> pathlib.Path:
  cache = cases.ROOT / 'benchmarks' / '.cache'
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
    value = function(*arguments)
    self[name].append(time.perf_counter() - began)
    return value


def aggregator_steps(case: cases.Case, folder: pathlib.Path, parts: Parts) -> Iterator[None]:
  """Yields after each step of examples/central.py, whose parts are timed."""
  import fl_dpftrl as dpftrl
  from fl_dpftrl.simulation import partition

  trainer = cases.trainer()
  gradients = trainer.of_each_example(case.loss)
  scheme = _scheme(case, case.num_rounds, case.num_bands)
  weights = case.initial(0)
  flat = jax.flatten_util.ravel_pytree(weights)[0]
  velocity = jnp.zeros_like(flat)

  def each_of(weights, ids):
    return gradients(weights, case.x[ids], case.y[ids]).block_until_ready()

  with dpftrl.PrivateAggregator(
    _strategy(case.num_rounds, case.num_bands),
    template=flat,
    noise_multiplier=1.0,
    clip_norm=cases.CLIP_NORM,
    report_goal=cases.BATCH,
    folder=folder / 'run',
    participation=scheme,
    delta=DELTA,
  ) as aggregator:
    batches = partition.Partition(scheme=scheme, seed=0).rounds()
    rounds = aggregator.rounds((batch.device_ids for batch in batches), reserve=names.SAVE_EVERY)
    while True:
      round_ = parts.timed('batch and its log', lambda: next(rounds).begin())
      each = parts.timed('gradients', each_of, weights, _padded(round_.device_ids))
      add = functools.partial(round_.add_batch, count=len(round_.device_ids))
      parts.timed('clipping and sum', add, each)
      parts.timed('row of noise', round_.end)
      weights, velocity = parts.timed(
        'step', trainer.step, weights, velocity, round_.mean, cases.LEARNING_RATE, cases.MOMENTUM
      )
      if (round_.index + 1) % names.SAVE_EVERY == 0:
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
  """Yields weights and momentum after each step of jax-privacy's plan."""
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
    yield weights, state[1]


def peer_steps(case: cases.Case, folder: pathlib.Path, parts: Parts) -> Iterator[None]:
  """Yields after each step of the peer."""
  del parts
  trainer = cases.trainer()
  plan = peer_plan(
    case, case.num_rounds, case.num_bands, None, epsilon=None, delta=None, noise_multiplier=1.0
  )
  for index, (weights, momentum) in enumerate(peer_training(case, plan, 0)):
    jax.block_until_ready(weights)
    if (index + 1) % names.SAVE_EVERY == 0:
      velocity = jax.flatten_util.ravel_pytree(momentum)[0]
      trainer.save(folder / 'model.npz', weights, velocity)
    yield


TIMED = {'aggregator': aggregator_steps, 'peer': peer_steps}


def measure(side: str, name: str) -> dict:
  """Returns milliseconds a step, by the clock and of the processor, and of parts.

  Each is the mean of a block of steps, with its writes to disk; the median of blocks.
  """
  case, parts = cases.CASES[name](), Parts()
  folder = _folder()
  try:
    steps = TIMED[side](case, folder, parts)
    for _ in range(WARM):
      next(steps)
    blocks = []
    for _ in range(BLOCKS):
      parts.clear()
      began, before = time.perf_counter(), time.process_time()
      for _ in range(names.SAVE_EVERY):
        next(steps)
      ended, busy = time.perf_counter(), time.process_time()
      blocks.append((ended - began, busy - before, *map(sum, parts.values())))
    steps.close()
  finally:
    shutil.rmtree(folder, ignore_errors=True)  # A snapshot of noise may just be written.
  ms, cpu_ms, *each = (1e3 * np.median(blocks, axis=0) / names.SAVE_EVERY).tolist()
  return {'ms': ms, 'cpu_ms': cpu_ms, 'parts': dict(zip(parts, each, strict=True))}


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
      *_, (weights, _) = peer_training(case, plan, seed)
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
