"""Seals of ledgers: no round may follow in a log whose losses a later run counted."""

import contextlib
import os

from fl_dpftrl.logs import ledger_format, refusals
from fl_dpftrl.support.files import durable, mark

SEALED = 'a later run counted its losses, so that no round may follow'
"""Why no round may follow in a sealed log."""


def seal(log: str | os.PathLike[str], head: str) -> None:
  """Lets no further round be recorded in a log, durably; one without a ledger has none anyway.

  Args:
    head: chained digest of its rounds, in hexadecimal.

  Raises:
    ValueError: if a process has it open, and for a log that has other rounds.
    OSError: if it cannot be written.
  """
  file, marked = ledger_format.path_of(log), ledger_format.mark_of(log)
  if not file.exists():
    return
  with durable.exclusive(marked), ledger_format.in_one_line(file):
    with contextlib.closing(ledger_format.connected(file)) as database:
      state = ledger_format.read(file, database, mark.read(marked))
      if state.head.hex() != head:
        raise refusals.LogError(f'{file}: had further rounds meanwhile; open it again')
      if not state.is_sealed:
        database.execute('BEGIN IMMEDIATE')
        ledger_format.write_claim(database, state.claim, state.run, is_sealed=True)
        database.execute('COMMIT')
