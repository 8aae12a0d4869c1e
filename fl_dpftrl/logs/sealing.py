"""Seals of ledgers: no round may follow in the log of a run that is over for ever."""

import contextlib
import os
from collections.abc import Callable

from fl_dpftrl.logs import ledger_format
from fl_dpftrl.support.files import durable, mark

SEALED = 'the run is over for ever, as its population was told'
"""Why no round may follow in a sealed log."""


def seal(log: str | os.PathLike[str], check: Callable[[ledger_format.State], None]) -> None:
  """Lets no further round be recorded in a log, durably.

  Args:
    check: called with the state of its ledger before that; what it raises leaves all as it was.

  Raises:
    ValueError: if a process has it open.
    LogError: for a ledger that is damaged.
    OSError: if it cannot be written, or is not there.
  """
  file, marked = ledger_format.path_of(log), ledger_format.mark_of(log)
  with durable.exclusive(marked), ledger_format.in_one_line(file):
    with contextlib.closing(ledger_format.connected(file)) as database:
      state = ledger_format.read(file, database, mark.read(marked))
      check(state)
      if not state.is_sealed:
        database.execute('BEGIN IMMEDIATE')
        ledger_format.write_claim(database, state.claim, state.run, is_sealed=True)
        database.execute('COMMIT')
