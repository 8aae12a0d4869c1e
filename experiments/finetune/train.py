"""Training rounds of the additions: a person's update is the clipped mean of their blocks'."""

import dataclasses
import hashlib
import math
import pathlib
import secrets
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np

import fl_dpftrl as dpftrl
from experiments.finetune import data, features, model, settings
from fl_dpftrl.mechanisms import workload_error
from fl_dpftrl.run.observers import observer
from fl_dpftrl.support.files import durable, mark, paths

# Of a held-out unit: tokens, and the fewest to evaluate with; units.
_HELD_OUT_TOKENS, _SHORTEST_HELD_OUT, _MOST_HELD_OUT = 128, 25, 64
# With these public text lost least (docs/results.md): length of the noise in the trained numbers,
# and rates of 14 rounds with next to no noise, and without.
_NOISE_LENGTHS, _OTHER_LENGTH = {'identity': 30.5}, 19.6
_LARGEST_RATE, _RATE_WITHOUT_NOISE = 20.0, 7.5
WORDS = 16_384  # tokens that the training loss is over, the most frequent ones
_BATCH = 8  # blocks of text
_LARGEST_LOSS = 10.0  # of a unit, where losses are released


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Task:
  """A model and the units that it is fine-tuned and evaluated on.

  Attributes:
    settings: settings of the runs.
    names: names of the units, which no file gets.
    starts: first block of each unit, and the number of blocks, [units + 1].
    tokens: of each block, int32 [blocks, tokens + 1].
    held_out_tokens: those of the held-out units, with 128 tokens each.
    features, held_out: what the frozen layers make of both, float16 [blocks, tokens, width].
  """

  settings: settings.Settings
  model: model.Model
  names: list[str]
  starts: np.ndarray
  tokens: np.ndarray
  held_out_tokens: np.ndarray
  features: Any = None
  held_out: Any = None

  @property
  def digest(self) -> str:
    """Returns a digest of the texts, those of made-up people too, and of weights and layers."""
    facts = f'{self.model.digest} {self.settings.layers} {self.tokens.shape}\n'.encode()
    arrays = self.tokens.tobytes() + self.held_out_tokens.tobytes()
    return hashlib.sha256(facts + arrays).hexdigest()[:16]

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
    return tuple(map(means, zip(*parts)))

  def evaluated(self, b: np.ndarray, part: slice = slice(None)) -> dict[str, float]:
    """Returns perplexity and accuracy of the tokens of the held-out units, or of some of them."""
    rows = np.arange(len(self.held_out_tokens))[part]
    batches = [rows[start : start + _BATCH] for start in range(0, len(rows), _BATCH)]
    sums = lambda i: self.model.sums(self.held_out[i], self.held_out_tokens[i, 1:], b)
    loss, hits, num_tokens = sum(np.asarray(sums(i), float).sum(axis=1) for i in batches)
    return {'perplexity': float(np.exp(loss / num_tokens)), 'accuracy': float(hits / num_tokens)}


def task(units: data.Units, chosen: settings.Settings, weights: pathlib.Path) -> Task:
  """Returns a task whose features are to be prepared; ValueError with nothing to evaluate by."""
  frozen = model.load(weights, num_trained=chosen.layers, rank=chosen.rank, seed=chosen.seed)
  if chosen.layers > len(frozen.a):
    data.say(f'--layers={chosen.layers}: the model has {len(frozen.a)}, and all get additions')
  names, counts, tokens = data.rows(units.train, frozen.tokenizer, chosen.tokens, chosen.blocks)
  _, _, held_out = data.rows(units.held_out, frozen.tokenizer, _HELD_OUT_TOKENS)
  held_out = held_out[(held_out >= 0).sum(axis=1) >= _SHORTEST_HELD_OUT][:_MOST_HELD_OUT]
  if not len(held_out):
    raise ValueError(
      f'--text: {len(units.held_out)} units are held out, and none has {_SHORTEST_HELD_OUT} tokens'
      ' to evaluate with: give more text, or more people'
    )
  return Task(
    settings=chosen,
    model=frozen,
    names=names,
    starts=np.cumsum([0, *counts]),
    tokens=tokens,
    held_out_tokens=held_out,
  )


def prepare(unprepared: Task) -> Task:
  """Returns a task with what the frozen layers make of its texts, from the cache, a private one."""
  private = paths.local('.cache/finetune')  # The name of a folder in it confirms a guess of texts.
  private.mkdir(0o700, parents=True, exist_ok=True)
  private.chmod(0o700)  # There may be one already.
  folder = private / unprepared.digest
  compute = unprepared.model.features
  stored = lambda name, tokens: features.stored(folder / name, tokens[:, :-1], compute)
  return dataclasses.replace(
    unprepared,
    features=stored('training', unprepared.tokens),
    held_out=stored('held-out', unprepared.held_out_tokens),
  )


def open_run(
  chosen: settings.Settings,
  template: np.ndarray,
  folder: pathlib.Path,
  observers: Sequence[observer.Observer] = (),
  num_canaries: int | None = None,
  moved: bool = False,
) -> dpftrl.PrivateAggregator:
  """Opens a run whose rounds together have the ε of its settings; ∞ is a run without noise."""
  clip_norm, quantile = chosen.clip_norm, chosen.clip_quantile
  clipping = clip_norm if quantile is None else dpftrl.AdaptiveClipping(clip_norm, quantile)
  options: dict[str, Any] = {'noise_multiplier': 0.0}
  strategy: Any = 'identity'
  if math.isfinite(chosen.epsilon):
    strategy = dpftrl.optimize(chosen.mechanism, chosen.participation, workload=chosen.workload)
    options = {'max_epsilon': chosen.epsilon}
    options['canaries'] = None if num_canaries is None else dpftrl.Canaries(num_canaries)
  return dpftrl.PrivateAggregator(
    strategy,
    template=template,
    clip_norm=clipping,
    report_goal=chosen.cohort,
    folder=folder,
    moved=moved,
    participation=chosen.participation,
    delta=chosen.delta,
    metrics={'loss': _LARGEST_LOSS} if chosen.private_loss else None,
    observers=observers,
    **options,
  )


def server_rate(chosen: settings.Settings, aggregator: dpftrl.PrivateAggregator) -> float:
  """Returns the learning rate as given, or so that the noise has the length that served best.

  Where noise is small, the rate moves the numbers as far as the largest one does in 14 rounds.
  """
  if chosen.learning_rate is not None:
    return chosen.learning_rate
  steps = lambda n: float(chosen.workload.apply(np.ones(n))[-1])
  share = steps(settings.ROUNDS) / steps(chosen.rounds)
  if not aggregator.noise_multiplier:
    return float(f'{_RATE_WITHOUT_NOISE * share:.4g}')
  errors = workload_error.per_query_error(aggregator.strategy, chosen.rounds, chosen.workload)
  noise = aggregator.noise_multiplier * chosen.clip_norm * errors[-1] / chosen.cohort
  noise *= aggregator.claim.arithmetic.num_coordinates**0.5
  rate = _NOISE_LENGTHS.get(chosen.mechanism, _OTHER_LENGTH) / noise
  return float(f'{min(_LARGEST_RATE * share, rate):.4g}')


def train(task: Task, aggregator: dpftrl.PrivateAggregator) -> np.ndarray:
  """Trains, or goes on training, in the folder of an `open_run`; returns B after the last round.

  Raises:
    ValueError: for a folder whose run has other texts, weights or settings.
    LostStateError: for a folder with rounds and without model or key of the device ids.
  """
  folder, zeros = aggregator.folder, task.model.zeros
  rate = server_rate(task.settings, aggregator)
  stored, key_path = folder / 'model.npz', folder / 'ids.key'
  if is_new := not stored.exists():
    aggregator.require_new()  # A run that has rounds has lost its model.
    durable.write_durably(key_path, secrets.token_bytes(32), private=True)
  if not key_path.exists():
    raise mark.LostStateError(f'{key_path} is gone, and only it says which ids people have')
  key = key_path.read_bytes()
  ids = data.device_ids(task.names, key)
  setting = dataclasses.asdict(task.settings) | {'learning_rate': rate}
  # Hashes without the key would confirm a guess of a text. A person with another name would be
  # another person, in a round of their own.
  facts_of_people = [task.digest, ''.join(ids)]
  setting |= zip(('texts or weights', 'people'), data.device_ids(facts_of_people, key))
  facts = np.array([f'{name} {value}' for name, value in setting.items()])
  if is_new:
    _store(stored, {'b': zeros, 'velocity': zeros, 't': np.array(0), 'setting': facts})
  try:
    with np.load(stored, allow_pickle=False) as arrays:
      state = dict(arrays)
    differing = [fact for fact in facts if fact not in state['setting']]
  except (ValueError, EOFError, KeyError, zipfile.BadZipFile):
    raise ValueError(f'{stored} is damaged: name a new folder') from None
  if differing:
    raise ValueError(f'{folder} has no run with {", ".join(differing)}: name a new folder')
  if lost := aggregator.next_round - int(state['t']):
    data.say(f'rounds lost by an interrupt: {lost}; they count for ε, and are not made again')
  while aggregator.next_round < aggregator.max_rounds:
    numbers = task.units_of_round(aggregator.next_round)
    with aggregator.round([ids[number] for number in numbers]) as round_:
      updates, losses = task.updates(numbers, state['b'])
      round_.add_batch(updates, metrics={'loss': losses} if task.settings.private_loss else None)
    velocity = np.float32(settings.MOMENTUM) * state['velocity'] + np.asarray(round_.mean)
    b = state['b'] + np.float32(rate) * velocity
    state |= {'b': b, 'velocity': velocity, 't': state['t'] + 1}
    _store(stored, state)
  return state['b']


def _store(path: pathlib.Path, state: dict[str, np.ndarray]) -> None:
  with durable.replacing(path, private=True) as temporary, temporary.open('wb') as file:
    np.savez(file, **state)
