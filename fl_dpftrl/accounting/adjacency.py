"""What neighbouring runs differ in, and what that does to a sensitivity."""

import dataclasses
import numbers

from fl_dpftrl import sensitivity as sensitivity_lib

ZERO_OUT, REPLACE_ONE = 'zero_out', 'replace_one'
ADD_OR_REMOVE = 'add_or_remove'


@dataclasses.dataclass(frozen=True)
class _Adjacency:
  factor: float  # of the sensitivity to one device's updates
  sentence: str


_ADJACENCIES = {
    ZERO_OUT: _Adjacency(
        1.0,
        'adjacency is zero-out: neighbouring runs differ in that the updates of'
        ' one device are zeros, and the rounds it is in stay the same',
    ),
    REPLACE_ONE: _Adjacency(
        2.0,
        'adjacency is replace-one: neighbouring runs differ in the data of one'
        ' device, and the rounds it is in stay the same; two clipped updates'
        ' are at most 2 clip norms apart, so the sensitivity is doubled',
    ),
}
ADJACENCIES = tuple(_ADJACENCIES)


def check(adjacency: str, group_size: int = 1) -> None:
  """Raises ValueError where no guarantee follows from a schema or a log."""
  if adjacency == ADD_OR_REMOVE:
    raise ValueError(
        'adjacency add_or_remove is refused: without a device others would fill'
        ' its places in the cohorts, which no schema bounds and no log shows;'
        ' zero_out protects the same updates'
    )
  if adjacency not in _ADJACENCIES:
    raise ValueError(
        f'adjacency must be one of {", ".join(ADJACENCIES)}, got {adjacency!r}'
    )
  if isinstance(group_size, bool) or not (
      isinstance(group_size, numbers.Integral) and group_size >= 1
  ):
    raise ValueError(
        f'group_size must be a whole number of at least 1, got {group_size!r}'
    )


def factor(adjacency: str) -> float:
  """What the sensitivity to one device's updates is multiplied by."""
  check(adjacency)
  return _ADJACENCIES[adjacency].factor


def scaled(
    sensitivity: sensitivity_lib.Sensitivity,
    adjacency: str,
    group_size: int = 1,
) -> sensitivity_lib.Sensitivity:
  """From the sensitivity to one device's updates to that of neighbouring runs.

  Args:
    sensitivity: worst ‖C u‖ per unit of clip norm.
    adjacency: 'zero_out' or 'replace_one', which doubles it.
    group_size: devices protected together. The triangle inequality multiplies
      by it, which is an upper bound.

  Raises:
    ValueError: as of `check`.
  """
  check(adjacency, group_size)
  factor = group_size * _ADJACENCIES[adjacency].factor
  value, kind = sensitivity
  if group_size > 1 and kind == sensitivity_lib.EXACT:
    kind = sensitivity_lib.UPPER_BOUND
  return sensitivity_lib.Sensitivity(value * factor, kind)


def assumptions(adjacency: str, group_size: int = 1) -> tuple[str, ...]:
  """The relation in words, and what a group's sensitivity is."""
  sentences = (_ADJACENCIES[adjacency].sentence,)
  if group_size == 1:
    return sentences
  return sentences + (
      f'groups of {group_size} devices are protected together: the sensitivity'
      f' of one is multiplied by {group_size}, an upper bound',
  )
