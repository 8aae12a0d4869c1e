"""Admission of devices to a round by the gate of their participation."""

import collections
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import id_columns, id_spellings
from fl_dpftrl.participation import gates
from fl_dpftrl.support.text import messages

TWICE, SPELLING, CANARY = 'twice', 'spelling', 'canary'


class TurnedAway(NamedTuple):
  """A device that may not take part, and why; its last round is −1 where it was in none."""

  device_id: str | int
  reason: str
  last_round: int
  participations: int
  gate: gates.Gate

  def __repr__(self) -> str:
    return f'TurnedAway({self.sentence})'

  @property
  def sentence(self) -> str:
    """The reason, in words."""
    words = {
      TWICE: 'is twice among the candidates',
      SPELLING: id_spellings.COLLIDES,
      CANARY: 'has the name of a canary of this run',
    }.get(self.reason)
    if words is None:
      words = self.gate.sentence(self.reason, self.last_round, self.participations)
    return f'device {messages.quoted(self.device_id)} {words}'


@dataclasses.dataclass(frozen=True, eq=False)
class Admission:
  """The cohort of a round.

  Attributes:
    column: the admitted devices, as the log has them.
    ids: the admitted devices, where the log has names of them, or canaries too; None where it has
      their ids.
    canaries: numbers of the canaries beside them.
  """

  round_index: int
  column: pa.Array
  turned_away: tuple[TurnedAway, ...] = ()
  ids: pa.Array | None = None
  canaries: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))

  @functools.cached_property
  def device_ids(self) -> np.ndarray:
    """The admitted devices, as text or int64."""
    return id_columns.as_numpy(self.column if self.ids is None else self.ids)

  @property
  def _counts(self) -> str:
    """How many were turned away by each reason, in words."""
    reasons = collections.Counter(device.reason for device in self.turned_away)
    return ', '.join(f'{count} by {reason}' for reason, count in sorted(reasons.items()))

  def check_size(self, at_least: int) -> None:
    """Raises ValueError if fewer may take part than a round is to have."""
    if len(self.column) < at_least:
      away = f' ({self._counts})' if self.turned_away else ''
      raise ValueError(
        f'at_least={at_least}: only {len(self.column)} may take part in round'
        f' {self.round_index}{away}; nothing was recorded, so wait or end the run'
      )

  def check_whole(self, least: int) -> None:
    """Raises ValueError if a candidate may not take part, or there are fewer than needed."""
    if self.turned_away:
      raise ValueError(
        f'device_ids: {len(self.turned_away)} may not take part in round {self.round_index}'
        f' ({self._counts}); admissible(device_ids) leaves them out'
      )
    if len(self.column) < least:
      raise ValueError(f'device_ids: {least} updates need as many devices, got {len(self.column)}')

  def beside(self, claim: run_claim.Claim, run: str, gate: Any) -> 'Admission':
    """Returns a cohort of devices with the canaries whose turn the round is."""
    if claim.canaries is None or not len(self.column):
      return self
    every = claim.canaries.ids(run, self.column.type)
    numbers = claim.canaries.numbers(self.round_index, claim.participation)
    ids = every.take(pa.array(numbers))
    allowed = gate.reasons(ids.to_numpy(zero_copy_only=False)) == ''
    column = pa.concat_arrays([self.column, ids.filter(pa.array(allowed))])
    return dataclasses.replace(self, column=column, ids=self.column, canaries=numbers[allowed])


def admit(
  gate: gates.Gate,
  device_ids: id_columns.Ids,
  *,
  at_most: int | None = None,
  spellings: Sequence[id_spellings.RecordedSpellings] = (),
  canaries: pa.Array | None = None,
) -> Admission:
  """Returns who may take part in the next round; records nothing.

  Args:
    gate: the gate of the participation.
    device_ids: candidates.
    at_most: size of the cohort; further candidates are left out, and are not among those turned
      away.
    spellings: those of the log, and of other logs, which take no other spelling of an id.
    canaries: ids of canaries, which no candidate may have.
  """
  t, column = gate.seen.num_rounds, id_columns.column(device_ids)
  ids = column.to_numpy(zero_copy_only=False)
  if not ids.size:
    return Admission(t, column)
  reasons = gate.reasons(ids)
  if len(set(ids.tolist())) < ids.size:
    codes = column.dictionary_encode().indices.to_numpy()  # In the order of first occurrences.
    again = np.diff(np.maximum.accumulate(codes), prepend=-1) == 0
    reasons = np.where(again, TWICE, reasons)
  if canaries is not None:
    is_taken = pc.is_in(column, value_set=canaries).to_numpy(zero_copy_only=False)
    reasons = np.where(is_taken, CANARY, reasons)
  spelt = spellings or [id_spellings.RecordedSpellings()]
  for most in dict.fromkeys((None, at_most)):  # Who is left out may tell how others are spelt.
    admitted = np.flatnonzero(reasons == '')[:most]
    some = column.take(pa.array(admitted))
    while (collisions := np.any([each.collisions(some) for each in spelt], axis=0)).any():
      reasons = reasons.astype(object)
      reasons[admitted[collisions]] = SPELLING
      admitted = np.flatnonzero(reasons == '')[:most]
      some = column.take(pa.array(admitted))
  if admitted.size == ids.size:
    return Admission(t, column)
  allowed, end = reasons == '', ids.size
  if at_most is not None and (rest := np.flatnonzero(allowed)[at_most:]).size:
    end = int(rest[0])
  away = np.flatnonzero(~allowed[:end])
  last, times = gate.seen.of(ids[away])
  columns = (values.tolist() for values in (ids[away], reasons[away], last, times))
  turned_away = (TurnedAway._make((*row, gate)) for row in zip(*columns, strict=True))
  return Admission(t, column.take(admitted), tuple(turned_away))
