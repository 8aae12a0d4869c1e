"""Training rounds of the additions: each unit takes part once, with one clipped update."""

import dataclasses
import hashlib
import io
import math
import pathlib
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np

import fl_dpftrl as dpftrl
from experiments.finetune import data, model
from fl_dpftrl.support.files import durable, paths

NUM_ROUNDS, COHORT = 14, 40
NUM_TRAINED, RANK = 15, 4  # last layers with additions, and the rank of these
CLIP_NORM, MOMENTUM, DELTA = 0.1, 0.9, 1e-6
SCHEMA = dpftrl.MinSep(num_rounds=NUM_ROUNDS, min_sep=NUM_ROUNDS)  # each unit takes part once
WORKLOAD = dpftrl.Workload(momentum=MOMENTUM)

_TOKENS, _HELD_OUT_TOKENS = 64, 128  # of a unit
_MOST_UNITS, _MOST_HELD_OUT = 700, 64
_WORDS = 16_384  # tokens that the training loss is over, the most frequent ones
_BATCH = 8  # units
_CONTINUED, _CONTINUATIONS = 24, 3

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Task:
  """A model and the units that it is fine-tuned and evaluated on.

  Attributes:
    names: names of the units, which no file gets.
    features, tokens: of each unit, float16 [units, 64, width] and int32 [units, 65].
    held_out, held_out_tokens: those of the held-out units, with 128 tokens each.
    digest: digest of texts and weights.
    seed: seed of A and of the cohorts.
  """

  model: model.Model
  units: data.Units
  names: list[str]
  features: np.ndarray
  tokens: np.ndarray
  held_out: np.ndarray
  held_out_tokens: np.ndarray
  digest: str
  seed: int

  @property
  def cohort(self) -> int:
    """Units of a round."""
    return min(COHORT, len(self.names) // NUM_ROUNDS)

  def units_of_round(self, t: int) -> np.ndarray:
    """Returns numbers of the units of a round; no unit is in two."""
    order = data.in_order(self.names, self.seed)
    return np.array(order[t * self.cohort : (t + 1) * self.cohort])

  def evaluated(self, b: np.ndarray) -> dict[str, Any]:
    """Returns perplexity, accuracy and tokens of the held-out units, and continuations."""
    loss, hits, num_tokens = self._sums(b, slice(None))
    return {
      'perplexity': float(np.exp(loss / num_tokens)),
      'accuracy': float(hits / num_tokens),
      'num_tokens': int(num_tokens),
      'continuations': self.model.continuations(
        self.units.prompt, b, num_tokens=_CONTINUED, count=_CONTINUATIONS
      ),
    }

  def perplexity(self, b: np.ndarray, part: slice) -> float:
    """Returns the perplexity of some of the held-out units."""
    loss, _, num_tokens = self._sums(b, part)
    return float(np.exp(loss / num_tokens))

  def _sums(self, b: np.ndarray, part: slice) -> np.ndarray:
    features, targets = self.held_out[part], self.held_out_tokens[part, 1:]
    starts = range(0, len(features), _BATCH)
    batches = [slice(start, start + _BATCH) for start in starts]
    return sum((self.model.sums(features[i], targets[i], b) for i in batches), np.zeros(3))


def prepare(
  units: data.Units, weights: pathlib.Path, *, cache_dir: str = '.cache', seed: int = 0, say: Say
) -> Task:
  """Returns the task of fine-tuning a model with units of text.

  What the frozen layers make of the texts is stored in the cache, which only its owner can read.
  """
  frozen = model.load(weights, num_trained=NUM_TRAINED, rank=RANK, seed=seed)
  names, tokens = data.rows(units.train, frozen.tokenizer, _TOKENS, _MOST_UNITS)
  _, held_out = data.rows(
    units.held_out,
    frozen.tokenizer,
    _HELD_OUT_TOKENS,
    _MOST_HELD_OUT,
    fewest=data.SHORTEST_HELD_OUT,
  )
  if len(names) < data.FEWEST_PEOPLE or not len(held_out):
    raise ValueError(
      f'there are {len(names)} units to train with, and {len(held_out)} with enough text to'
      f' evaluate with; {data.FEWEST_PEOPLE} and 1 are needed: give another --text'
    )
  digest = hashlib.sha256(f'{frozen.digest} {NUM_TRAINED}\n'.encode())
  digest.update(tokens.tobytes() + held_out.tobytes())
  path = paths.local(cache_dir) / f'finetune-{digest.hexdigest()[:16]}.npz'
  if not path.exists():
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = {
      'train': _features(frozen, tokens, 'training units', say),
      'held_out': _features(frozen, held_out, 'held-out units', say),
    }
    durable.write_durably(path, _npz(**stored), private=True)
  with np.load(path, allow_pickle=False) as features:
    return Task(
      model=frozen,
      units=units,
      names=names,
      features=features['train'],
      tokens=tokens,
      held_out=features['held_out'],
      held_out_tokens=held_out,
      digest=digest.hexdigest()[:16],
      seed=seed,
    )


def _features(frozen: model.Model, tokens: np.ndarray, what: str, say: Say) -> np.ndarray:
  parts = []
  for start in range(0, len(tokens), 4 * _BATCH):
    if start % (16 * _BATCH) == 0:
      say(f'frozen layers: {start} of {len(tokens)} {what}')
    rows = tokens[start : start + 4 * _BATCH, :-1]
    parts.append(np.asarray(frozen.features(rows), np.float16))
  return np.concatenate(parts)


def learning_rate(mechanism: str, epsilon: float) -> float:
  """Returns the server's learning rate, which public text chose (docs/finetune.md says how)."""
  return min(7.5, (1.25 if mechanism == 'identity' else 2.0) * epsilon)


def open_run(
  task: Task, folder: pathlib.Path, mechanism: str, epsilon: float
) -> dpftrl.PrivateAggregator:
  """Opens a run whose rounds together have this ε; ∞ is a run without noise."""
  options: dict[str, Any] = {'noise_multiplier': 0.0}
  strategy: Any = 'identity'
  if math.isfinite(epsilon):
    strategy = dpftrl.optimize(mechanism, SCHEMA, workload=WORKLOAD)
    options = {'max_epsilon': epsilon}
  return dpftrl.PrivateAggregator(
    strategy,
    template=task.model.zeros,
    clip_norm=CLIP_NORM,
    report_goal=task.cohort,
    folder=folder,
    participation=SCHEMA,
    delta=DELTA,
    **options,
  )


def train(
  task: Task,
  aggregator: dpftrl.PrivateAggregator,
  rate: float,
  on_round: Callable[[int], None] = lambda num_rounds: None,
) -> np.ndarray:
  """Trains, or goes on training, in the aggregator's folder; returns B after the last round.

  Raises:
    ValueError: for a folder whose run has other texts, weights, seed or learning rate.
    LostStateError: for a folder with rounds and without model or key of the device ids.
  """
  folder = aggregator.folder
  setting = {'texts or weights': task.digest, 'seed': task.seed, 'learning_rate': rate}
  stored, setting_path, key_path = (folder / n for n in ('model.npz', 'setting.json', 'ids.key'))
  if not stored.exists():
    aggregator.require_new()  # A run that has rounds has lost its model.
    durable.write_durably(key_path, secrets.token_bytes(32), private=True)
    durable.write(setting_path, setting)
    _store(stored, task.model.zeros, task.model.zeros)
  recorded = durable.read(setting_path)
  differing = [name for name, value in setting.items() if recorded.get(name) != value]
  if differing:
    raise ValueError(f'{folder} has a run with other {", ".join(differing)}: name a new folder')
  ids = np.array(data.device_ids(task.names, key_path.read_bytes()))
  with np.load(stored, allow_pickle=False) as arrays:
    b, velocity = arrays['b'], arrays['velocity']
  while aggregator.next_round < aggregator.max_rounds:
    numbers = task.units_of_round(aggregator.next_round)
    with aggregator.round(ids[numbers].tolist()) as round_:
      for start in range(0, len(numbers), _BATCH):
        part = numbers[start : start + _BATCH]
        filled = np.resize(part, _BATCH)  # One shape, so that one program is compiled.
        updates = task.model.updates(task.features[filled], task.tokens[filled, 1:], b, _WORDS)
        round_.add_batch(updates, count=len(part))
    velocity = np.float32(MOMENTUM) * velocity + np.asarray(round_.mean)
    b = b + np.float32(rate) * velocity
    _store(stored, b, velocity)
    on_round(aggregator.next_round)
  return b


def _store(path: pathlib.Path, b: np.ndarray, velocity: np.ndarray) -> None:
  durable.write_durably(path, _npz(b=b, velocity=velocity), private=True)


def _npz(**arrays: np.ndarray) -> bytes:
  buffer = io.BytesIO()
  np.savez(buffer, **arrays)
  return buffer.getvalue()
