"""Federated text data sets, by name."""

import os

from experiments.stackoverflow.datasets import dataset as dataset_lib
from experiments.stackoverflow.datasets import docstrings, synthetic

NAMES = ('docstrings', 'stackoverflow', 'synthetic')
Dataset = dataset_lib.Dataset
client_dataset = dataset_lib.client_dataset


def load(
  name: str,
  *,
  seed: int = 0,
  cache_dir: str | os.PathLike = '.cache',
  data_dir: str | os.PathLike | None = None,
  download: bool = False,
  vocabulary_size: int | None = None,
) -> Dataset:
  """The data set of that name.

  Args:
    name: one of `NAMES`.
    seed: of the synthetic language; the other data sets are what they are.
    cache_dir: where the docstrings are kept once they are parsed.
    data_dir: folder with StackOverflow's files; None for TFF's own.
    download: whether TFF may download StackOverflow's files.
    vocabulary_size: words of the vocabulary; None for the data set's own.

  Raises:
    ValueError: if there is no such data set, or a file is missing or bad.
  """
  options = {}
  if vocabulary_size is not None:
    options['vocabulary_size'] = vocabulary_size
  if name == 'docstrings':
    return docstrings.load(cache_dir=cache_dir, **options)
  if name == 'stackoverflow':
    from experiments.stackoverflow.datasets import stackoverflow  # Loads TensorFlow.

    if data_dir is not None:
      options['data_dir'] = data_dir
    return stackoverflow.load(download=download, **options)
  if name == 'synthetic':
    return synthetic.load(seed=seed, **options)
  raise ValueError(f'dataset must be one of {", ".join(NAMES)}, got {name!r}')
