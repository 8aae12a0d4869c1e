"""No part of the project is larger than its ceiling, which only falls."""

from tests import sizes


def test_no_part_is_above_its_ceiling():
  limits = sizes.ceilings()
  assert not {
    name: f'{size} above {limits.get(name, 0)}'
    for name, size in sizes.measure().items()
    if size > limits.get(name, 0)
  }
