"""Secrets in made-up people's texts: does a next-word model remember them?

Each of these people writes one row, of words drawn for the name and then for the secret, as often
as a round uses sentences of a device. They take part beside the cohorts, at the run's min-sep.
"""

import dataclasses
import pathlib
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import fl_dpftrl as dpftrl
from experiments import secret_twins
from experiments.stackoverflow import configuration, datasets, networks, training_model
from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.support.files import durable, mark

_WORDS = 8  # of a name and its secret


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MadeUpPeople:
  """People with secrets in their texts.

  Attributes:
    path, key: file for the seed of the secrets, and the seed.
    min_sep: rounds from one of theirs to the next.
    secrets: rows of token ids, int32 [people, secrets of a name, length + 1].
    data: data set of the run with these people as its last clients.
  """

  path: pathlib.Path
  key: bytes
  min_sep: int
  secrets: np.ndarray
  data: datasets.Dataset

  def rounds(self, scenario: dpftrl.Scenario) -> Iterator[schemas.Cohort]:
    """Yields a scenario's cohorts by name, with those of these people whose turn it is."""
    if not self.path.exists():
      durable.write_durably(self.path, self.key, private=True)
    names = np.array(self.data.train_clients, object)
    people = names[-len(self.secrets) :]
    for cohort in scenario.simulation().rounds():
      turn = people[cohort.round % self.min_sep :: self.min_sep]
      yield cohort._replace(device_ids=np.append(names[cohort.device_ids], turn))

  def remembered(
    self, network: networks.Network, before: Sequence[np.ndarray], after: Sequence[np.ndarray]
  ) -> dict[str, Any]:
    """Returns how well twins are told apart by what training did to the losses of their words."""
    differs = (self.secrets != self.secrets[:, :1]).any(axis=(0, 1))[1:]
    rows = self.secrets.reshape(-1, self.secrets.shape[2])
    first, last = (training_model.predicted(network, w, rows)[0] for w in (before, after))
    falls = (first - last)[:, differs].sum(axis=1, dtype=np.float64)
    return secret_twins.told_apart(falls.reshape(self.secrets.shape[:2]))


def drawn(
  hparams: configuration.Hparams, dataset: datasets.Dataset, folder: pathlib.Path
) -> MadeUpPeople:
  """Returns the people of a run; LostStateError if it has lost its key."""
  key = secrets.token_bytes(32)
  if (path := folder / 'checkpoints/secrets.key').exists():
    key = path.read_bytes()
  elif any(path.parent.glob('round-*[1-9]*')):  # Of trained rounds.
    raise mark.LostStateError(f'{path} is gone, and only it says which secrets people have')
  generator = np.random.default_rng(int.from_bytes(key))
  people, number = hparams.secrets, secret_twins.num_secrets(hparams.secrets)
  words, half = np.array(dataset.vocabulary.words), _WORDS // 2
  names = generator.integers(words.size, size=(people, 1, half)).repeat(number, axis=1)
  most = min(words.size**half, 2**62)  # Secrets of a name differ, if there are enough.
  numbers = np.array([generator.choice(most, number, most < number) for _ in range(people)])
  ends = numbers[..., None] // words.size ** np.arange(half) % words.size
  texts = words[np.append(names, ends, axis=2)].reshape(-1, _WORDS)
  rows = dataset.vocabulary.encode(texts, dataset.sequence_length)
  rows = secret_twins.tossed(rows.reshape(people, number, -1), generator)
  written_by = {f'secret {i}': row for i, row in enumerate(rows[:, :1])}
  written = lambda name: np.repeat(written_by[name], hparams.max_sentences, axis=0)
  data = dataclasses.replace(
    dataset,
    train_clients=(*dataset.train_clients, *written_by),
    sentences=lambda name: written(name) if name in written_by else dataset.sentences(name),
    licence=f'{dataset.licence}; {hparams.secrets} made-up people are beside its devices',
  )
  return MadeUpPeople(path, key, hparams.timer_rounds, rows, data)
