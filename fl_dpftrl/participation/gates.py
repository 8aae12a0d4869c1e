"""Gates: who may take part in the next round, by the earlier rounds of each device."""

import collections
from typing import Any

import numpy as np

from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.participation.counts import seen
from fl_dpftrl.support.text import messages

MAX_PARTICIPATIONS, MIN_SEP, BIN, OWN = 'max_participations', 'min_sep', 'bin', 'participation'


class Gate:
  """Base class of a gate: earlier rounds of each device decide whether it may take part.

  Attributes:
    seen: participation so far, as `seen.Seen` has it: `num_rounds`, `schema` and `of(device_ids)`.
  """

  seen: Any

  def reasons(self, device_ids: np.ndarray, rows: int = 1) -> np.ndarray:
    """Returns why each device, text or int64, may not have so many rows; '' where it may."""
    raise NotImplementedError

  def sentence(self, reason: str, last_round: int, participations: int) -> str:
    """Returns a reason in words, which follow the device; its last round is −1 without one."""
    raise NotImplementedError

  def record(self, device_ids: np.ndarray, rows: np.ndarray | None = None) -> None:
    """Records the devices of the next round, each once, with so many rows; with one if None."""
    raise NotImplementedError

  def clear(self) -> None:
    """Forgets all rounds."""
    raise NotImplementedError

  def share_with_budget(self) -> float | None:
    """Returns the share of the units so far that may have budget; None where none is metered."""
    return None


class MinSepGate(Gate):
  """A gate that admits devices by a schema and the rounds of each device, not by their rows.

  Args:
    schema: the schema, not a fixed separation.
    in_bins: whether devices are admitted again only after a multiple of min_sep rounds.
  """

  def __init__(self, schema: schemas.Schema, *, in_bins: bool = False):
    if isinstance(schema, schemas.Fixed):
      raise ValueError(f'schema must be a MinSep, got {messages.quoted(schema)}')
    self._schema = schema
    self._reason = BIN if in_bins else OWN if schema.is_own else MIN_SEP
    self.clear()

  def clear(self) -> None:
    self.seen = seen.Seen()
    self._rounds = collections.defaultdict[str | int, list[int]](list)  # Of each device.

  def reasons(self, device_ids: np.ndarray, rows: int = 1) -> np.ndarray:
    t, schema = self.seen.num_rounds, self._schema
    last, times = self.seen.of(device_ids)
    apart = t - last
    is_back = apart % schema.min_sep == 0 if self._reason == BIN else apart >= schema.min_sep
    allowed = (times == 0) | is_back
    # The bound rests on the separation too, and a first round may be refused.
    if schema.is_own:
      allowed &= [schema.allows(np.array([*self._rounds[i], t])) for i in device_ids.tolist()]
    often = times >= schema.participations
    return np.where(often, MAX_PARTICIPATIONS, np.where(allowed, '', self._reason))

  def record(self, device_ids: np.ndarray, rows: np.ndarray | None = None) -> None:
    for device_id in device_ids.tolist() if self._schema.is_own else ():
      self._rounds[device_id].append(self.seen.num_rounds)
    self.seen.add(device_ids)

  def sentence(self, reason: str, last_round: int, participations: int) -> str:
    schema = self._schema
    return {
      MAX_PARTICIPATIONS: f'took part {participations} times, and {schema.participations} are'
      ' declared',
      MIN_SEP: f'took part in round {last_round}, and min-sep {schema.min_sep} admits it again in'
      f' round {last_round + schema.min_sep}',
      OWN: f'took part in {participations} rounds, after which its participation does not admit it'
      ' yet',
      BIN: f'took part in round {last_round}, and its bin comes back only after multiples of'
      f' {schema.min_sep} rounds',
    }[reason]
