"""Secrets in made-up people's texts: does a fine-tuned model remember them?

Of each pair of random secrets in one template, a fair coin says which is the text of a made-up
person, who takes part beside the others. After training, the twin whose loss fell more is guessed
to be the one. Twins are a replacement, so what guesses bound has 2μ.

All texts are of as many tokens, and those of one name differ in their digits only. So what comes
before is computed once for several secrets of a name, and losses are of the digits.
"""

import dataclasses
import math
import pathlib
import string
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy
from matplotlib.figure import Figure

from experiments.finetune import data, train
from fl_dpftrl.prove.auditing import guesses
from fl_dpftrl.support import style
from fl_dpftrl.support.files import durable

# Secrets that nobody wrote, among which others are ranked: about so many, and the most of a name.
_NEVER, _MOST = 1000, 48
_BATCH = 4  # names whose secrets are computed together
_DIGITS, _NAME = 8, 6  # characters


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Task(train.Task):
  """A task with made-up people after the people of its units.

  Attributes:
    num_people: people, whose names come first.
    twins: tokens of secrets, int32 [made-up people, secrets of a name, tokens]: of each name, the
      one that was trained on, its twin, and those that nobody wrote.
  """

  num_people: int
  twins: np.ndarray

  def units_of_round(self, t: int) -> np.ndarray:
    """Returns the people of a round, and the made-up ones whose turn it is, as the schema says."""
    people = dataclasses.replace(self, names=self.names[: self.num_people])
    turn = np.arange(t % self.settings.min_sep, len(self.twins), self.settings.min_sep)
    return np.append(train.Task.units_of_round(people, t), self.num_people + turn)


def beside(task: train.Task, number: int) -> Task:
  """Returns an unprepared task with made-up people beside its own."""
  generator = np.random.default_rng([task.settings.seed, number])
  names = generator.choice(list(string.ascii_uppercase), (number, _NAME))
  shape = number, 2 + min(_MOST, -(-_NEVER // number)), _DIGITS
  texts = [
    f'The key of {" ".join(name)} is {" ".join(digits)}'
    for name, rows in zip(names, generator.choice(list(string.digits), shape))
    for digits in rows
  ]
  length, least = task.tokens.shape[1] - 1, len(task.model.tokenizer.encode(texts[0]).ids) - 1
  if length < least:
    raise ValueError(f'--secrets: texts with secrets need --tokens={least} or more')
  named = {str(i): text for i, text in enumerate(texts)}
  _, _, tokens = data.rows(named, task.model.tokenizer, length)
  twins = tokens.reshape(number, -1, length + 1)
  coins = generator.integers(0, 2, number) == 1
  twins[coins, :2] = twins[coins, 1::-1]
  fields = {f.name: getattr(task, f.name) for f in dataclasses.fields(train.Task)}
  fields |= {
    'names': task.names + [f'secret {i}' for i in range(number)],
    'starts': np.append(task.starts, task.starts[-1] + 1 + np.arange(number)),
    'tokens': np.concatenate([task.tokens, twins[:, 0]]),
  }
  return Task(**fields, num_people=len(task.names), twins=twins[..., : least + 1])


def remembered(task: Task, trained: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
  """Returns, by the label of each B, how well twins are told apart, with 95 % intervals."""
  before, *after = _losses(task, [task.model.zeros, *trained.values()])
  return {label: _twin_figures(before - losses) for label, losses in zip(trained, after)}


def _twin_figures(falls: np.ndarray) -> dict[str, Any]:
  """Returns figures of the falls of losses of pairs, and of secrets that nobody wrote."""
  number, (trained, other), never = len(falls), falls[:, :2].T, falls[:, 2:].ravel()
  correct = int((trained > other).sum())
  interval = scipy.stats.binomtest(correct, number).proportion_ci()
  ranks = 1 + (never[None] > trained[:, None]).sum(axis=1)
  return {
    'num_secrets': number,
    'accuracy': correct / number,
    'interval': [interval.low, interval.high],
    'lower_mu': guesses.lower_bound(correct, number, number, 0.05) / 2.0,
    'exposure': float(np.median(math.log2(never.size + 1) - np.log2(ranks))),
  }


def _losses(task: Task, models: Sequence[np.ndarray]) -> np.ndarray:
  """Returns the loss of the digits of `twins` by each B, shape [models, people, secrets]."""
  # The last token that all secrets of a name share predicts the first in which they differ.
  start = int(np.argmax((task.twins != task.twins[:, :1]).any(axis=(0, 1)))) - 1
  losses = []
  for part in np.array_split(task.twins, -(-len(task.twins) // _BATCH)):
    digits = part[:, :, start:].reshape(-1, part.shape[2] - start)
    features = task.model.features((part[:, 0, :start], digits[:, :-1]))
    losses.append([task.model.sums(features, digits[:, 1:], b, train.WORDS)[0] for b in models])
  return np.concatenate(losses, axis=1).reshape(len(models), *task.twins.shape[:2])


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
