"""Text of a user's own: folders and tables, their division, and bad files."""

import csv
import gzip
import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from experiments.stackoverflow import datasets
from experiments.stackoverflow.datasets import texts
from fl_dpftrl.logs import id_columns

TEXTS = {f'client{i}': f'Hello world {i}. Größe zählt, c’est l’été!' for i in range(20)}


@pytest.fixture
def folder(tmp_path):
  path = tmp_path / 'mine'
  (path / 'more').mkdir(parents=True)
  for i, (name, text) in enumerate(TEXTS.items()):
    (path / ('more' if i % 2 else '.') / f'{name}.txt').write_text(text)
  (path / 'notes.md').write_text('not a client')
  return path


def written(tmp_path, suffix, text='text', rows=None):
  path = tmp_path / f'mine{suffix}'
  if suffix == '.json':  # Of LEAF.
    data = {client: {'x': [content], 'y': [0]} for client, content in (rows or TEXTS).items()}
    path.write_text(json.dumps({'users': list(data), 'user_data': data}))
    return path
  if suffix.endswith('.gz'):
    plain = written(tmp_path, suffix[:-3], text, rows)
    path.write_bytes(gzip.compress(plain.read_bytes()))
    return path
  if not suffix:  # Shards, as Spark writes them.
    for number, (name, content) in enumerate((rows or TEXTS).items()):
      folder = tmp_path / 'mine' / f'part={number % 3}'
      folder.mkdir(parents=True, exist_ok=True)
      (folder / '_SUCCESS').touch()
      shard = written(folder, '.parquet', text, {name: content})
      shard.rename(folder / f'{number}.parquet')
    return path
  rows = [{'user': n, text: t, 'other': 1} for n, t in (rows or TEXTS).items()]
  if suffix == '.csv':
    with path.open('w', newline='') as stream:
      writer = csv.DictWriter(stream, list(rows[0]))
      writer.writeheader()
      writer.writerows(rows)
  elif suffix == '.parquet':
    parquet.write_table(pa.Table.from_pylist(rows), path)
  else:
    path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return path


def test_a_folder_has_a_client_in_each_text_file(folder):
  data = datasets.load(str(folder))
  assert len(data.train_clients) == 16 and 'notes.md' not in data.train_clients
  sentences = data.sentences(data.train_clients[0])
  assert data.vocabulary.decode(sentences[1]) == '<bos> größe zählt , c’est l’été ! <eos>'
  assert (data.name, data.unit) == ('mine', 'a text file')
  assert data.unigram_accuracy > 0


@pytest.mark.parametrize(
  'suffix', ['.csv', '.jsonl', '.parquet', '.csv.gz', '.jsonl.gz', '', '.json']
)
def test_a_table_is_the_same_data(tmp_path, suffix):
  path = written(tmp_path, suffix)
  data = datasets.load(str(path), client_column='user', seed=3)
  splits = texts.split(list(TEXTS), 3)
  assert list(data.train_clients) == splits['train']
  assert len(data.test) == len(data.validation) == 2 * 2
  assert data.unit == ('a client id' if suffix == '.json' else 'a value of user')
  rows = [data.sentences(name) for name in data.train_clients]
  assert data.vocabulary.decode(rows[0][0]).startswith('<bos> hello world')
  assert all(row.shape == (2, 21) for row in rows)


@pytest.mark.parametrize('suffix', ['.jsonl', '.parquet', '', '.json'])
def test_token_ids(tmp_path, suffix):
  rows = {name: [7, 300, 7, i] for i, name in enumerate(TEXTS)}
  path = written(tmp_path, suffix, 'tokens', rows)
  data = datasets.load(str(path), client_column='user', text_column='tokens', vocabulary_size=2)
  assert data.vocabulary.words == ('7', '300')
  row = data.sentences(data.train_clients[0])[0]
  assert data.vocabulary.decode(row) == '<bos> 7 300 7 <oov> <eos>'


def test_the_division_follows_from_names_and_seed_alone():
  names = [f'client{i}' for i in range(35)]
  found = texts.split(names, 1)
  assert {key: len(value) for key, value in found.items()} == {
    'test': 3,
    'validation': 3,
    'train': 29,
  }
  assert sorted(name for part in found.values() for name in part) == sorted(names)
  assert texts.split(names[::-1], 1) == found != texts.split(names, 2)
  assert {key: len(value) for key, value in texts.split(names[:3], 0).items()} == {
    'test': 1,
    'validation': 1,
    'train': 1,
  }


@pytest.mark.parametrize('name, content, words', [
  ('a.csv', b'client,words\na,b c\n', 'no column text (--text_column); it has client, words'),
  ('a.csv', b'client,text,text\na,b c,d e\n', 'more than one column text (--text_column); it has'),
  ('a.csv', b'client,client,text\na,b,d e\n', 'more than one column client (--client_column)'),
  ('a.csv', b'client,text\n"a,b\n', 'a.csv'),
  ('a.csv', b'', 'is empty; it must have a row'),
  ('a.jsonl', b'', 'is empty; it must have a row'),
  ('a.csv', b'client;text\na;b c, d\n', 'is not CSV with commas'),
  ('a.csv', 'client,text\na,café crème\n'.encode('latin-1'), 'UTF-8; convert it, as by iconv'),
  ('a.csv', 'client,text\na,b c\n'.encode('utf-16'), 'UTF-8; convert it, as by iconv'),
  ('a.csv', b'client,text\na,b c\n', 'has 1 client with'),
  ('a.csv', b'client,text\na,b c\nb,c d\n', 'has 2 clients'),
  ('a.jsonl', b'{"client": "a", "text": ', 'is not JSON lines'),
  ('a.jsonl', b'{"client": "a", "text": 3}\n',
   'texts or token ids: JSON parse error: Column(/text)'),
  ('a.jsonl', b'{"client": "a"}\n{"client": "b", "text": "x y"}\n', 'row 1: has nothing in'),
  ('a.jsonl', b'{"client": [1], "text": "x y"}\n',
   'is not JSON lines with names of text or whole numbers'),
  ('a.parquet', b'PAR1 nothing', 'is not Parquet'),
  ('a.csv.gz', b'client,text\na,b c\n', 'is not CSV'),
  ('a.json', b'{"users": ["a"]}', "is not LEAF's JSON"),
  ('a.json', b'{"user_data": {"a": {"x": []}, "a": {"x": []}}}', "the key 'a' twice"),
  ('a.json', b'{"user_data": {"a": {"x": [[0.5]]}}}', 'must have text or lists of token ids'),
  ('a.xlsx', b'PK', 'must be a folder, or a file that ends in .csv'),
])  # fmt: skip
def test_bad_files_are_named(tmp_path, name, content, words):
  path = tmp_path / name
  path.write_bytes(content)
  with pytest.raises(ValueError) as caught:
    datasets.load(str(path))
  assert str(path) in str(caught.value) and words in str(caught.value)


DEVICES = {
  'large numbers': [2**53 + i for i in range(3)],
  'dates': ['2020-01-01', '2020-01-01T00:00:00', '2020-01-01 00:00'],
  'numbers as text': ['1', '-2', 'A', '0a'],
  'floats alone': ['1.0', '2.5', '3e0'],
}


@pytest.mark.parametrize('names', DEVICES.values(), ids=DEVICES)
def test_clients_keep_the_names_they_were_written_with(tmp_path, names):
  found = {}
  for suffix in ('.jsonl', '.csv', '.parquet'):
    path = written(
      tmp_path, suffix, rows={name: f'hello world {i}' for i, name in enumerate(names)}
    )
    data = datasets.load(str(path), client_column='user')
    assert [len(data.train_clients), len(data.validation), len(data.test)] == [len(names) - 2, 1, 1]
    found[data.digest] = data.train_clients
  assert len(found) == 1 and set(*found.values()) <= set(map(str, names))


@pytest.mark.parametrize('name', ['1.0', '1e0', '01', '+1', '1e+05', '.5', *id_columns.MISSING, ''])
def test_names_that_are_missing_or_the_same_number_are_refused(tmp_path, name):
  rows = dict.fromkeys(['1', '2', '3', name], 'Hello world.')
  for suffix in ('.csv', '.jsonl', '.parquet', '', '.json', '.csv.gz'):
    path = written(tmp_path, suffix, rows=rows)
    with pytest.raises(
      ValueError, match='(device_id is a mark|device_id is empty|one reads as|one has zeros)'
    ) as e:
      datasets.load(str(path), client_column='user')
    assert str(path) in str(e.value) and len(str(e.value)) <= 300


def test_names_that_may_be_one_are_counted(tmp_path, capsys):
  path = written(tmp_path, '.csv', rows=dict.fromkeys(['a1', 'A1', '0a1', 'b'], 'Hello world.'))
  assert len(datasets.load(str(path), client_column='user').train_clients) == 2
  assert '2 of 4 device ids would be one with another' in capsys.readouterr().err


def test_a_client_without_sentences_leaves_others_in_their_part(tmp_path):
  rows = {**TEXTS, **{f'more{i}': 'Hello world.' for i in range(9)}}
  path = written(tmp_path, '.csv', rows=rows)
  whole = datasets.load(str(path), client_column='user')
  for client in (whole.train_clients[0], 'more0', 'more5'):
    data = datasets.load(
      str(written(tmp_path, '.csv', rows={**rows, client: ''})), client_column='user'
    )
    assert data.train_clients == tuple(c for c in whole.train_clients if c != client)


@pytest.mark.parametrize('names', [[1, 2**63], [1, 0.5], [1, '1'], [1, True], ['a', ['a']]])
def test_clients_of_json_lines_that_would_merge_are_refused(tmp_path, names):
  path = tmp_path / 'a.jsonl'
  path.write_text(''.join(json.dumps({'client': n, 'text': 'x y'}) + '\n' for n in names * 3))
  with pytest.raises(ValueError, match='a.jsonl is not JSON lines with names of text or whole'):
    datasets.load(str(path))


@pytest.mark.parametrize('name', ['cafe\u0301', 'a\u00a0', 'a ', 'x' * 1025])
def test_names_that_the_log_would_refuse_are_refused_by_client_and_rule(tmp_path, folder, name):
  rows = dict(TEXTS, **{name: 'Hello world.'})
  for suffix in ('.csv', '.jsonl', '.parquet'):
    with pytest.raises(ValueError, match=f'mine{suffix}.*: at 20, device_id (is|has|holds)'):
      datasets.load(str(written(tmp_path, suffix, rows=rows)), client_column='user')
  if name == 'cafe\u0301':
    (folder / name).mkdir()
    (folder / name / 'b.txt').write_text('Hello world.')
    with pytest.raises(ValueError, match='mine, names of clients: at .* normal form C'):
      datasets.load(str(folder))


def test_numbers_and_texts_of_two_shards_are_not_merged(tmp_path):
  for number, name in enumerate((1, '1', 2, 3)):
    parquet.write_table(
      pa.table({'client': [name], 'text': ['x y']}), tmp_path / f'{number}.parquet'
    )
  with pytest.raises(ValueError, match='names of clients must be all text or all whole numbers'):
    datasets.load(str(tmp_path))
