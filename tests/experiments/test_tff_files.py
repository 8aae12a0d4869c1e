"""Files in the forms of TFF's data sets: SQL tables and HDF5, as text of a user's own."""

import h5py
import numpy as np
import pytest

from experiments.stackoverflow import datasets
from experiments.stackoverflow.datasets import texts
from tests.experiments import stackoverflow_files

pytestmark = pytest.mark.tff

CLIENTS = {f'{i:04d}': [f'hello world {i} <URL>', 'hello again , world'] for i in range(9)}


def database(path, clients):
  first = {client: sentences[:1] for client, sentences in clients.items()}
  second = {client: sentences[1:] for client, sentences in clients.items()}
  stackoverflow_files.write_database(path, {'train': first, 'test': second})


def hdf5(path, clients):
  with h5py.File(path, 'w') as file:
    for client, sentences in clients.items():
      group = file.create_group(f'examples/{client}')
      group['tokens'] = np.array(sentences, object).astype(h5py.string_dtype())
      group['score'] = np.arange(len(sentences))


@pytest.mark.parametrize('suffix, write', [('.sqlite', database), ('.h5', hdf5)])
def test_devices_are_client_ids_and_words_are_those_of_the_tokens(tmp_path, suffix, write):
  path = tmp_path / f'mine{suffix}'
  write(path, CLIENTS)
  data = datasets.load(str(path), seed=3)
  assert list(data.train_clients) == texts.split(list(CLIENTS), 3)['train']
  assert data.unit == 'a client id'
  client = data.train_clients[0]
  said = [data.vocabulary.decode(row) for row in data.sentences(client)]
  number = str(int(client))
  assert said == [f'<bos> hello world {number} <URL> <eos>', '<bos> hello again , world <eos>']
  with pytest.raises(ValueError, match=r'no feature --text_column=body; it has .*score.*tokens'):
    datasets.load(str(path), text_column='body')
