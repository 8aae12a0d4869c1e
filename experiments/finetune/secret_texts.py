"""Secrets in made-up people's texts: does a fine-tuned model remember them?

Made-up people take part beside the others, each with a secret of `secret_twins`.
All texts are of as many tokens, and those of one name differ in their digits only. So what comes
before is computed once for several secrets of a name, and losses are of the digits.
"""

import dataclasses
import string
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments import secret_twins
from experiments.finetune import data, train

_BATCH = 4  # names whose secrets are computed together
_DIGITS, _NAME = 8, 6  # characters


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Task(train.Task):
  """A task with made-up people after the people of its units.

  Attributes:
    num_people: people, whose names come first.
    twins: tokens of secrets, int32 [made-up people, secrets of a name, tokens].
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
  shape = number, secret_twins.num_secrets(number), _DIGITS
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
  twins = secret_twins.tossed(tokens.reshape(number, -1, length + 1), generator)
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
  return {label: secret_twins.told_apart(before - losses) for label, losses in zip(trained, after)}


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
