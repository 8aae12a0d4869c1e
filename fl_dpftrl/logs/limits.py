"""Limits on the claims of a log file and on the resources of its reader.

A log may be written by somebody else, damaged, or malicious. Honest logs stay far below these
limits; docs/log-format.md states them.
"""

FIELD_BYTES = 1 << 10
"""Of a device id, as UTF-8."""

LINE_BYTES = 1 << 16
"""Of a line of CSV or JSON lines."""

COHORT_BYTES = 1 << 24
"""Of a line of JSON lines that holds a list of device ids."""

COLUMNS = 1 << 10
"""Of a file."""

METADATA_BYTES = 1 << 20
"""Of all keys and values in the metadata of a file."""

ROUNDS = 10_000_000
"""Of a log."""

FREE_ROWS = 1 << 20
ROWS_PER_BYTE = 300
"""A Parquet file may claim FREE_ROWS and ROWS_PER_BYTE more for each byte."""

MEMORY = 2 << 30
"""Bytes of address space of the process that reads."""

PART_CPU_SECONDS = 20
"""Computing time of that process for a part of at most about a million rows."""

PART_SECONDS = 120
"""Time that is waited for a part."""


def max_rows(file_bytes: int) -> int:
  """Returns how many rows a Parquet file of this size may claim to have."""
  return FREE_ROWS + ROWS_PER_BYTE * file_bytes
