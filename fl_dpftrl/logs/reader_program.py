"""Program that reads untrusted files for another process, and the messages between the two.

The libraries that decode Parquet, CSV, JSON and pickles can crash, hang or exhaust memory on
files that are damaged or malicious. Here such a file ends this program alone, which has limits
on memory and computing time.
"""

import enum
import gzip
import json
import os
import pickle
import resource
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NoReturn, Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.files import json_files
from fl_dpftrl.logs import journal, limits, lines, parquet, refusals
from fl_dpftrl.logs import layout as layout_lib
from fl_dpftrl.text import messages

_HEADER = struct.Struct('<BQ')
_MOST = 1 << 32  # bytes of a message; a batch of the longest ids is far smaller
_SENT_ROWS = 1 << 17
# Each thread takes address space, whether it uses it or not.
_MAX_THREADS = 4


class Kind(enum.IntEnum):
  """The kind of a message's content."""

  REQUEST = 1  # JSON, and a descriptor with it
  OPENED = 2  # JSON
  SCHEMA = 3  # of Arrow
  BATCH = 4  # of Arrow, with the last schema
  END = 5  # nothing
  REFUSED = 6  # text: why the file cannot be believed
  PLAIN = 7  # JSON, of a pickle's values


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
    schema: schema of its tables: `round`, int64, `device_id`, large_string or int64, and
      `timestamp` where it was asked for.
  """

  metadata: dict[str, str]
  schema: pa.Schema

  def tables(self) -> Iterator[pa.Table]:
    """Yields the file's rows in order; text in them is not checked yet."""


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
  """Sends what a file holds: a pickle's values, or a log's metadata and rows as requested."""
  path = request['path']
  try:
    # Opened again, it has a position of its own.
    with open(f'/proc/self/fd/{descriptor}', 'rb') as file:
      _grant_time()
      if request['pickled']:
        send(channel, Kind.PLAIN, plain_json(path, file))
      else:
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
  reader, layout = _reader(request, file), layout_lib.Layout(*request['layout'])
  send(channel, Kind.OPENED, json.dumps(reader.metadata).encode())
  send(channel, Kind.SCHEMA, reader.schema.serialize())
  if request['rows']:
    _send_rows(channel, request['path'], reader, request['num_rounds'], layout.first_round)


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


def _send_rows(
  channel: socket.socket, path: str, reader: Reader, num_rounds: int | None, first_round: int
) -> None:
  first_row = 1
  for table in reader.tables():
    table = _from_zero(path, table, first_round, first_row)
    refusals.check_rows(path, table, num_rounds, first_row)
    first_row += table.num_rows
    for batch in table.to_batches(max_chunksize=_SENT_ROWS):
      send(channel, Kind.BATCH, batch.serialize())
    _grant_time()


def _from_zero(path: str, table: pa.Table, first_round: int, first_row: int) -> pa.Table:
  """Returns a table with its rounds counted from 0."""
  if not first_round:
    return table
  rounds = table.column('round')
  refusals.refuse_first(
    path,
    table,
    pc.less(rounds, first_round),
    f'round {{round}} is before --first_round={first_round}',
    first_row,
  )
  return table.set_column(0, table.schema.field(0), pc.subtract(rounds, first_round))


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


def plain_json(path: str, file: BinaryIO) -> bytes:
  """Returns the first object of a pickle as JSON in ASCII.

  The object consists of dictionaries, lists, tuples, numbers, text and None. Tuples become
  lists. Keys, which are numbers, text or None, become text.

  Args:
    path: path of the file, for messages.
    file: the file, of which no more than the object is needed.

  Raises:
    MemoryError: if there is not the memory to read it.
  """
  try:
    value = _Unpickler(file).load()
  except MemoryError:
    raise
  except _NotPlainError as error:
    raise _not_plain(path, error) from None
  # Corrupt bytes can raise nearly any exception.
  except Exception:
    raise refusals.LogError(f'{path} is no pickle, or is not whole') from None
  try:
    content = json.dumps(value).encode()
  except (TypeError, ValueError, RecursionError) as error:
    raise _not_plain(path, error) from None
  if len(content) > limits.PLAIN_BYTES:
    raise refusals.LogError(
      f'{path} is too large to be read: its values take {len(content)} bytes as JSON, of which'
      f' {limits.PLAIN_BYTES} is the most there may be'
    )
  return content


def _not_plain(path: str, error: Exception) -> refusals.LogError:
  return refusals.LogError(
    f'{path} holds more than plain containers and numbers, and is not read: {error}'
  )


class _NotPlainError(Exception):
  pass


class _Unpickler(pickle.Unpickler):
  """Python's reader without any class or function.

  Whatever calls something (REDUCE, INST, OBJ, NEWOBJ, EXT1) first has to find it here.
  """

  def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
    raise _NotPlainError(f'it names {messages.quoted(f"{module_name:.80}.{global_name:.80}")}')

  def persistent_load(self, pid: Any) -> NoReturn:
    raise _NotPlainError('it refers to an object outside the file')
