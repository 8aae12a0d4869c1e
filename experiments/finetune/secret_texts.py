"""Secrets in made-up people's texts: does a fine-tuned model remember them?

Of each pair of random secrets in one template, a fair coin says which is the text of a made-up
person, who takes part beside the others. After training, the twin whose loss fell more is guessed
to be the one. Twins are a replacement, so what guesses bound has 2μ.
"""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy
from matplotlib.figure import Figure

from experiments.finetune import data, train
from fl_dpftrl.prove.auditing import guesses
from fl_dpftrl.support import style
from fl_dpftrl.support.files import durable

NEVER = 1000  # secrets that nobody wrote, among which those that were trained on are ranked
_BATCH = 32  # texts
_DIGITS, _LETTERS = 8, 'abcdefghijklmnopqrstuvwxyz'


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Task(train.Task):
  """A task with made-up people after the people of its units.

  Attributes:
    num_people: people, whose names come first.
    twins: tokens of both secrets of each made-up person, those that were trained on first, and of
      secrets that nobody wrote, int32 [2 · secrets + 1000, tokens + 1].
  """

  num_people: int
  twins: np.ndarray

  @property
  def num_secrets(self) -> int:
    """Made-up people."""
    return len(self.names) - self.num_people

  def units_of_round(self, t: int) -> np.ndarray:
    """Returns the people of a round, and the made-up ones whose turn it is, as the schema says."""
    people = dataclasses.replace(self, names=self.names[: self.num_people])
    turn = np.arange(t % self.settings.min_sep, self.num_secrets, self.settings.min_sep)
    return np.append(train.Task.units_of_round(people, t), self.num_people + turn)


def beside(task: train.Task, number: int) -> Task:
  """Returns an unprepared task with made-up people beside its own."""
  generator = np.random.default_rng([task.settings.seed, number])
  drawn = lambda alphabet, size: ''.join(generator.choice(list(alphabet), size))
  texts = dict[str, str]()
  for i in range(number + NEVER):
    names = [drawn(_LETTERS, 6).capitalize() for _ in range(2)]
    for twin in range(2 if i < number else 1):
      texts[f'{i}-{twin}'] = (
        f'The key of {" ".join(names)} is {" ".join(drawn("0123456789", _DIGITS))}'
      )
  length = task.tokens.shape[1] - 1
  _, _, tokens = data.rows(texts, task.model.tokenizer, length)
  pairs = tokens[: 2 * number].reshape(number, 2, -1)
  coins = generator.integers(0, 2, number)
  trained, other = pairs[np.arange(number), coins], pairs[np.arange(number), 1 - coins]
  fields = {f.name: getattr(task, f.name) for f in dataclasses.fields(train.Task)}
  fields |= {
    'names': task.names + [f'secret {i}' for i in range(number)],
    'starts': np.append(task.starts, task.starts[-1] + 1 + np.arange(number)),
    'tokens': np.concatenate([task.tokens, trained]),
    'digest': f'{task.digest}-secrets{number}',
  }
  twins = np.concatenate([trained, other, tokens[2 * number :]])
  twins = twins[:, : (twins >= 0).sum(axis=1).max()]
  return Task(**fields, num_people=len(task.names), twins=twins)


def remembered(task: Task, trained: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
  """Returns, by the label of each B, how well twins are told apart, with 95 % intervals."""
  before, *after = _losses(task, [task.model.zeros, *trained.values()])
  return {
    label: _twin_figures(before - losses, task.num_secrets) for label, losses in zip(trained, after)
  }


def _twin_figures(falls: np.ndarray, number: int) -> dict[str, Any]:
  """Returns figures of the falls of losses of so many pairs, and of secrets that nobody wrote."""
  trained, other, never = np.split(falls, [number, 2 * number])
  correct = int((trained > other).sum())
  interval = scipy.stats.binomtest(correct, number).proportion_ci()
  ranks = 1 + (never[None] > trained[:, None]).sum(axis=1)
  return {
    'num_secrets': number,
    'accuracy': correct / number,
    'interval': [interval.low, interval.high],
    'lower_mu': guesses.lower_bound(correct, number, number, 0.05) / 2.0,
    'exposure': float(np.median(math.log2(NEVER + 1) - np.log2(ranks))),
    'fall': float(np.mean(trained - other)),
  }


def _losses(task: Task, models: Sequence[np.ndarray]) -> np.ndarray:
  """Returns the mean loss of each text of `twins` by each B, shape [models, texts]."""
  losses = []
  for start in range(0, len(task.twins), _BATCH):
    rows = np.resize(task.twins[start : start + _BATCH], (_BATCH, task.twins.shape[1]))
    features = task.model.features(rows[:, :-1])  # Of one shape, so that one program is compiled.
    losses.append([task.model.losses(features, rows[:, 1:], b) for b in models])
  return np.concatenate(losses, axis=1)[:, : len(task.twins)]


def line(label: str, result: dict[str, Any]) -> str:
  """Returns the result of a run in words."""
  low, high = result['interval']
  return (
    f'secrets {label}: {100 * result["accuracy"]:.0f} % of {result["num_secrets"]} twins told'
    f' apart (95 %: {100 * low:.0f} to {100 * high:.0f} %), exposure {result["exposure"]:.1f} bits,'
    f' μ at least {result["lower_mu"]:.2f}'
  )


def draw(path: pathlib.Path, results: Mapping[str, dict[str, Any]]) -> None:
  """Draws the share of twins that each run tells apart, with its interval."""
  figure = Figure(figsize=(4.8, 3.2), facecolor='white', layout='constrained')
  style.dress(axes := figure.subplots())
  shares = np.array([[r['accuracy'], *r['interval']] for r in results.values()])
  errors = np.abs(shares[:, 1:] - shares[:, :1]).T
  axes.errorbar(range(len(results)), shares[:, 0], errors, fmt='o', color=style.INK, capsize=4)
  axes.axhline(0.5, color=style.INK, linewidth=1, linestyle='--')
  axes.set(ylabel='twins told apart', ylim=(0.0, 1.0), xlim=(-0.5, len(results) - 0.5))
  axes.set_xticks(range(len(results)), list(results))
  durable.write_durably(path, style.image(figure, 'png'))
