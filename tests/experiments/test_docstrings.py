import os
import sys
import sysconfig

import numpy as np
import pytest

from experiments.stackoverflow.datasets import docstring_text

pytestmark = pytest.mark.tff

MODULE = '''
"""The module. It has two sentences."""
import nothing_of_this_name
raise RuntimeError('never imported')
class Thing:
  """A thing."""
  if True:
    def method(self):
      r"""What it\\does."""
      def inner():
        """Deep inside."""
    try:
      pass
    except ValueError:
      async def handler(): "In a handler."
  def no_docstring(self):
    return """not a docstring"""
'''


@pytest.fixture(name='library')
def _library(tmp_path, monkeypatch):
  """A small library of 60 modules, and packages to be left out."""
  roots = {'stdlib': tmp_path / 'lib', 'purelib': tmp_path / 'lib/site-packages'}
  monkeypatch.setattr(sysconfig, 'get_path', lambda name: str(roots[name]))

  def write(root, path, text):
    file = roots[root] / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file

  generator = np.random.default_rng(0)
  words = ['the', 'a', 'of', 'shape', 'array', 'tensor', 'returns', 'value', 'zebra']
  for i in range(60):
    lines = [' '.join(generator.choice(words[:-1], 6)) + '.' for _ in range(8)]
    package = ('purelib', 'numbers') if i % 2 else ('stdlib', 'json')
    write(package[0], f'{package[1]}/m{i}.py', f'"""{" ".join(lines)}"""\n')
  write('purelib', 'fl_dpftrl/ours.py', '"""Zebra ours."""')
  write('purelib', 'pip/installer.py', '"""Zebra installer."""')
  write('stdlib', 'test/test_json.py', '"""Zebra test."""')
  write('stdlib', 'json/broken.py', '"""Zebra""" +')
  return write


def test_docstrings_of_every_definition():
  assert docstring_text.docstrings_of(MODULE.encode()) == [
    'The module. It has two sentences.',
    'A thing.',
    'What it\\does.',
    'Deep inside.',
    'In a handler.',
  ]


def test_words_and_sentences():
  text = "Don't panic: it's well-known, v1.5!  See\nfoo_bar(x).\n\nNext part\n\n---- >>> ==\n\n42 ."
  assert docstring_text.sentences_of(text, 20) == [
    ["don't", 'panic', ':', "it's", 'well-known', ',', 'v', '1', '.', '5', '!'],
    ['see', 'foo', 'bar', '(', 'x', ')', '.'],
    ['next', 'part'],
  ]


def test_split_is_stable_and_about_8_1_1():
  # Frozen: a change moves devices between training and test sets.
  assert [docstring_text.split_of(f'stdlib/m{i}.py') for i in (0, 11)] == ['train', 'test']
  splits = [docstring_text.split_of(f'site/p/m{i}.py') for i in range(5000)]
  for name, share in (('train', 0.8), ('validation', 0.1), ('test', 0.1)):
    assert abs(splits.count(name) / 5000 - share) < 0.02


def test_load_never_imports_and_knows_only_training_words(library, tmp_path):
  held_out = next(
    f'p/n{i}.py' for i in range(99) if docstring_text.split_of(f'site/p/n{i}.py') == 'test'
  )
  library('purelib', held_out, '"""Zebra a b. Zebra of. B a. C a. D a."""')
  library('stdlib', 'json/imported.py', MODULE)
  data = docstring_text.load(cache_dir=tmp_path / 'cache')
  assert 'zebra' not in data.vocabulary.words
  assert 'nothing_of_this_name' not in sys.modules
  assert (data.test == data.vocabulary.oov).any()
  assert {docstring_text.split_of(c) for c in data.train_clients} == {'train'}
  assert {c.split('/')[0] for c in data.train_clients} == {'site'}
  assert data.validation.shape[1] == data.test.shape[1] == 21


def test_a_device_changes_no_other_and_held_out_text_is_in_no_device(library, tmp_path):
  for i in range(20):
    library('purelib', f'copies/c{i}.py', '"""A copy. A copy. And a copy. Of a copy."""')
  names = [f'p/n{i}.py' for i in range(99)]
  trains = [docstring_text.split_of(f'site/{name}') == 'train' for name in names]
  one, held_out = names[trains.index(True)], names[trains.index(False)]
  library('purelib', held_out, '"""A copy. Only here."""')
  without = docstring_text.load(cache_dir=tmp_path / 'cache', min_sentences=1)
  library('purelib', one, '"""A copy. And a copy. The value of a zebra."""')
  data = docstring_text.load(cache_dir=tmp_path / 'cache', min_sentences=1)
  few = docstring_text.load(
    cache_dir=tmp_path / 'cache', min_sentences=1, num_validation_sentences=9
  )
  assert 5 <= len(few.validation) <= 9
  texts = lambda data, rows: [data.vocabulary.decode(row) for row in rows]
  says = lambda data: {c: texts(data, data.sentences(c)) for c in data.train_clients}
  added = says(data)
  assert added.pop(f'site/{one}') == [
    f'<bos> {text} . <eos>' for text in ('a copy', 'and a copy', 'the value of a zebra')
  ]
  assert added == says(without) and all(len(set(own)) == len(own) for own in added.values())
  trained = {text for own in says(data).values() for text in own}
  for rows in (data.validation, data.test):
    assert trained.isdisjoint(texts(data, rows))
  public = texts(data, data.public)
  assert len(set(public)) == len(public) and trained.isdisjoint(public)


def test_public_text_is_the_standard_library_whatever_is_installed(library, tmp_path):
  alone = docstring_text.load(cache_dir=tmp_path / 'cache', min_sentences=1)
  library('purelib', 'a/copy.py', '"""Of its own. Only public text says this."""')
  library('stdlib', 'z.py', '"""Only public text says this."""')
  copied = docstring_text.load(cache_dir=tmp_path / 'cache', min_sentences=1)
  says = lambda data: {data.vocabulary.decode(row) for row in data.public}
  assert says(copied) - says(alone) == {'<bos> only public text says this . <eos>'}


def test_loading_again_uses_the_cache_and_gives_the_same(library, tmp_path, monkeypatch, capsys):
  del library
  first = docstring_text.load(cache_dir=tmp_path / 'cache')
  assert 'files parsed' in capsys.readouterr().err
  with monkeypatch.context() as patch:
    patch.setattr(docstring_text, 'distinct_sentences', None)
    second = docstring_text.load(cache_dir=tmp_path / 'cache')
  fresh = docstring_text.load(cache_dir=tmp_path / 'elsewhere')
  for other in (second, fresh):
    assert other.vocabulary == first.vocabulary
    assert other.train_clients == first.train_clients
    np.testing.assert_array_equal(other.test, first.test)
    for client in first.train_clients:
      np.testing.assert_array_equal(other.sentences(client), first.sentences(client))
  assert len(os.listdir(tmp_path / 'cache')) == 1  # No temporary file left.
