"""Files of logs for tests, and what is read from them."""

import io
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fl_dpftrl.logs import participation_log, refusals

HEAD = b'round,device_id\n'


def written(path: pathlib.Path, content: bytes | str | dict | pa.Table, **metadata) -> pathlib.Path:
  """Writes a file; columns as Parquet with metadata."""
  path.parent.mkdir(parents=True, exist_ok=True)
  if isinstance(content, dict | pa.Table):
    table = content if isinstance(content, pa.Table) else pa.table(content)
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(metadata or table.schema.metadata), sink)
    content = sink.getvalue()
  path.write_bytes(content.encode() if isinstance(content, str) else content)
  return path


def rows(path, **kwargs) -> list[tuple]:
  """Returns the rows of a log in their order."""
  log = participation_log.read_log(path, **kwargs)
  return [tuple(row.values()) for table in log.tables() for row in table.to_pylist()]


def refusal(path, **kwargs) -> str:
  """Returns the one line that a log is refused with, which begins with the file's name."""
  with pytest.raises(refusals.LogError) as raised:
    rows(path, **kwargs)
  line = str(raised.value)
  assert len(line) <= 300 and line.isprintable() and line.startswith(str(path))
  return line
