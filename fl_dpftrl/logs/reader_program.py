"""Program that reads untrusted files for another process.

The libraries that decode Parquet, CSV, JSON and pickles can crash, hang or exhaust memory on
files that are damaged or malicious. Here such a file ends this program alone, which has limits
on memory and computing time.
"""

import json
import os
import resource
import signal
import socket
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.files import json_files
from fl_dpftrl.logs import channel as channel_lib
from fl_dpftrl.logs import formats, limits, pickles, refusals
from fl_dpftrl.logs import layout as layout_lib

_SENT_ROWS = 1 << 17
# Each thread takes address space, whether it uses it or not.
_MAX_THREADS = 4

Kind = channel_lib.Kind


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
  while received := channel_lib.receive_request(channel):
    request, file = received
    try:
      _answer(channel, request, file)
    except refusals.LogError as e:
      channel_lib.send(channel, Kind.REFUSED, str(e).encode())
    pa.default_memory_pool().release_unused()  # The next file gets it all.


def _answer(channel: socket.socket, request: json_files.Object, descriptor: int) -> None:
  """Sends what a file holds: a pickle's values, or a log's metadata and rows as requested.

  Raises:
    LogError: for any fault of the file.
  """
  path = request['path']
  try:
    with channel_lib.reopened(descriptor) as file:
      _grant_time()
      if request['pickled']:
        channel_lib.send(channel, Kind.PLAIN, pickles.to_json(path, file))
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
  channel_lib.send(channel, Kind.END)


def _send_log(channel: socket.socket, request: json_files.Object, file: BinaryIO) -> None:
  path, layout = request['path'], layout_lib.Layout(*request['layout'])
  reader = formats.open_(path, file, request['columns'], request['size'], layout)
  said = {'metadata': reader.metadata, 'digest': reader.digest}
  channel_lib.send(channel, Kind.OPENED, json.dumps(said).encode())
  channel_lib.send(channel, Kind.SCHEMA, reader.schema.serialize())
  if request['rows']:
    _send_rows(channel, path, reader, request['num_rounds'], layout.first_round)


def _send_rows(
  channel: socket.socket,
  path: str,
  reader: formats.Reader,
  num_rounds: int | None,
  first_round: int,
) -> None:
  first_row = 1
  for table in reader.tables():
    table = _from_zero(path, table, first_round, first_row)
    refusals.check_rows(path, table, num_rounds, first_row)
    first_row += table.num_rows
    for batch in table.to_batches(max_chunksize=_SENT_ROWS):
      channel_lib.send(channel, Kind.BATCH, batch.serialize())
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
