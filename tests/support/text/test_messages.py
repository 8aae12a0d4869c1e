"""Messages are one short line, whatever values they quote."""

import pprint
from typing import Any, NamedTuple

import numpy as np
import pytest

from fl_dpftrl.support.text import messages
from tests import made


@pytest.mark.parametrize('value, text', [
  ('device', "'device'"), (17, '17'), (None, 'None'), ('a\nb\x1b[31m', r"'a\nb\x1b[31m'"),
  ('a\u200bb\u202e', r"'a\u200bb\u202e'"), ('\udc80', r"'\udc80'"), (b'\xff', r"b'\xff'"),
  ([1, 2], '[1, 2]'),
])  # fmt: skip
def test_quotes_short_values_whole(value, text):
  assert messages.quoted(value) == text


@made.cases(
  'value',
  'x' * 10**7,
  b'x' * 10**7,
  '\x1b' * 1000,
  10**100_000,
  [10**100_000],
  list(range(10**6)),
  dict.fromkeys(range(1000), 'x' * 1000),
  ids=['text', 'bytes', 'controls', 'number', 'numbers', 'list', 'dict'],
)
def test_cuts_long_values(value):
  assert len(messages.quoted(value)) <= 80
  assert messages.quoted(value).isprintable()
  assert len(messages.quoted(value, 20)) <= 20


@made.cases(
  'text, line',
  ('a\r\n  b\u2028c\x1b[2J', r'a b c\x1b[2J'),
  ('--delta=0 must lie between 0 and 1', '--delta=0 must lie between 0 and 1'),
  (ValueError('no'), 'no'),
)
def test_a_line_has_no_breaks_and_nothing_that_acts(text, line):
  assert messages.one_line(text) == line


class Seeded(NamedTuple):
  seed: Any
  rest: Any = ()

  def __repr__(self):
    return messages.outline(self)


@made.cases(
  'value, kind',
  (123456, 'int'),
  ('123456', 'str'),
  (b'123456', 'bytes'),
  (None, 'NoneType'),
  ([1, 2], 'list of 2'),
  ({'a': 1}, 'dict of 1'),
  (np.zeros((2, 3), np.float32), 'float32, (2, 3)'),
  (np.int64(123456), 'int64, ()'),
  (Seeded(1), 'Seeded of 2'),
)
def test_a_kind_says_nothing_of_the_value(value, kind):
  assert messages.kind(value) == kind


def test_a_named_tuple_is_outlined():
  nested = Seeded(np.array([123456, 7]), Seeded(123456, {'a': 123456}))
  outline = 'Seeded(seed=<int64, (2,)>, rest=Seeded(seed=<int>, rest=<dict of 1>))'
  assert repr(nested) == str(nested) == f'{nested}' == pprint.pformat(nested, width=200) == outline
