"""The plan of a run: what it needs, what it guarantees, and whether there is anything to learn."""

import math
import pathlib
import tempfile
from typing import NamedTuple

import jax

from experiments.finetune import train
from fl_dpftrl.claims import noise_to_signal
from fl_dpftrl.support.text import roundings

# Operations of a processor second, of which an update of SmolLM2 has 1.6e10.
_SPEED = 5e10
_BYTES = 12  # a frozen parameter while a model is read


class Plan(NamedTuple):
  """A plan, and a sentence on noise that leaves nothing to learn from; None if there is hope."""

  text: str
  hopeless: str | None


def made(task: train.Task, num_runs: int, num_canaries: int | None = None) -> Plan:
  """Returns the plan of so many runs of a task, whose features may be missing."""
  chosen, frozen, size = task.settings, task.model, task.model.zeros.size
  with tempfile.TemporaryDirectory() as folder:
    run_folder = pathlib.Path(folder, 'plan')
    with train.open_run(chosen, frozen.zeros, run_folder, num_canaries=num_canaries) as aggregator:
      noise_multiplier = aggregator.noise_multiplier
      rate = train.server_rate(chosen, aggregator, size)
      ratio = noise_to_signal.expected(aggregator.claim)
  blocks, num_people = len(task.tokens), len(task.names)
  seconds = _operations(task, num_runs) / _SPEED
  batch = 4 * size * min(chosen.cohort, train.PEOPLE) * math.ceil(blocks / num_people)
  memory = _BYTES * frozen.num_parameters + 2 * batch
  disk = 2 * frozen.config.width * (blocks * chosen.tokens + task.held_out_tokens.size)
  signal = 'there is no noise'
  if ratio is not None:
    signal = f'{ratio.mean:.2g} times the clip norm in a mean, {ratio.total:.2g} in all rounds'
  most = chosen.participation.max_participations
  lines = {
    'People': f'{num_people} train, each {task.units.unit}; {len(task.held_out_tokens)} held out',
    'Rounds': f'{chosen.rounds} of {chosen.cohort}; a person takes part in {most} at most, at least'
    f' {chosen.min_sep} apart',
    'Text': f'{blocks} blocks of {chosen.tokens} tokens, at most {chosen.blocks} a person',
    'Trained': f'{size:,} numbers, rank {chosen.rank} in the last {len(frozen.a)} layers',
    'Server': f'learning rate {rate:g}, clip norm {chosen.clip_norm:g}',
    'Noise': f'{chosen.mechanism}, σ = {roundings.up(noise_multiplier)}: ε = {chosen.epsilon:g} at'
    f' δ = {chosen.delta:g}',
    'Noise to signal': signal,
    'Memory, disk': f'about {memory / 1e9:.1f} GB, {disk / 1e9:.2f} GB for features',
    'Time': f'about {max(1, round(seconds / 60))} minutes of one processor core',
  }
  hopeless = ratio and ratio.warning(chosen.epsilon)
  texts = [f'{name:<17}{text}' for name, text in lines.items()]
  texts += [f'{hopeless}: refused without --force'] if hopeless else []
  return Plan('\n'.join(texts), hopeless)


def _operations(task: train.Task, num_runs: int) -> float:
  """Returns multiplications and additions: 2 a parameter and token, 4 with a gradient."""
  frozen, chosen, evaluated = task.model, task.settings, task.held_out_tokens.size
  count = lambda weights: sum(array.size for array in jax.tree.leaves(weights))
  lower, upper, head = count(frozen.lower), count(frozen.upper), frozen.ends['head'].size
  words = min(head, train.WORDS * frozen.config.width)
  trained = chosen.rounds * chosen.cohort * len(task.tokens) / len(task.names) * chosen.tokens
  return (
    2 * lower * (task.tokens.size + evaluated)
    + 4 * (upper + words) * trained * num_runs
    + 2 * (upper + head) * evaluated * (1 + num_runs)
  )
