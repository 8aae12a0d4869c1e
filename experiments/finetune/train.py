"""Training rounds of the additions: a person's update is the clipped mean of their blocks'."""

import dataclasses
import hashlib
import io
import math
import pathlib
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import fl_dpftrl as dpftrl
from experiments.finetune import data, features, model, settings
from fl_dpftrl.mechanisms import workload_error
from fl_dpftrl.run.observers import observer
from fl_dpftrl.support.files import durable, paths

_HELD_OUT_TOKENS, _MOST_HELD_OUT = 128, 64  # of a unit; units
# Length of the noise in the trained numbers with which public text lost least (docs/finetune.md).
_NOISE_LENGTHS, _OTHER_LENGTH = {'identity': 30.5}, 19.6
_LARGEST_RATE = 7.5
WORDS = 16_384  # tokens that the training loss is over, the most frequent ones
_BATCH = 8  # blocks of text
PEOPLE = 32  # whose updates are in memory
_LARGEST_LOSS = 10.0  # of a unit, where losses are released

Say = Callable[[str], None]
State = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Task:
  """A model and the units that it is fine-tuned and evaluated on.

  Attributes:
    settings: settings of the runs.
    names: names of the units, which no file gets.
    starts: first block of each unit, and the number of blocks, [units + 1].
    tokens: of each block, int32 [blocks, tokens + 1].
    held_out_tokens: those of the held-out units, with 128 tokens each.
    digest: digest of texts and weights.
    features, held_out: what the frozen layers make of both, float16 [blocks, tokens, width].
  """

  settings: settings.Settings
  model: model.Model
  units: data.Units
  names: list[str]
  starts: np.ndarray
  tokens: np.ndarray
  held_out_tokens: np.ndarray
  digest: str
  features: Any = None
  held_out: Any = None

  def units_of_round(self, t: int) -> np.ndarray:
    """Returns numbers of the units of a round; min_sep rounds in a row have other units each."""
    cohort, place = self.settings.cohort, t % self.settings.min_sep
    order = data.in_order(self.names, self.settings.seed)
    return np.array(order[place * cohort : (place + 1) * cohort])

  def updates(self, numbers: Sequence[int], b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the update of each unit, the mean of its blocks', and its mean loss."""
    blocks = [np.arange(self.starts[i], self.starts[i + 1]) for i in numbers]
    rows, parts = np.concatenate(blocks), []
    for start in range(0, len(rows), _BATCH):
      part = rows[start : start + _BATCH]
      filled = np.resize(part, _BATCH)  # One shape, so that one program is compiled.
      results = self.model.updates(self.features[filled], self.tokens[filled, 1:], b, WORDS)
      parts.append([np.asarray(array)[: len(part)] for array in results])
    ends = np.cumsum([len(numbers) for numbers in blocks])[:-1]
    means = lambda arrays: np.stack([a.mean(0) for a in np.split(np.concatenate(arrays), ends)])
    updates, losses = map(means, zip(*parts))
    return updates, losses

  def evaluated(self, b: np.ndarray, part: slice = slice(None)) -> dict[str, Any]:
    """Returns perplexity, accuracy and tokens of the held-out units, or of some of them."""
    rows = np.arange(len(self.held_out_tokens))[part]
    batches = [rows[start : start + _BATCH] for start in range(0, len(rows), _BATCH)]
    sums = lambda i: self.model.sums(self.held_out[i], self.held_out_tokens[i, 1:], b)
    of_units = np.concatenate([*map(sums, batches)], axis=1)
    loss, hits, num_tokens = of_units.sum(axis=1, dtype=float)
    return {
      'perplexity': float(np.exp(loss / num_tokens)),
      'accuracy': float(hits / num_tokens),
      'num_tokens': int(num_tokens),
    }


def task(units: data.Units, chosen: settings.Settings, weights: pathlib.Path) -> Task:
  """Returns a task whose features are to be prepared; ValueError with nothing to evaluate by."""
  frozen = model.load(weights, num_trained=chosen.layers, rank=chosen.rank, seed=chosen.seed)
  names, counts, tokens = data.rows(
    units.train, frozen.tokenizer, chosen.tokens, blocks=chosen.blocks
  )
  options = dict(fewest=data.SHORTEST_HELD_OUT, at_most=_MOST_HELD_OUT)
  _, _, held_out = data.rows(units.held_out, frozen.tokenizer, _HELD_OUT_TOKENS, **options)
  if not len(held_out):
    raise ValueError(
      f'--text: {len(units.held_out)} units are held out, and none has'
      f' {data.SHORTEST_HELD_OUT} tokens to evaluate with: give more text, or more people'
    )
  digest = hashlib.sha256(f'{frozen.digest} {chosen.layers} {tokens.shape}\n'.encode())
  digest.update(tokens.tobytes() + held_out.tobytes())
  return Task(
    settings=chosen,
    model=frozen,
    units=units,
    names=names,
    starts=np.cumsum([0, *counts]),
    tokens=tokens,
    held_out_tokens=held_out,
    digest=digest.hexdigest()[:16],
  )


def prepare(unprepared: Task, *, cache_dir: str = '.cache', say: Say) -> Task:
  """Returns a task with what the frozen layers make of its texts.

  It is stored in the cache, which only its owner can read.
  """
  folder = paths.local(cache_dir) / f'finetune-{unprepared.digest}'

  def computed(name: str, tokens: np.ndarray) -> features.Features:
    on_block = lambda start: say(f'frozen layers: {start} of {len(tokens)} {name} blocks of text')
    return features.Features(folder / name, tokens[:, :-1], unprepared.model.features, on_block)

  return dataclasses.replace(
    unprepared,
    features=computed('training', unprepared.tokens),
    held_out=computed('held-out', unprepared.held_out_tokens),
  )


def open_run(
  chosen: settings.Settings,
  template: np.ndarray,
  folder: pathlib.Path,
  observers: Sequence[observer.Observer] = (),
  num_canaries: int | None = None,
) -> dpftrl.PrivateAggregator:
  """Opens a run whose rounds together have the ε of its settings; ∞ is a run without noise."""
  options: dict[str, Any] = {'noise_multiplier': 0.0}
  strategy: Any = 'identity'
  if math.isfinite(chosen.epsilon):
    strategy = dpftrl.optimize(chosen.mechanism, chosen.participation, workload=chosen.workload)
    options = {'max_epsilon': chosen.epsilon}
    options['canaries'] = None if num_canaries is None else dpftrl.Canaries(num_canaries)
  return dpftrl.PrivateAggregator(
    strategy,
    template=template,
    clip_norm=chosen.clipping,
    report_goal=chosen.cohort,
    folder=folder,
    participation=chosen.participation,
    delta=chosen.delta,
    metrics={'loss': _LARGEST_LOSS} if chosen.private_loss else None,
    observers=observers,
    **options,
  )


def server_rate(
  chosen: settings.Settings, aggregator: dpftrl.PrivateAggregator, num_coordinates: int
) -> float:
  """Returns the learning rate as given, or so that the noise has the length that served best.

  Where noise is small, the rate moves the numbers as far as 7.5 does in 14 rounds.
  """
  if chosen.learning_rate is not None:
    return chosen.learning_rate
  steps = lambda n: float(chosen.workload.apply(np.ones(n))[-1])
  rate = _LARGEST_RATE * steps(settings.ROUNDS) / steps(chosen.rounds)
  if aggregator.noise_multiplier:
    errors = workload_error.per_query_error(aggregator.strategy, chosen.rounds, chosen.workload)
    noise = aggregator.noise_multiplier * chosen.clip_norm * errors[-1] / chosen.cohort
    length = _NOISE_LENGTHS.get(chosen.mechanism, _OTHER_LENGTH)
    rate = min(rate, length / (noise * num_coordinates**0.5))
  return float(f'{rate:.4g}')


def train(
  task: Task,
  aggregator: dpftrl.PrivateAggregator,
  *,
  rate: float | None = None,
  say: Say = lambda line: None,
) -> np.ndarray:
  """Trains, or goes on training, in the aggregator's folder; returns B after the last round.

  Args:
    task: texts, model and settings.
    aggregator: that of `open_run`.
    rate: the server's learning rate; None for `server_rate`.
    say: takes a line on rounds that are lost.

  Raises:
    ValueError: for a folder whose run has other texts, weights or settings.
    LostStateError: for a folder with rounds and without model or key of the device ids.
  """
  folder, zeros = aggregator.folder, task.model.zeros
  rate = rate or server_rate(task.settings, aggregator, zeros.size)
  stored, setting_path, key_path = (folder / n for n in ('model.npz', 'setting.json', 'ids.key'))
  if is_new := not stored.exists():
    aggregator.require_new()  # A run that has rounds has lost its model.
    durable.write_durably(key_path, secrets.token_bytes(32), private=True)
  ids = data.device_ids(task.names, key_path.read_bytes())
  setting = {**dataclasses.asdict(task.settings), 'texts or weights': task.digest}
  setting |= {'learning_rate': rate, 'epsilon': str(task.settings.epsilon)}
  # Who is called otherwise would be another person, in a round of their own.
  setting['people'] = hashlib.sha256(''.join(ids).encode()).hexdigest()
  if is_new:
    durable.write(setting_path, setting)
    _store(stored, {'b': zeros, 'velocity': zeros, 't': np.array(0)})
  recorded = durable.read(setting_path)
  differing = [name for name, value in setting.items() if recorded.get(name) != value]
  if differing:
    raise ValueError(f'{folder} has a run with other {", ".join(differing)}: name a new folder')
  with np.load(stored, allow_pickle=False) as arrays:
    state = dict(arrays)
  if lost := aggregator.next_round - int(state['t']):
    say(f'rounds lost by an interrupt: {lost}; they count for ε, and are not made again')
  while aggregator.next_round < aggregator.max_rounds:
    numbers = task.units_of_round(aggregator.next_round)
    with aggregator.round([ids[number] for number in numbers]) as round_:
      for start in range(0, len(numbers), PEOPLE):
        updates, losses = task.updates(numbers[start : start + PEOPLE], state['b'])
        metrics = {'loss': losses} if task.settings.private_loss else None
        round_.add_batch(updates, metrics=metrics)
    velocity = np.float32(settings.MOMENTUM) * state['velocity'] + np.asarray(round_.mean)
    b = state['b'] + np.float32(rate) * velocity
    state = {'b': b, 'velocity': velocity, 't': state['t'] + 1}
    _store(stored, state)
  return state['b']


def _store(path: pathlib.Path, state: State) -> None:
  buffer = io.BytesIO()
  np.savez(buffer, **state)
  durable.write_durably(path, buffer.getvalue(), private=True)
