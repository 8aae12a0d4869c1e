"""Stable names, signatures, flags, statuses and JSON fields are those that are recorded."""

import importlib.util

import pytest

import fl_dpftrl
from tests.golden import stable

RECORDED = set(stable.PATH.read_text().splitlines())
HAS_TFF = importlib.util.find_spec('tensorflow_federated') is not None


def _of(name):
  return {line for line in RECORDED if line.startswith((f'{name}(', f'{name}.')) or line == name}


def _params():
  """The names; those of TFF where it is there."""
  for name in stable.names():
    home = fl_dpftrl._HOMES.get(name.removeprefix('fl_dpftrl.'), name)
    is_tff = home.startswith('fl_dpftrl.tff')
    if HAS_TFF or not is_tff:
      yield pytest.param(name, marks=[pytest.mark.slow, pytest.mark.tff] if is_tff else [])


def check(recorded, now):
  """Fails with what to do, where what is stable is not what was recorded."""
  gone, new = sorted(recorded - now), sorted(now - recorded)
  record = 'then `python -m tests.golden.stable` records it'
  assert not gone, (
    f'{gone} were stable, and now there are {new}: take this back; or raise the second part of the'
    f' version and say first in CHANGELOG.md, under Migration, what users change; {record}'
  )
  assert not new, f'{new} will be stable: name them in CHANGELOG.md; {record}'


@pytest.mark.parametrize('name', _params())
def test_a_name_stays(name):
  check(_of(name), stable.surface(name))


def test_commands_stay():
  check({line for line in RECORDED if line.startswith('fl-dpftrl ')}, stable.of_commands())


def test_every_recorded_line_is_of_a_name_or_a_command():
  named = set().union(*map(_of, stable.names()))
  check({line for line in RECORDED if not line.startswith('fl-dpftrl ')}, named)


def test_a_change_is_named_with_what_to_do():
  with pytest.raises(AssertionError, match=r"'f\(a\)'.*'f\(b\)'.*Migration.*golden\.stable"):
    check({'f(a)'}, {'f(b)'})
  with pytest.raises(AssertionError, match=r"'f\(b\)'\] will be stable.*CHANGELOG"):
    check(set(), {'f(b)'})
