import sqlite3
import urllib.error
import urllib.request

import pytest

from experiments.stackoverflow import datasets
from tests import made
from tests.experiments import stackoverflow_files

pytestmark = pytest.mark.tff

WORDS = ['the', 'is', '.', 'a', 'query', 'sql']
SENTENCES = {
  'train': {
    '10': ['the query is a query .', 'sql'] * 3,
    '7': ['is a sql query zebra .', 'the ' * 25],
    "o'neil": [],
  },
  'heldout': {'20': ['a . a .'] * 5},
  'test': {'7': ['the end .'] * 2, '12': ['is'] * 9},
}


@pytest.fixture(name='folder')
def _folder(tmp_path):
  stackoverflow_files.write_database(tmp_path / 'stackoverflow.sqlite', SENTENCES)
  (tmp_path / 'stackoverflow.word_count').write_bytes(stackoverflow_files.word_counts(WORDS))
  return tmp_path


def test_sentences_are_prepared_as_in_the_papers(folder):
  data = datasets.load('stackoverflow', data_dir=folder)
  assert data.vocabulary.words == tuple(WORDS)
  assert data.train_clients == ('10', '7')
  rows = data.sentences('7')
  assert rows.shape == (2, 21)
  # bos 8, oov 7, eos 9; a full sentence has no end.
  assert rows[0].tolist() == [8, 2, 4, 6, 5, 7, 3, 9] + [0] * 13
  assert rows[1].tolist() == [8] + [1] * 20
  assert data.validation.shape == (5, 21)
  assert data.test.shape == (11, 21)
  assert 'ShareAlike 3.0' in data.licence


@pytest.mark.parametrize('name', ['stackoverflow.sqlite', 'stackoverflow.word_count'])
def test_a_missing_file_says_what_to_put_where(folder, name):
  (folder / name).unlink()
  with pytest.raises(ValueError) as error:
    datasets.load('stackoverflow', data_dir=folder)
  message = str(error.value)
  assert name in message and str(folder) in message and '\n' not in message


@made.cases(
  'name, content',
  ('stackoverflow.sqlite', b'not a database' * 100),
  ('stackoverflow.word_count', b''),
  ('stackoverflow.word_count', b'the 3\n\na 2\n'),
  ('stackoverflow.word_count', b'the 3\nthe 2\n'),
  ('stackoverflow.word_count', b'\xff\xfe 3\n'),
  ('stackoverflow.word_count', b'3 the\n2 a\n'),
  ('stackoverflow.word_count', b'the 3 x\n'),
  ('stackoverflow.word_count', b'a 2\nthe 3\n'),
)
def test_a_damaged_file_is_named(folder, name, content):
  (folder / name).write_bytes(content)
  with pytest.raises(ValueError, match=f'{name} is not a'):
    datasets.load('stackoverflow', data_dir=folder)


def test_a_byte_order_mark_is_no_part_of_the_first_word(folder):
  path = folder / 'stackoverflow.word_count'
  path.write_bytes(b'\xef\xbb\xbf' + path.read_bytes())
  assert datasets.load('stackoverflow', data_dir=folder).vocabulary.words == tuple(WORDS)


@pytest.mark.parametrize('content', [b'', b'no example'])
def test_an_example_without_tokens_is_one_line(folder, content):
  connection = sqlite3.connect(folder / 'stackoverflow.sqlite')
  connection.execute(
    "UPDATE examples SET serialized_example_proto = ? WHERE client_id = '20'", (content,)
  )
  connection.commit()
  connection.close()
  with pytest.raises(ValueError, match="split 'heldout' is no tf.train.Example with .* tokens"):
    datasets.load('stackoverflow', data_dir=folder)


def test_a_download_without_a_network_names_the_address_and_what_to_do(tmp_path, monkeypatch):
  def unreachable(address):
    raise urllib.error.URLError(OSError(-3, 'Temporary failure in name resolution'))

  monkeypatch.setattr(urllib.request, 'urlopen', unreachable)
  with pytest.raises(ValueError) as error:
    datasets.load('stackoverflow', data_dir=tmp_path, download=True)
  message = str(error.value)
  assert message.startswith('--download: stackoverflow.sqlite cannot be fetched from http')
  assert 'stackoverflow.sqlite.lzma (' in message and 'name resolution' in message
  assert '--data_dir' in message and '\n' not in message and len(message) < 300
  assert not list(tmp_path.iterdir())
