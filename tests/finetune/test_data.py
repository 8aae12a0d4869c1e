"""Texts by unit, from made-up changelogs, tables and folders."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from experiments.finetune import data
from experiments.stackoverflow.datasets import changelogs, docstring_text
from tests import made
from tests.finetune import small

_CHANGELOG = """\
tool (1.2-1) unstable; urgency=low

  * Rebuild the tool against the newer library,
    which needs a longer line.
  [ Grace Hopper ]
  * Correct the manual page of the compiler
  * Short

 -- Ada Lovelace <ada@example.org>  Mon, 01 Jan 2024 00:00:00 +0000

tool (1.1-1) unstable; urgency=low

  * Rebuild the tool for the first time

 -- Ada Lovelace <ada@example.org>  Sun, 01 Jan 2023 00:00:00 +0000
"""


def test_entries_are_by_whom_the_changelog_names(tmp_path):
  (tmp_path / 'tool').mkdir()
  with gzip.open(tmp_path / 'tool' / 'changelog.Debian.gz', 'wt') as file:
    file.write(_CHANGELOG)
  (tmp_path / 'damaged').mkdir()
  (tmp_path / 'damaged' / 'changelog.gz').write_bytes(b'\x1f\x8bno archive')
  people = changelogs.entries(tmp_path)
  assert people == {
    'Ada Lovelace': [
      '',
      '* Rebuild the tool against the newer library, which needs a longer line.',
      '',
      '* Rebuild the tool for the first time',
    ],
    'Grace Hopper': ['* Correct the manual page of the compiler', '* Short'],
  }


def test_a_unit_depends_on_its_own_texts_only():
  shared = 'a sentence that everybody wrote'
  texts = {
    f'person {i}': [shared, shared, f'what only person {i} wrote', 'short'] for i in range(99)
  }
  divided = lambda texts: data.divided(texts, shortest_entry=9)
  train, held_out = divided(texts)
  assert len(train) + len(held_out) == 99 and 2 <= len(held_out) <= 25
  assert all(text.count(shared) == 1 and 'short' not in text for text in train.values())
  assert all(text.count(shared) == 1 for text in held_out.values())
  name = next(iter(train))
  alone, _ = divided({name: texts[name]})
  assert alone[name] == train[name]
  # Without any text of its own a unit stays where it is.
  fewer, _ = divided({**texts, name: ['short']})
  assert list(fewer) == list(train) and fewer == {**train, name: ''}


def test_rows_have_one_row_for_a_person_however_many_texts():
  train = {
    'brief': 'x' * 20,
    'talker': '\n'.join(['many words of one person'] * 100),
    'b': 'y' * 30,
  }
  names, counts, tokens = data.rows(train, small.Letters(), 40)
  assert counts.tolist() == [1, 1, 1]
  assert names == ['brief', 'talker', 'b'] and tokens.shape == (3, 41)
  assert (tokens[1] >= 0).all()
  np.testing.assert_array_equal(tokens[2, 30:], data.PADDING)


def test_a_text_changes_no_row_or_round_of_another_person():
  train = {f'person {i}': 'words ' * (i % 7 + 1) for i in range(60)}
  rows = lambda texts: data.rows(texts, small.Letters(), 40)
  names, _, tokens = rows(train)
  assert names == list(train)
  for text in ('', 'x', 'words ' * 99):
    others, _, changed = rows({**train, 'person 9': text})
    assert others == names and data.in_order(others, 3) == data.in_order(names, 3)
    np.testing.assert_array_equal(np.delete(changed, 9, 0), np.delete(tokens, 9, 0))


def test_an_order_is_drawn_by_name_and_seed():
  names = [f'person {i}' for i in range(40)]
  order = data.in_order(names, 1)
  assert sorted(order) == list(range(40)) and order != data.in_order(names, 2)
  kept = [i for i in order if i != 7]
  without = data.in_order(names[:7] + names[8:], 1)
  assert kept == [i + (i >= 7) for i in without]


def test_device_ids_tell_nothing_without_the_key():
  names = ['Ada Lovelace', 'Grace Hopper']
  first, second = data.device_ids(names, b'1' * 32), data.device_ids(names, b'2' * 32)
  assert len({*first, *second}) == 4
  assert first == data.device_ids(names, b'1' * 32)
  assert not any(word.lower() in ''.join(first) for word in ('ada', 'grace'))


def test_blocks_predict_each_token_but_the_first_once():
  text = ''.join(chr(97 + i % 26) for i in range(200))
  ids = small.Letters().encode(text).ids
  for length in (1, 2, 8, 9, 10, 17, 24, 25, 26, 200):
    names, counts, tokens = data.rows({'a': text[:length], 'b': ''}, small.Letters(), 8, 3)
    first = tokens[: counts[0]]
    assert names == ['a', 'b'] and counts.tolist() == [max(1, min(3, -(-(length - 1) // 8))), 1]
    assert first[:, 1:][first[:, 1:] >= 0].tolist() == ids[1 : min(length, 25)]
    np.testing.assert_array_equal(first[1:, 0], first[:-1, -1])
    np.testing.assert_array_equal(tokens[counts[0] :], data.PADDING)


def _write(folder, texts):
  for name, text in texts.items():
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


COLUMNS = ('person', 'text')
PEOPLE = [f'person {i}' for i in range(40)]


@made.cases(
  'kind', 'folder', 'folders', 'jsonl', 'jsonl.gz', 'csv', 'parquet', 'jsonl with other names'
)
def test_texts_of_people_are_the_same_however_they_are_stored(kind, tmp_path, capsys):
  """Several texts of a person are in one unit, each of them once; distinct names have no line."""
  rows = [(name, f'text {i} of {name}, ü') for i in range(3) for name in PEOPLE]
  rows.append(rows[0])
  names = ('who', 'said') if kind.endswith('names') else COLUMNS
  path = tmp_path / f'texts.{kind.split()[0]}'
  table = [dict(zip(names, row)) for row in rows]
  if kind == 'folder':
    path = tmp_path / 'texts'
    _write(path, {f'{name}.txt': '' for name in PEOPLE})
    for name, text in dict.fromkeys(rows):
      with (path / f'{name}.txt').open('a') as file:
        file.write(f'{text}\n')
  elif kind == 'folders':
    path = tmp_path / 'texts'
    _write(path, {f'{name}/{i}/a.txt': text for i, (name, text) in enumerate(rows)})
  elif kind.startswith('jsonl'):
    content = ''.join(f'{json.dumps(row)}\n' for row in table).encode()
    path.write_bytes(gzip.compress(content) if kind.endswith('gz') else content)
  elif kind == 'csv':
    path.write_text('person,text\n' + ''.join(f'{name},"{text}"\n' for name, text in rows))
  else:
    parquet.write_table(pa.Table.from_pylist(table), path)
  units = data.load(str(path), names)
  assert capsys.readouterr().err == ''
  assert (units.source, units.unit) == ('own', 'a person')
  texts = {**units.train, **units.held_out}
  assert set(texts) == set(PEOPLE) and 2 <= len(units.held_out) <= 12
  for name, text in texts.items():
    assert sorted(text.strip().split('\n')) == [f'text {i} of {name}, ü' for i in range(3)]


def test_names_in_a_folder_of_tables_may_be_whole_numbers(tmp_path):
  for part in (range(3), range(2, 5)):
    table = pa.table({'person': part, 'text': [f'part {part[0]} of {i}' for i in part]})
    parquet.write_table(table, tmp_path / f'{part[0]}.parquet')
  units = data.load(str(tmp_path), COLUMNS)
  texts = {**units.train, **units.held_out}
  assert set(texts) == {'0', '1', '2', '3', '4'} and texts['2'].count('\n') == 1


def test_somebody_is_held_out_of_few_people_whatever_they_wrote(tmp_path):
  for count in (3, 4, 5):
    texts = {f'{"a" * i}.txt': f'what person {i} wrote' for i in range(1, count + 1)}
    _write(tmp_path / str(count), texts)
    units = data.load(str(tmp_path / str(count)), COLUMNS)
    _write(tmp_path / str(count), dict.fromkeys(texts, 'other words'))
    others = data.load(str(tmp_path / str(count)), COLUMNS)
    assert list(units.held_out) == list(others.held_out) and len(units.held_out) == 1
    assert list(units.train) == list(others.train) and len(units.train) == count - 1


def test_names_that_may_be_of_one_person_are_pointed_out_without_the_names(tmp_path, capsys):
  _write(tmp_path / 'texts', {f'{n}.txt': f'text of {n}' for n in ('Ann', 'ann', 'bob', 'cid')})
  data.load(str(tmp_path / 'texts'), COLUMNS)
  line = capsys.readouterr().err
  assert line.count('\n') == 1 and 'case' in line and 'ann' not in line.lower()


@made.cases(
  'name, content, message',
  ('a.csv', b'person,text\nann,"hello\n', 'is not CSV'),
  ('a.csv', b'person,text\nann\n', 'is not CSV'),
  ('a.csv', b'person,text\nann,\xff\n', 'is not text in UTF-8'),
  ('a.jsonl', b'{"person": "ann", "text": "a"}\n{"person": "bob"\n', 'is not JSON lines'),
  ('a.jsonl', b'{"person": "ann", "text": null}\n', 'nothing in column text'),
  ('a.jsonl', b'{"person": null, "text": "a"}\n', 'nothing in column person'),
  ('a.jsonl', b'{"person": "ann", "text": [1, 2]}\n', 'must have text, and no token ids'),
  ('a.jsonl', b'{"person": 1.5, "text": "a"}\n', 'is not JSON lines'),
  ('a.jsonl', b'{"person": "ann", "text": "a"}\n', 'texts of 1 units, and at least 3 are needed'),
  ('a.parquet', b'PAR1 and nothing', 'is not Parquet'),
  ('a/x.txt', b'\xff\xfe', 'is not text in UTF-8'),
)
def test_a_fault_within_a_file_is_named(name, content, message, tmp_path):
  (tmp_path / name).parent.mkdir(exist_ok=True)
  (tmp_path / name).write_bytes(content)
  path = tmp_path / name.split('/')[0]
  with pytest.raises(ValueError, match=message) as error:
    data.load(str(path), COLUMNS)
  assert str(path) in str(error.value) and str(error.value).count('\n') == 0


def test_docstrings_are_by_source_file(monkeypatch, tmp_path):
  files = {
    name: tmp_path / f'{i}.py' for i, name in enumerate(('stdlib/a.py', 'site/b.py', 'site/c.py'))
  }
  for name, path in files.items():
    path.write_text(f'"""What {name} does."""')
  files['site/c.py'].write_text('not Python at all')
  monkeypatch.setattr(docstring_text, 'source_files', lambda: files)
  docstrings = lambda is_public: docstring_text.by_file(9, is_public=is_public)
  assert docstrings(True) == {'stdlib/a.py': ['What stdlib/a.py does.']}
  assert docstrings(False) == {'site/b.py': ['What site/b.py does.']}


def test_a_machine_with_changelogs_of_few_people_takes_docstrings_unless_they_are_named(
  monkeypatch, capsys
):
  people = lambda count: {f'person {i}': ['what she wrote, and wrote'] for i in range(count)}
  monkeypatch.setattr(docstring_text, 'by_file', lambda at_most, is_public: people(900))
  for count, source in ((449, 'docstrings'), (450, 'changelogs')):
    monkeypatch.setattr(changelogs, 'entries', lambda root, count=count: people(count))
    units = data.load(None, COLUMNS)
    assert units.source == source and len(units.train) in range(385, 617)
    assert ('too few people' in capsys.readouterr().err) == (count == 449)
    assert data.load('changelogs', COLUMNS).source == 'changelogs'
  assert len(data.load('docstrings', COLUMNS).train) == 616  # 44 in each of 14 rounds.
  monkeypatch.setattr(changelogs, 'entries', lambda root: {})
  with pytest.raises(ValueError, match='texts of 0 units'):
    data.load('changelogs', COLUMNS)
