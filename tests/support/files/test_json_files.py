"""JSON within limits: what Python's reader takes, and is refused here."""

import pytest

from fl_dpftrl.support.files import json_files
from tests import made


@made.cases(
  'content, value',
  (b'{"a": [1, -2.5e3, null, true, "\xc3\xa9"]}', {'a': [1, -2500.0, None, True, 'é']}),
  (b'\xef\xbb\xbf[]', []),
  (b'9007199254740993', 2**53 + 1),
  (b'1e-999', 0.0),
)
def test_reads(tmp_path, content, value):
  assert json_files.parse(content) == value
  path = tmp_path / 'a.json'
  path.write_bytes(content)
  assert json_files.read(path) == value


@made.cases(
  'content, words',
  (b'', 'not JSON, or cut short'),
  (b'{"a": 1', 'not JSON, or cut short'),
  (b'\xff', 'not JSON, or cut short'),
  ('[]'.encode('utf-16'), 'in UTF-16, .*: save it in UTF-8'),
  (b'{"a": 1, "b": 2, "a": 3}', "the key 'a' twice"),
  (b'{"x": {"\\u001b\\n": 1, "\\u001b\\n": 3}}', 'twice'),
  (b'1e999', "the number '1e999'"),
  (b'-1e999', 'too large'),
  (b'9' * 21, 'more than 20 digits'),
  (b'9' * 100_000, 'more than 20 digits'),
  (b'0.' + b'1' * 10_000, 'too long'),
  (b'[NaN]', 'NaN, which is not a number'),
  (b'[-Infinity]', 'Infinity'),
  (b'[' * 65 + b']' * 65, 'more than 64 lists and objects'),
  (b'{"a":' * 65 + b'1' + b'}' * 65, 'more than 64 lists and objects'),
  (b'[' * 100_000 + b']' * 100_000, 'more than 64 lists and objects'),
  (b'{"a":' * 100_000, 'more than 64 lists and objects'),
  (b'[' * 2**24, 'bytes of memory'),
  ids=lambda value: repr(value)[:30],
)
def test_refuses_in_one_line(tmp_path, content, words):
  with pytest.raises(ValueError, match=words) as caught:
    json_files.parse(content)
  path = tmp_path / 'a.json'
  path.write_bytes(content)
  with pytest.raises(ValueError, match=words) as named:
    json_files.read(path)
  assert str(path) in str(named.value)
  for error in (caught, named):
    message = str(error.value)
    assert message.isprintable() and len(message) < 300


def test_the_most_levels_are_read():
  value = json_files.parse(b'[' * 64 + b']' * 64)
  for _ in range(63):
    (value,) = value
  assert value == []


def test_no_more_of_a_file_is_read_than_the_limit():
  with pytest.raises(ValueError, match=f'more than {json_files.MOST_BYTES} bytes'):
    json_files.read('/dev/zero')
