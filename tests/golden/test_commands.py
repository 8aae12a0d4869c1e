"""The command line gives the recorded results."""

import json

import pytest

from tests.golden import commands


@pytest.mark.slow
def test_every_command_gives_what_it_gave():
  recorded = json.loads(commands.PATH.read_text())
  now = commands.results()
  assert list(now) == list(recorded)
  assert not commands.differences(now, recorded)


def test_a_difference_is_named():
  found = commands.differences({'a': [1.0, {'b': 2}]}, {'a': [1.1, {'b': '2'}]})
  assert found == [' a[0]: 1.0 for 1.1', " a[1] b: 2 for '2'"]
