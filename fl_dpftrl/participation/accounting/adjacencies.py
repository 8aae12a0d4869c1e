"""Adjacency relations and their effect on a sensitivity."""

from fl_dpftrl.mechanisms import sensitivities
from fl_dpftrl.support import checks

ONE, REPLACED, OPPOSITE = 'one', 'replaced', 'opposite'
"""What neighbouring runs are told apart by; see `sampled_gaussian.epsilon`."""

ZERO_OUT, REPLACE_ONE = 'zero_out', 'replace_one'
ADD_OR_REMOVE = 'add_or_remove'


# A factor of the sensitivity to one device's updates, and a sentence.
_ADJACENCIES = {
  ZERO_OUT: (
    1.0,
    'what a device sends is protected (zero-out adjacency): the run is compared with the same run'
    ' in which all updates of one device are zeros; that it took part, and when, is not protected',
  ),
  REPLACE_ONE: (
    2.0,
    'the data of a device are protected (replace-one adjacency): the run is compared with the same'
    ' run in which one device has any other data; that it took part, and when, is not protected;'
    ' two clipped updates are at most 2 clip norms apart, so the sensitivity is doubled',
  ),
}
ADJACENCIES = tuple(_ADJACENCIES)


def check(adjacency: str, group_size: int = 1) -> None:
  """Raises ValueError if no guarantee holds for this adjacency or group size."""
  if adjacency.startswith('add'):
    raise ValueError(
      'adjacency add_or_remove is refused: without a device, others'
      ' would take its places in the cohorts, which no schema bounds and no'
      ' log shows; use zero_out, which protects the same updates'
    )
  checks.one_of(ADJACENCIES, adjacency=adjacency)
  checks.whole(group_size=group_size)


def scaled(
  sensitivity: sensitivities.Sensitivity, adjacency: str, group_size: int = 1
) -> sensitivities.Sensitivity:
  """Scales a sensitivity by an adjacency (replace_one: 2) and a group size, an upper bound."""
  check(adjacency, group_size)
  factor = group_size * _ADJACENCIES[adjacency][0]
  value, kind = sensitivity
  if group_size > 1 and kind == sensitivities.EXACT:
    kind = sensitivities.UPPER_BOUND
  return sensitivities.Sensitivity(value * factor, kind)


def assumptions(adjacency: str, group_size: int = 1) -> tuple[str, ...]:
  """Returns the assumptions of an adjacency and a group size, in words."""
  sentences = _ADJACENCIES[adjacency][1:]
  if group_size == 1:
    return sentences
  return sentences + (
    f'groups of {group_size} devices are protected together: the sensitivity'
    f' of one is multiplied by {group_size}, an upper bound',
  )
