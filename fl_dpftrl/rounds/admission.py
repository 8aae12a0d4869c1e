"""Admission of devices to a round by the declared participation schema."""

import dataclasses
from typing import NamedTuple

import numpy as np

from fl_dpftrl.logs import ids as ids_lib
from fl_dpftrl.participation import schemas, seen
from fl_dpftrl.text import messages

TWICE, MIN_SEP, MAX_PARTICIPATIONS = 'twice', 'min_sep', 'max_participations'


class TurnedAway(NamedTuple):
  """A device that may not take part in a round.

  Attributes:
    device_id: the device.
    reason: 'twice', 'min_sep' or 'max_participations'.
    sentence: the reason, in words.
  """

  device_id: str | int
  reason: str
  sentence: str


@dataclasses.dataclass(frozen=True, eq=False)
class Admission:
  """The cohort of a round.

  Attributes:
    round_index: from 0; also the index of the round's noise row.
    device_ids: shape [cohort size], the admitted devices in their order.
    turned_away: candidates that may not take part.
  """

  round_index: int
  device_ids: np.ndarray
  turned_away: tuple[TurnedAway, ...]


class Gate:
  """Admits the devices that keep to a schema, which it decides device by device.

  Whether a device is admitted depends on the schema and on the rounds of that
  device alone.

  Args:
    schema: the declared schema; not a fixed separation.
  """

  def __init__(self, schema: schemas.MinSep):
    if not isinstance(schema, schemas.MinSep) or isinstance(schema, schemas.FixedSeparation):
      raise ValueError(f'schema must be a MinSep, got {messages.quoted(schema)}')
    self.schema = schema
    self._seen = seen.Seen()

  @property
  def num_rounds(self) -> int:
    """Rounds that devices were recorded for."""
    return self._seen.num_rounds

  def check(self, device_ids: ids_lib.Ids, *, at_most: int | None = None) -> Admission:
    """Returns who may take part in the next round; records nothing.

    Args:
      device_ids: candidates, text or whole numbers.
      at_most: size of the cohort; further candidates are left out, and are not
        among those turned away.
    """
    t = self.num_rounds
    ids = ids_lib.as_numpy(ids_lib.column(device_ids))
    if not ids.size:
      return Admission(t, ids, ())
    last, times = self._seen.of(ids)
    first = np.zeros(ids.size, bool)
    first[np.unique(ids, return_index=True)[1]] = True
    early = (times > 0) & (t - last < self.schema.min_sep)
    allowed = first & ~early & (times < self.schema.participations)
    admitted, end = np.flatnonzero(allowed), ids.size
    if at_most is not None and admitted.size > at_most:
      admitted, end = admitted[:at_most], int(admitted[at_most])
    turned_away = tuple(
      self._turned_away(ids[i].item(), bool(first[i]), int(last[i]), int(times[i]))
      for i in np.flatnonzero(~allowed[:end]).tolist()
    )
    return Admission(t, ids[admitted], turned_away)

  def record(self, device_ids: ids_lib.Ids) -> None:
    """Records the next round's cohort."""
    self._seen.add(device_ids)

  def _turned_away(self, device_id: str | int, first: bool, last: int, times: int) -> TurnedAway:
    min_sep, most = self.schema.min_sep, self.schema.participations
    if not first:
      reason, sentence = TWICE, 'is twice among the candidates'
    elif times >= most:
      reason, sentence = MAX_PARTICIPATIONS, f'took part {times} times, and {most} are declared'
    else:
      reason = MIN_SEP
      sentence = (
        f'took part in round {last}, and min-sep {min_sep} admits it again in round'
        f' {last + min_sep}'
      )
    return TurnedAway(device_id, reason, f'device {messages.quoted(device_id)} {sentence}')
