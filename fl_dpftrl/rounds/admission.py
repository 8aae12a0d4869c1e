"""Admission of devices to a round by the declared participation schema."""

import collections
import dataclasses
import functools
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fl_dpftrl.logs import ids as ids_lib
from fl_dpftrl.participation import registry, schemas, seen
from fl_dpftrl.text import messages

TWICE, MAX_PARTICIPATIONS, MIN_SEP, BIN = 'twice', 'max_participations', 'min_sep', 'bin'
OWN = 'participation'
_ENDLESS = 2**53  # rounds


class TurnedAway(NamedTuple):
  """A device that may not take part, and why; its last round is −1 where it was in none."""

  device_id: str | int
  reason: str
  last_round: int
  participations: int
  schema: schemas.MinSep

  @property
  def sentence(self) -> str:
    """The reason, in words."""
    again = self.last_round + self.schema.min_sep
    said = {
      TWICE: 'is twice among the candidates',
      MAX_PARTICIPATIONS: f'took part {self.participations} times, and'
      f' {self.schema.participations} are declared',
      MIN_SEP: f'took part in round {self.last_round}, and min-sep {self.schema.min_sep} admits it'
      f' again in round {again}',
      OWN: f'took part in {self.participations} rounds, after which its participation does not'
      ' admit it yet',
      BIN: f'took part in round {self.last_round}, and its bin comes back after multiples of'
      f' {self.schema.min_sep} rounds alone',
    }
    return f'device {messages.quoted(self.device_id)} {said[self.reason]}'


@dataclasses.dataclass(frozen=True, eq=False)
class Admission:
  """The cohort of a round."""

  round_index: int
  column: pa.Array
  turned_away: tuple[TurnedAway, ...] = ()

  @functools.cached_property
  def device_ids(self) -> np.ndarray:
    """The admitted devices, as text or int64."""
    return ids_lib.as_numpy(self.column)

  def check_whole(self, least: int) -> None:
    """Raises ValueError if a candidate may not take part, or there are fewer than needed."""
    if self.turned_away:
      reasons = collections.Counter(each.reason for each in self.turned_away)
      counts = ', '.join(f'{count} by {reason}' for reason, count in sorted(reasons.items()))
      raise ValueError(
        f'device_ids: {len(self.turned_away)} may not take part in round {self.round_index}'
        f' ({counts}); admissible(device_ids) leaves them out'
      )
    if len(self.column) < least:
      raise ValueError(f'device_ids: {least} updates need as many devices, got {len(self.column)}')


def gate(participation: registry.Participation | None) -> 'Gate | None':
  """Returns the gate of a participation; None where nobody is turned away."""
  if participation is None:
    return Gate(None)
  in_bins = participation.is_drawn  # Whoever has drawn a bin comes back with it.
  schema = participation.gated
  return None if schema is None else Gate(schema, in_bins=in_bins)


class Gate:
  """Admits devices by the schema and the rounds of each device alone.

  Args:
    schema: the declared schema, not a fixed separation; None where each device may take part once
      in every round.
    in_bins: whether a device may come back after multiples of min_sep rounds alone.
  """

  def __init__(self, schema: schemas.MinSep | None, *, in_bins: bool = False):
    if isinstance(schema, schemas.FixedSeparation):
      raise ValueError(f'schema must be a MinSep, got {messages.quoted(schema)}')
    self._schema = schema or schemas.MinSep(_ENDLESS, min_sep=1)
    self._reason = BIN if in_bins else OWN if self._schema.is_own else MIN_SEP
    self.clear()

  def clear(self) -> None:
    """Forgets all rounds."""
    self.seen = seen.Seen()
    self._rounds = collections.defaultdict[str | int, list[int]](list)  # Of each device.

  def check(self, device_ids: ids_lib.Ids, *, at_most: int | None = None) -> Admission:
    """Returns who may take part in the next round; records nothing.

    Args:
      at_most: size of the cohort; further candidates are left out, and are not
        among those turned away.
    """
    t, column = self.seen.num_rounds, ids_lib.column(device_ids)
    ids = column.to_numpy(zero_copy_only=False)
    if not ids.size:
      return Admission(t, column)
    last, times = self.seen.of(ids)
    again = np.zeros(ids.size, bool)
    if len(set(ids.tolist())) < ids.size:
      codes = column.dictionary_encode().indices.to_numpy()  # In the order of first occurrences.
      again = np.diff(np.maximum.accumulate(codes), prepend=-1) == 0
    often = times >= self._schema.participations
    apart, min_sep = t - last, self._schema.min_sep
    is_back = apart % min_sep == 0 if self._reason == BIN else apart >= min_sep
    allowed = ~again & ~often & ((times == 0) | is_back)
    if (
      self._schema.is_own
    ):  # Its bound rests on its separation too, and a first round may be refused.
      allowed &= [self._schema.allows(np.array([*self._rounds[i], t])) for i in ids.tolist()]
    if allowed.all() and (at_most is None or ids.size <= at_most):
      return Admission(t, column)
    admitted, end = np.flatnonzero(allowed), ids.size
    if at_most is not None and admitted.size > at_most:
      admitted, end = admitted[:at_most], int(admitted[at_most])
    away = np.flatnonzero(~allowed[:end])
    reasons = np.select([again[away], often[away]], [TWICE, MAX_PARTICIPATIONS], self._reason)
    columns = (values.tolist() for values in (ids[away], reasons, last[away], times[away]))
    turned_away = (TurnedAway._make((*row, self._schema)) for row in zip(*columns, strict=True))
    return Admission(t, column.take(admitted), tuple(turned_away))

  def record(self, column: pa.Array) -> None:
    """Records the next round's cohort, string or int64."""
    for device_id in column.to_pylist() if self._schema.is_own else ():
      self._rounds[device_id].append(self.seen.num_rounds)
    self.seen.add(column.to_numpy(zero_copy_only=False))
