"""Federated text data sets, by name or path."""

import os
from typing import TYPE_CHECKING

from experiments.stackoverflow.datasets import docstring_text, federated_text, synthetic, topics
from fl_dpftrl.support.text import messages

if TYPE_CHECKING:
  from experiments.stackoverflow import configuration

NAMES = ('docstrings', 'stackoverflow', 'synthetic', 'topics')
Dataset = federated_text.Dataset
client_dataset = federated_text.client_dataset


def load(
  name: str,
  *,
  seed: int = 0,
  cache_dir: str | os.PathLike = '.cache',
  data_dir: str | os.PathLike | None = None,
  download: bool = False,
  vocabulary_size: int | None = None,
  client_column: str = 'client',
  text_column: str = 'text',
) -> Dataset:
  """The data set of that name, or at that path.

  Args:
    name: one of `NAMES`, or a path as `texts.load` takes it.
    seed: of the synthetic languages, and of the division of your own clients
      into training, validation and test; the other data sets are what they are.
    cache_dir: where the docstrings are kept once they are parsed.
    data_dir: folder with StackOverflow's files; None for TFF's own.
    download: whether TFF may download StackOverflow's files.
    vocabulary_size: words of the vocabulary; None for the data set's own.
    client_column, text_column: columns of a file of your own.
  """
  options = {}
  if vocabulary_size is not None:
    options['vocabulary_size'] = vocabulary_size
  if name == 'docstrings':
    return docstring_text.load(cache_dir=cache_dir, **options)
  if name == 'stackoverflow':
    from experiments.stackoverflow.datasets import stackoverflow  # Loads TensorFlow.

    if data_dir is not None:
      options['data_dir'] = data_dir
    return stackoverflow.load(download=download, **options)
  if name == 'synthetic':
    return synthetic.load(seed=seed, **options)
  if name == 'topics':
    return topics.load(seed=seed, **options)
  if os.path.exists(name):
    from experiments.stackoverflow.datasets import texts  # Loads Arrow.

    return texts.load(
      name, seed=seed, client_column=client_column, text_column=text_column, **options
    )
  raise ValueError(
    f'--dataset={messages.quoted(name)} is neither one of {", ".join(NAMES)},'
    f' nor the path of a folder or file; relative paths start at {messages.quoted(os.getcwd())}'
  )


def load_for(hparams: 'configuration.Hparams') -> Dataset:
  """Returns the data set that a run's flags name; raises as `load` does."""
  return load(
    hparams.dataset,
    seed=hparams.seed,
    cache_dir=hparams.cache_dir,
    data_dir=hparams.data_dir,
    download=hparams.download,
    vocabulary_size=hparams.vocabulary_size,
    client_column=hparams.client_column,
    text_column=hparams.text_column,
  )
