"""The plan of a run: what it needs, what it guarantees, and whether there is anything to learn."""

import pathlib
import tempfile

from experiments.finetune import train
from fl_dpftrl.claims import noise_to_signal
from fl_dpftrl.support.text import roundings

# Operations of a processor second, of which an update of SmolLM2 has 1.7e10.
_SPEED = 6.5e10
_BYTES = 12  # a frozen parameter while a model is read


def describe(task: train.Task, num_runs: int, num_canaries: int | None) -> tuple[str, str | None]:
  """Returns the plan of so many runs, and why they are refused, if so; features may be missing."""
  chosen, frozen, size = task.settings, task.model, task.model.zeros.size
  with tempfile.TemporaryDirectory() as folder:
    run_folder = pathlib.Path(folder, 'plan')
    with train.open_run(chosen, frozen.zeros, run_folder, num_canaries=num_canaries) as aggregator:
      noise_multiplier = aggregator.noise_multiplier
      rate = train.server_rate(chosen, aggregator)
      ratio = noise_to_signal.expected(aggregator.claim)
  num_blocks, num_people, evaluated = len(task.tokens), len(task.names), task.held_out_tokens.size
  disk = 2 * frozen.config.width * (num_blocks * chosen.tokens + evaluated)
  blocks_of_round = chosen.cohort * num_blocks / num_people
  memory = _BYTES * frozen.num_parameters + 2 * disk + 8 * size * blocks_of_round
  # Of each parameter and token 2, and 4 with a gradient, which the last layers have.
  trained = chosen.rounds * blocks_of_round * chosen.tokens * num_runs
  share = len(frozen.a) / frozen.config.num_layers
  tokens = num_blocks * chosen.tokens + evaluated * (1 + num_runs) + 2 * share * trained
  minutes = 2 * frozen.num_parameters * tokens / _SPEED / 60
  lines = {
    'People': f'{num_people} train, with {num_blocks} blocks of {chosen.tokens} tokens;'
    f' {len(task.held_out_tokens)} held out',
    'Rounds': f'{chosen.rounds} of {chosen.cohort}; a person takes part in'
    f' {chosen.participation.max_participations} at most, at least {chosen.min_sep} apart',
    'Trained': f'{size:,} numbers, rank {chosen.rank} in the last {len(frozen.a)} layers',
    'Server': f'learning rate {rate:g}, clip norm {chosen.clip_norm:g}',
    'Noise': f'{chosen.mechanism}, σ = {roundings.up(noise_multiplier)}: ε = {chosen.epsilon:g} at'
    f' δ = {chosen.delta:g}',
    'Noise to signal': f'{float(f"{ratio.mean:.2g}"):g} times the clip norm in a mean,'
    f' {float(f"{ratio.total:.2g}"):g} in all rounds',
    'Memory, disk': f'about {memory / 1e9:.1f} GB, {disk / 1e9:.2f} GB for features',
    'Time': f'about {max(1, round(minutes))} min of one processor core',
  }
  refusal = ratio.warning(chosen.epsilon)
  description = '\n'.join(f'{name:<17}{text}' for name, text in lines.items())
  return description + (f'\nRefused: {refusal}' if refusal else ''), refusal
