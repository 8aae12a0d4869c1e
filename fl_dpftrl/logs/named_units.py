"""Tables of units with random names in place of ids, so that devices and owners can be erased.

The table of a run is in its folder. A given table of ids only adds rows to it, so that it stays the
one that the log cites, whatever was erased since, in the given table too.
"""

import pathlib

import numpy as np
import pyarrow as pa

from fl_dpftrl.logs import pseudonyms, refusals, unit_tables


def extended(
  names: pseudonyms.Names, units: unit_tables.UnitTable, path: pathlib.Path, num_rounds: int
) -> unit_tables.UnitTable:
  """Returns the table of names of a run with the further rows of a table of ids, durably.

  Rows of erased devices are left out, as none of them takes part again. A device of an erased owner
  gets one whom no id has, so that it takes no part from the round of that row on.

  Args:
    names: names of all ids, of which new ones are durable before the table.
    units: the table of ids; rows of erased ones may be missing.
    path: the table of names, which a run with rounds has.
    num_rounds: rounds that were begun.

  Raises:
    LogError: for a table that lacks rows of before, a further row of a round that was begun, and a
      table of names that is gone.
  """
  if num_rounds and not path.exists():
    raise refusals.LogError(f'{path}: is gone; put it back')
  ids = [*units.device_ids.to_pylist(), *units.unit_ids.to_pylist()]
  named, size = names.named(ids), len(units)
  rows = list(zip(named[:size], named[size:], units.from_rounds.tolist()))
  pairs = [row[:2] for row in rows if None not in row]
  if len(set(pairs)) < len(pairs):
    raise refusals.LogError(
      f'{units.path}: has device and unit of an earlier row, in another spelling of a number'
    )
  recorded: list[tuple[str, str, int]] = []
  if path.exists():
    table = unit_tables.opened(path)
    columns = table.device_ids, table.unit_ids, table.from_rounds
    recorded = list(zip(*(column.tolist() for column in columns)))
  have_device = names.have_ids([row[0] for row in recorded])
  have_owner = names.have_ids([row[1] for row in recorded])
  unerased = [row for row, *pair in zip(recorded, have_device, have_owner) if all(pair)]
  if [row for row in rows if None not in row][: len(unerased)] != unerased:
    raise refusals.LogError(
      f'{units.path}: lacks rows of {path}, or has them in another order; rows are appended, and'
      ' never changed'
    )
  previous, num_recorded = set(unerased), len(recorded)
  # The round from which each device is turned away, as the id of an owner was erased.
  ends: dict[str, int] = {}
  for (device, _, t), has_owner in zip(recorded, have_owner):
    if not has_owner:
      ends[device] = min(t, ends.get(device, t))
  for place, (device, owner, t) in enumerate(rows, 1):
    if device is None or (device, owner, t) in previous:
      continue
    if owner is None:
      if ends.get(device, t + 1) <= t:
        continue
      (owner,), ends[device] = pseudonyms.new_names(1), t
    if t < num_rounds:
      raise refusals.LogError(
        f'{units.path}, row {place}: is of round {t}, and was not in the table that the log cites'
        f' up to round {num_rounds - 1}; append a row before its round begins'
      )
    recorded.append((device, owner, t))
  if not recorded:
    raise refusals.LogError(f'{units.path}: all of its ids were erased')
  devices, owners, rounds = zip(*recorded)
  text = pa.string()
  table = unit_tables.UnitTable(
    str(path), pa.array(devices, text), pa.array(owners, text), np.array(rounds, np.int64)
  )
  if len(table) > num_recorded:
    table.save(path)
  return table
