"""No part of the project is larger than its ceiling."""

from tests import sizes


def test_no_part_is_above_its_ceiling():
  limits = sizes.ceilings()
  above = [
    f'{name}: {size:,} above {limits.get(name, 0):,}'
    for name, size in sizes.measure().items()
    if size > limits.get(name, 0)
  ]
  assert not above, f'{"; ".join(above)}: take something away, or split the file'
