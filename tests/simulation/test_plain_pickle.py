"""Pickles: what is plain is read as Python reads it, all else is refused."""

import pickle
import random
import struct

import pytest

from fl_dpftrl.simulation import plain_pickle

VALUES = [
  {'a': [1, -1, 255, 256, 65535, 65536, 2**31 - 1, -(2**31), 2**40, -(2**100)]},
  [1.5, -0.0, 1e300, True, False, None, 'text', 'é\n\\', '', b'', b'bytes\xff'],
  {1: (), 2: (1,), 3: (1, 2), 4: (1, 2, 3), 5: (1, 2, 3, 4), None: {}, 2.5: []},
  [list(range(10_000)), ['x' * 300, 'y' * 70_000, b'z' * 300]],
  {'set': {1, 'a', None}, 'frozen': frozenset({1, b'b'})},
  list('abc') * 100,
  [[]] * 3,
  7,
]


@pytest.mark.parametrize('protocol', range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize('value', VALUES, ids=range(len(VALUES)))
def test_reads_as_python_does(value, protocol):
  if protocol < 4 and isinstance(value, dict) and 'set' in value:
    pytest.skip('sets are made by a function there')
  if (protocol < 3 and 'bytes' in repr(value)) or (protocol < 3 and "b'z" in repr(value)):
    pytest.skip('bytes are made by a function there')
  content = pickle.dumps(value, protocol)
  found = plain_pickle.load('trace', content)
  assert found == value and repr(found) == repr(pickle.loads(content))


def test_text_of_python_2_is_text():
  assert plain_pickle.load('trace', b"}(U\x01aK\x05S'b'\nK\x06u.") == {'a': 5, 'b': 6}
  with pytest.raises(ValueError, match='not whole'):
    plain_pickle.load('trace', b'U\x01\xff.')  # Its encoding is not known.


def shared(levels):
  """Pairs of the same pair again and again, each once in the file."""
  return b'\x80\x02]' + b'q\x00h\x00\x86' * levels + b'.'


def nested(opener, levels, closer=b''):
  return b'\x80\x02' + opener * levels + closer * levels + b'.'


# Pickles that crash Python's reader or never end in it.
HOSTILE = {
  'deep tuple as a key': b'\x80\x02}' + b')' + b'\x85' * 100_000 + b'K\x01s.',
  'deep frozenset as a key': b'\x80\x04}('
  + b'(' * 50_000
  + b'K\x01'
  + b'\x91' * 50_000
  + b'K\x01u.',
  'tuples that share': b'\x80\x02}' + b'K\x01q\x00h\x00\x86' + b'q\x00h\x00\x86' * 60 + b'K\x01s.',
  'shared without a key': shared(60),
  'deep tuple': b'\x80\x02)' + b'\x85' * 100_000 + b'.',
  'deep list': b'\x80\x02' + b'](' * 100_000 + b'e' * 100_000 + b'.',
  'contains itself': b'\x80\x02]q\x00h\x00a.',
  'contains itself twice': b'\x80\x02]q\x00(h\x00h\x00e.',
  'text of any size': b'\x80\x04\x8d' + b'\xff' * 8 + b'x.',
  'bytes of any size': b'\x80\x04\x8e' + struct.pack('<Q', 2**40) + b'x.',
  'a place of any size': b'\x80\x02]r\xff\xff\xff\xffK\x01a.',
  'a number of any size': b'\x80\x02\x8b\xff\xff\xff\x7f.',
  'a long number': b'\x80\x02\x8a\xff' + b'\x01' * 255 + b'.',
  'a written number': b'I' + b'9' * 100_000 + b'\n.',
}
# Pickles whose many small steps would take any memory or time.
ENDLESS = {'marks': b'(', 'dictionaries': b'}', 'the same again': b'2', 'nothing, often': b'N0'}


@pytest.mark.slow
@pytest.mark.parametrize('name', HOSTILE)
def test_refuses_what_breaks_a_reader(name):
  if name == 'a place of any size':
    assert plain_pickle.load('trace', HOSTILE[name]) == [1]
    return
  with pytest.raises(ValueError, match='^trace ') as caught:
    plain_pickle.load('trace', HOSTILE[name])
  message = str(caught.value)
  assert message.isprintable() and len(message) < 300


@pytest.mark.parametrize('name', ENDLESS)
def test_refuses_many_small_steps(name, monkeypatch):
  monkeypatch.setattr(plain_pickle, 'MOST_MEMORY', 2**24)
  count = 2**24 // 128 + 10_000
  with pytest.raises(ValueError, match='^trace .*more than 16777216 bytes of memory'):
    plain_pickle.load('trace', b'\x80\x02]' + ENDLESS[name] * count)


@pytest.mark.parametrize(
  'content, words',
  [
    (b'\x80\x02}]K\x01s.', 'a list as a key'),
    (b'cos\nsystem\n(S"true"\ntR.', 'os.system'),
    (b'\x80\x04\x8c\x02os\x8c\x06system\x93.', 'os.system'),
    (b'\x80\x04\x96' + bytes(8) + b'.', 'BYTEARRAY8'),
    (b'\x82\x01.', 'EXT1'),
    (b'\x80\x02K\x01K\x02s.', 'not whole'),
    (b'\x80\x02]K\x01', 'not whole'),
    (b'\x80\x02h\x05.', 'not whole'),
    (b'e.', 'not whole'),
    (b'\xff.', 'not whole'),
    (b'', 'not whole'),
  ],
)
def test_refuses_in_words(content, words):
  with pytest.raises(ValueError, match=words):
    plain_pickle.load('trace', content)


@pytest.mark.parametrize('protocol', range(pickle.HIGHEST_PROTOCOL + 1))
def test_flipped_bits_are_refused_or_read_as_python_does(protocol):
  content = pickle.dumps(
    {'d': {'active': [1, 5], 'inactive': [2, 600], 'finish_time': 86400}}, protocol
  )
  draws = random.Random(0)
  for bit in range(8 * len(content)):
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    if draws.random() < 0.3:
      changed = changed[: draws.randrange(len(changed))]
    try:
      found = plain_pickle.load('trace', bytes(changed))
    except ValueError:
      continue
    try:
      expected = pickle.loads(bytes(changed))
    except Exception:
      continue  # Frames are passed over here.
    assert repr(found) == repr(expected)
