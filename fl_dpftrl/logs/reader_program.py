"""Program that reads untrusted files for another process, and the messages between the two.

The libraries that decode Parquet, CSV and JSON can crash, hang or exhaust memory on
files that are damaged or malicious. Here such a file ends this program alone, which has limits
on memory and computing time.
"""

import enum
import gzip
import json
import os
import resource
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.files import json_files
from fl_dpftrl.logs import journal, limits, lines, parquet, refusals, rows
from fl_dpftrl.logs import layout as layout_lib

_HEADER = struct.Struct('<BQ')
_MOST = 1 << 32  # bytes of a message; a batch of the longest ids is far smaller
_SENT_ROWS = 1 << 17
# Each thread takes address space, whether it uses it or not.
_MAX_THREADS = 4


class Kind(enum.IntEnum):
  """The kind of a message's content."""

  REQUEST = 1  # JSON, and a descriptor with it
  SCHEMA = 2  # of Arrow, with the file's metadata
  BATCH = 3  # of Arrow, with the last schema
  LAST_ROUND = 4  # JSON, of some rows
  END = 5  # nothing
  REFUSED = 6  # text: why the file cannot be believed


def send(channel: socket.socket, kind: Kind, payload: Any = b'') -> None:
  """Sends a message; `payload` is anything that holds bytes."""
  payload = memoryview(payload)
  channel.sendall(_HEADER.pack(kind, payload.nbytes))
  if payload.nbytes:
    channel.sendall(payload)


def receive(channel: socket.socket) -> tuple[Kind, bytearray]:
  """Receives a message.

  Raises:
    EOFError: if the other side is gone.
    TimeoutError: if the channel's timeout has passed.
  """
  kind, size = _HEADER.unpack(_exactly(channel, _HEADER.size))
  if size > _MOST:
    raise EOFError(f'a message of {size} bytes')
  return Kind(kind), _exactly(channel, size)


def _exactly(channel: socket.socket, size: int) -> bytearray:
  result = bytearray(size)
  view = memoryview(result)
  while view:
    count = channel.recv_into(view)
    if not count:
      raise EOFError('the other side is gone')
    view = view[count:]
  return result


def send_request(channel: socket.socket, request: json_files.Object, descriptor: int) -> None:
  """Sends a request with an open file."""
  send(channel, Kind.REQUEST, json.dumps(request).encode())
  socket.send_fds(channel, [b'f'], [descriptor])


class Reader(Protocol):
  """A log file that is open for reading.

  Attributes:
    metadata: the file's own keys and values, without digests; none for CSV and JSON lines.
    schema: schema of its rows once they are checked: `round`, int64, `device_id`, large_string,
      int64 or, if the file has none, null, and `timestamp` where it was asked for.
  """

  metadata: dict[str, str]
  schema: pa.Schema

  def tables(self) -> Iterator[pa.Table]:
    """Yields the file's rows in order, unchecked, as `rows.checked` takes them."""


_LINES: dict[str, Callable[..., Reader]] = {
  '.csv': lines.Csv,
  '.tsv': lines.Csv,
  '.jsonl': lines.JsonLines,
  '.ndjson': lines.JsonLines,
  '.json': lines.JsonLines,
}
_PARQUET, _GZIP = '.parquet', '.gz'
FORMATS = (_PARQUET, *_LINES)
"""Endings of the names of logs, besides those that are packed or still written."""

SUFFIXES = (*FORMATS, *(suffix + _GZIP for suffix in _LINES), journal.SUFFIX)
"""Endings of the names of logs."""


def suffix_of(path: str) -> str:
  """Returns the ending of a name that says its format, such as .csv.gz."""
  stem, suffix = os.path.splitext(path)
  return os.path.splitext(stem)[1] + suffix if suffix == _GZIP else suffix


def main(descriptor: int) -> None:
  """Answers requests until there are no more.

  Args:
    descriptor: descriptor of the channel that requests come from.
  """
  # An interrupt is for the other process, which ends this one.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  pa.set_cpu_count(min(_MAX_THREADS, len(os.sched_getaffinity(0))))
  pa.set_io_thread_count(1)
  _lower(resource.RLIMIT_CORE, 0)
  _lower(resource.RLIMIT_AS, limits.MEMORY)
  channel = socket.socket(fileno=descriptor)
  while True:
    try:
      _, request = receive(channel)
    except EOFError:  # No more of them.
      return
    _, (file, *_), _, _ = socket.recv_fds(channel, 1, 1)
    try:
      _answer(channel, json.loads(request), file)
    except refusals.LogError as e:
      send(channel, Kind.REFUSED, str(e).encode())
    finally:
      os.close(file)
    pa.default_memory_pool().release_unused()  # The next file gets it all.


def _answer(channel: socket.socket, request: json_files.Object, descriptor: int) -> None:
  """Answers a request to its end."""
  path = request['path']
  try:
    # Opened again, it has a position of its own.
    with open(f'/proc/self/fd/{descriptor}', 'rb') as file:
      _grant_time()
      _send_log(channel, request, file)
  except (refusals.LogError, BrokenPipeError):
    raise
  except MemoryError as e:
    raise refusals.LogError(
      f'{path}: takes more than {limits.MEMORY >> 30} GiB of memory to read; it'
      ' is damaged, or made to take much'
    ) from e
  except Exception as e:
    # The libraries raise many kinds for files that are damaged.
    raise refusals.LogError(f'{path}: cannot be read, {e}') from e
  send(channel, Kind.END)


def _send_log(channel: socket.socket, request: json_files.Object, file: BinaryIO) -> None:
  """Sends metadata and schema, and then the checked rows, or their last rounds, as requested."""
  reader, layout = _reader(request, file), layout_lib.Layout(*request['layout'])
  send(channel, Kind.SCHEMA, reader.schema.with_metadata(reader.metadata).serialize())
  if request['wanted'] == 'head':
    return
  first_row = 1
  for table in reader.tables():
    flat = rows.checked(
      request['path'],
      table,
      reader.schema.field('device_id').type,
      num_rounds=request['num_rounds'],
      first_round=layout.first_round,
      first_row=first_row,
    )
    first_row += table.num_rows
    if request['wanted'] == 'rows':
      for batch in flat.to_batches(max_chunksize=_SENT_ROWS):
        send(channel, Kind.BATCH, batch.serialize())
    elif table.num_rows:
      last_round = pc.max(table.column('round')).as_py() - layout.first_round
      send(channel, Kind.LAST_ROUND, json.dumps(last_round).encode())
    _grant_time()


def _reader(request: json_files.Object, file: BinaryIO) -> Reader:
  """Opens a file in the format that its name says."""
  path, layout = request['path'], layout_lib.Layout(*request['layout'])
  suffix = suffix_of(path)
  if suffix == journal.SUFFIX:
    return journal.Reader(path, file, request['size'])
  if suffix == _PARQUET:
    return parquet.Reader(path, file, layout, timestamps=request['timestamps'])
  if suffix.endswith(_GZIP):
    file = cast(BinaryIO, gzip.GzipFile(fileobj=file))
  return _LINES[suffix.removesuffix(_GZIP)](path, file, layout)


def _grant_time() -> None:
  """Allows another portion of computing time, starting now."""
  used = resource.getrusage(resource.RUSAGE_SELF)
  _lower(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + limits.PART_CPU_SECONDS)


def _lower(kind: int, limit: int) -> None:
  """Sets a limit, at most the hard limit, which cannot be raised."""
  _, hard = resource.getrlimit(kind)
  if hard != resource.RLIM_INFINITY:
    limit = min(limit, hard)
  resource.setrlimit(kind, (limit, hard))
