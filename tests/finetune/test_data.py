"""Texts by unit, from made-up changelogs and folders."""

import gzip

import numpy as np
import pytest

from experiments.finetune import data
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
  people = data.changelogs(tmp_path)
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
  train, held_out = data.divided(texts)
  assert len(train) + len(held_out) == 99 and 2 <= len(held_out) <= 25
  assert all(text.count(shared) == 1 and 'short' not in text for text in train.values())
  assert all(text.count(shared) == 1 for text in held_out.values())
  name = next(iter(train))
  alone, _ = data.divided({name: texts[name]})
  assert alone[name] == train[name]
  # Without any text of its own a unit stays where it is.
  fewer, _ = data.divided({**texts, name: ['short']})
  assert list(fewer) == list(train) and fewer == {**train, name: ''}


def test_rows_have_one_row_for_a_person_however_many_texts():
  train = {
    'brief': 'x' * 20,
    'talker': '\n'.join(['many words of one person'] * 100),
    'b': 'y' * 30,
  }
  names, tokens = data.rows(train, small.Letters(), 40, 9, fewest=25)
  assert names == ['talker', 'b'] and tokens.shape == (2, 41)
  assert (tokens[0] >= 0).all()
  np.testing.assert_array_equal(tokens[1, 30:], data.PADDING)
  assert data.rows(train, small.Letters(), 40, 1, fewest=25)[0] == ['talker']


def test_a_text_changes_no_row_or_round_of_another_person():
  train = {f'person {i}': 'words ' * (i % 7 + 1) for i in range(60)}
  names, tokens = data.rows(train, small.Letters(), 40, 50)
  assert names == list(train)[:50]
  for text in ('', 'x', 'words ' * 99):
    others, changed = data.rows({**train, 'person 9': text}, small.Letters(), 40, 50)
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


def test_a_folder_has_a_person_in_each_file(tmp_path):
  for i in range(500):
    (tmp_path / f'{i}.txt').write_text(f'first paragraph of person {i}\n\nsecond one of person {i}')
  units = data.load(str(tmp_path))
  assert (units.source, units.unit) == ('own', 'a text file')
  assert len(units.train) + len(units.held_out) == 500
  assert all(text.count('\n') == 1 for text in units.train.values())
  (tmp_path / 'x.txt').write_bytes(b'\xff\xfe')
  with pytest.raises(ValueError, match='not text in UTF-8'):
    data.load(str(tmp_path))


def test_too_few_people_and_unknown_names_are_refused(tmp_path):
  (tmp_path / 'one.txt').write_text('what a single person wrote in a file')
  with pytest.raises(ValueError, match='training needs 400; --text=docstrings'):
    data.load(str(tmp_path))
  with pytest.raises(ValueError, match='--text="?\'?nothing'):
    data.load('nothing')


def test_docstrings_are_by_source_file(monkeypatch, tmp_path):
  files = {
    name: tmp_path / f'{i}.py' for i, name in enumerate(('stdlib/a.py', 'site/b.py', 'site/c.py'))
  }
  for name, path in files.items():
    path.write_text(f'"""What {name} does."""')
  files['site/c.py'].write_text('not Python at all')
  monkeypatch.setattr(data.docstring_text, 'source_files', lambda: files)
  assert data.docstrings(is_public=True) == {'stdlib/a.py': ['What stdlib/a.py does.']}
  assert data.docstrings(is_public=False) == {'site/b.py': ['What site/b.py does.']}
