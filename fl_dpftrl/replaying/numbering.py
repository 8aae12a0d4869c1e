"""Numbers of rounds, counted across the runs that are replayed together."""

import pyarrow as pa
import pyarrow.compute as pc


def numbered(table: pa.Table, first_round: int) -> pa.Table:
  """Returns the table of a log with its rounds counted from first_round on."""
  if not first_round:
    return table
  rounds = pc.add(table.column('round'), first_round)
  return table.set_column(0, 'round', rounds)
