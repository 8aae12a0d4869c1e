"""Pickles: what is plain is read as Python reads it, all else is refused in one line."""

import copyreg
import io
import json
import pickle
import random
import struct

import pytest

from fl_dpftrl.logs import reader, reader_program, refusals

VALUES = [
  {'a': [1, -1, 255, 256, 65535, 65536, 2**31 - 1, -(2**31), 2**40, -(2**100)]},
  [1.5, -0.0, 1e300, True, False, None, 'text', 'é\n\\', ''],
  {1: (), 2: (1,), 3: (1, 2), 4: (1, 2, 3), 5: (1, 2, 3, 4), None: {}, 2.5: []},
  [list(range(10_000)), ['x' * 300, 'y' * 70_000]],
  list('abc') * 100,
  [[]] * 3,
  7,
]


def read(content):
  return json.loads(reader_program.plain_json('trace', io.BytesIO(content)))


@pytest.mark.parametrize('protocol', range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize('value', VALUES, ids=range(len(VALUES)))
def test_reads_as_python_does(value, protocol):
  assert read(pickle.dumps(value, protocol)) == json.loads(json.dumps(value))


def test_text_of_python_2_is_text():
  assert read(b"}(U\x01aK\x05S'b'\nK\x06u.") == {'a': 5, 'b': 6}
  with pytest.raises(refusals.LogError, match='not whole'):
    read(b'U\x01\xff.')  # Its encoding is not known.


CALLS = (
  b'cos\nsystem\n(S"true"\ntR.',
  b'(S"true"\nios\nsystem\n.',
  b'(cos\nsystem\nS"true"\no.',
  b'\x80\x02cos\nsystem\n)\x81.',
  b'\x80\x04\x8c\x02os\x8c\x06system\x93.',
  b'\x80\x04cos\nsystem\n)}\x92.',
)


@pytest.mark.parametrize(
  'content, words',
  [
    *((content, 'os.system') for content in CALLS),
    (b'\x80\x02cbuiltins\neval\n.', 'builtins.eval'),
    (b'\x80\x02c' + b'm' * 10_000 + b'\nx\n.', 'it names'),
    (b'Pname\n.', 'outside the file'),
    (b'K\x01Q.', 'outside the file'),
    (b'\x80\x02]}b.', 'not whole'),  # BUILD
    (b'\x80\x02]}X\x09\x00\x00\x00__class__K\x01sb.', 'not whole'),
    (b'\x80\x02X\x01\x00\x00\x00a)R.', 'not whole'),  # REDUCE of text
    (b'\x80\x02X\x01\x00\x00\x00a)\x81.', 'not whole'),  # NEWOBJ of text
    (b'\x80\x02\x82\x01.', 'not whole'),  # EXT1
    (b'\x80\x02\x83\x01\x00.', 'not whole'),
    (b'\x80\x02\x84\x01\x00\x00\x00.', 'not whole'),
    (b'\x80\x05\x97.', 'not whole'),  # NEXT_BUFFER
    (b'\x80\x04\x96' + bytes(8) + b'.', 'more than plain'),  # BYTEARRAY8
    (b'\x80\x04\x8f.', 'more than plain'),  # EMPTY_SET
    (b'\x80\x03C\x01a.', 'more than plain'),  # bytes
    (b'\x80\x02})K\x01s.', 'keys must be'),
    (b'\x80\x02}]K\x01s.', 'not whole'),
    (b'\x80\x02]q\x00h\x00a.', 'more than plain'),  # contains itself
    (b'\x80\x02' + b'](' * 100_000 + b'e' * 100_000 + b'.', 'more than plain'),
    (b'\x80\x02)' + b'\x85' * 100_000 + b'.', 'more than plain'),
    (b'\x80\x02\x8b' + struct.pack('<i', 2**14) + b'\x01' * 2**14 + b'.', 'more than plain'),
    (b'I' + b'9' * 100_000 + b'\n.', 'not whole'),
    (b'\x80\x02\x8b\xff\xff\xff\x7f.', 'not whole'),
    (b'\x80\x02K\x01K\x02s.', 'not whole'),
    (b'\x80\x02]K\x01', 'not whole'),
    (b'\x80\x02h\x05.', 'not whole'),
    (b'e.', 'not whole'),
    (b'\xff.', 'not whole'),
    (b'', 'not whole'),
  ],
  ids=lambda value: repr(value)[:40],
)
def test_refuses_in_words(content, words, monkeypatch):
  monkeypatch.setattr('os.system', lambda command: pytest.fail('ran a command'))
  with pytest.raises(refusals.LogError, match='^trace ') as caught:
    read(content)
  message = str(caught.value)
  assert words in message and message.isprintable() and len(message) <= 300


def test_refuses_a_registered_extension():
  copyreg.add_extension('os', 'system', 7)
  try:
    with pytest.raises(refusals.LogError, match='os.system'):
      read(b'\x80\x02\x82\x07.')
  finally:
    copyreg.remove_extension('os', 'system', 7)


def test_values_are_limited(monkeypatch):
  monkeypatch.setattr('fl_dpftrl.logs.limits.PLAIN_BYTES', 1000)
  text = b'X\xe4\x03\x00\x00' + b'a' * 996
  assert len(read(text + b'.')) == 996
  with pytest.raises(refusals.LogError, match='take 1002 bytes as JSON, of which 1000'):
    read(text + b'\x85\x85.')


SHARED = b'q\x00h\x00\x86' * 60  # pairs of the same pair again and again
# Pickles that crash Python's reader, never end in it, or take any memory.
HOSTILE = {
  'deep tuple as a key': b'\x80\x02})' + b'\x85' * 10**7 + b'K\x01s.',
  'tuples that share, as a key': b'\x80\x02}K\x01' + SHARED + b'K\x01s.',
  'tuples that share': b'\x80\x02]' + SHARED + b'.',
  'text of any size': b'\x80\x04\x8d' + struct.pack('<Q', 2**40) + b'x.',
  'a place of any size': b'\x80\x02]r\xff\xff\xff\xffK\x01a.',
  'marks': b'\x80\x02' + b'(' * 10**7,
  'the same again': b'\x80\x02]' + b'2' * 10**8,
}


@pytest.fixture
def limited(monkeypatch):
  """A reader whose process has 1 s of computing time and 1 GiB of memory."""
  lower = 'from fl_dpftrl.logs import limits, reader_program;'
  lower += ' limits.PART_CPU_SECONDS, limits.MEMORY = 0, 2**30;'
  whole = 'from fl_dpftrl.logs import reader_program;'
  assert whole in reader._PROGRAM
  monkeypatch.setattr(reader, '_PROGRAM', reader._PROGRAM.replace(whole, lower))
  return type(reader.Reader())()  # not the one that tests share


@pytest.mark.slow
def test_what_breaks_a_reader_ends_it_alone(tmp_path, limited):
  path = tmp_path / 'trace'
  for name, content in HOSTILE.items():
    path.write_bytes(content)
    with pytest.raises(refusals.LogError) as caught:
      limited.pickled(reader.Source(str(path)))
    message = str(caught.value)
    print(f'{name}: {message}')
    assert message.startswith(str(path)), name
    assert message.isprintable() and len(message) <= 300, name
    path.write_bytes(b'}.')
    assert limited.pickled(reader.Source(str(path))) == b'{}', name


@pytest.mark.slow
@pytest.mark.parametrize('protocol', range(pickle.HIGHEST_PROTOCOL + 1))
def test_flipped_bits_are_refused_or_read_as_python_does(protocol, tmp_path, limited):
  path = tmp_path / 'trace'
  content = pickle.dumps(
    {'d': {'active': [1, 5], 'inactive': [2, 600], 'finish_time': 86400}}, protocol
  )
  draws = random.Random(0)
  for bit in draws.sample(range(8 * len(content)), 150):
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    if draws.random() < 0.3:
      changed = changed[: draws.randrange(len(changed))]
    try:
      path.write_bytes(changed)
      found = limited.pickled(reader.Source(str(path)))
    except refusals.LogError:
      continue
    assert json.loads(found) == json.loads(json.dumps(pickle.loads(bytes(changed))))
