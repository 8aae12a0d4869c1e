"""Reader of untrusted files, in another process that may crash safely.

docs/decisions/reading-logs.md says why and how.
"""

import contextlib
import hashlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from fl_dpftrl.files import json_files
from fl_dpftrl.logs import journal, limits, reader_program, refusals
from fl_dpftrl.logs import layout as layout_lib

_PROGRAM = (
  'import sys; sys.path[:] = sys.argv[2:]; from fl_dpftrl.logs import reader_program;'
  ' reader_program.main(int(sys.argv[1]))'
)
# Threads and arenas take address space, which is limited.
_ENVIRONMENT = {'MALLOC_ARENA_MAX': '2', 'OPENBLAS_NUM_THREADS': '1'}
_BUFFER = 1 << 20

Kind = reader_program.Kind


class Source:
  """A file that stays the same even if its name is given to another.

  A writer replaces a log by a new file of the same name. Metadata, rows and
  digest are all read through one descriptor, so that they belong to one file.
  A journal may grow meanwhile, and is read up to the size that it had.

  Attributes:
    path: name of the file.
    size: bytes that are read.
    layout: where the file has its columns.
  """

  def __init__(self, path: str, *, held: bool = True, layout: layout_lib.Layout = layout_lib.PLAIN):
    """Opens the file.

    Args:
      path: name of the file.
      held: whether the descriptor is kept. Otherwise the file is opened again for each use, and
        refused if it is another file by then.
      layout: where the file has its columns.
    """
    self.path, self.layout = path, layout
    descriptor = self._open()
    self.size = os.fstat(descriptor).st_size
    self._identity = self._identified(descriptor)
    self._held = descriptor if held else None
    if held:
      weakref.finalize(self, os.close, descriptor)
    else:
      os.close(descriptor)

  def _open(self) -> int:
    try:
      descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as e:
      raise refusals.LogError(f'{self.path}: cannot be read, {e.strerror}') from e
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
      os.close(descriptor)
      raise refusals.LogError(f'{self.path}: is no regular file')
    return descriptor

  def _identified(self, descriptor: int) -> tuple[int, ...]:
    state = os.fstat(descriptor)
    same = (state.st_dev, state.st_ino)
    grows = self.path.endswith(journal.SUFFIX)
    return same if grows else (*same, state.st_size, state.st_mtime_ns)

  @contextlib.contextmanager
  def opened(self) -> Iterator[int]:
    """Yields a descriptor for one use at a time; LogError if the file changes before its end."""
    descriptor = self._open() if self._held is None else self._held
    try:
      self._check(descriptor)
      yield descriptor
      self._check(descriptor)
    finally:
      if self._held is None:
        os.close(descriptor)

  def _check(self, descriptor: int) -> None:
    if self._identified(descriptor) != self._identity:
      raise refusals.LogError(f'{self.path}: was changed while it was read; replay it again')

  def sha256(self) -> str:
    """Returns the digest of the file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    offset = 0
    with self.opened() as descriptor:
      while block := os.pread(descriptor, min(_BUFFER, self.size - offset), offset):
        digest.update(block)
        offset += len(block)
    return digest.hexdigest()


class Reader:
  """Reads files in another process, which is reused for the next file."""

  def __init__(self):
    self._idle: _Process | None = None

  def open(self, source: Source, *, timestamps: bool = False) -> pa.Schema:
    """Returns the schema of a file's rows, with its metadata; LogError if it cannot be read."""
    (schema,) = self._answers(source, wanted='head', timestamps=timestamps)
    return schema

  def tables(
    self, source: Source, num_rounds: int | None, *, timestamps: bool = False
  ) -> Iterator[pa.Table]:
    """Yields checked rows of a file in order, as at least one table.

    Args:
      source: the file.
      num_rounds: upper limit that all rounds must be below; None for no limit.
      timestamps: whether the column `timestamp` of a Parquet file is read too.
    """
    answers = self._answers(source, wanted='rows', num_rounds=num_rounds, timestamps=timestamps)
    schema, empty = next(answers), True
    for table in answers:
      empty = False
      yield table
    if empty:
      yield schema.empty_table()

  def last_round(self, source: Source) -> int:
    """Returns the last round of any cohort, also of an empty one; −1 for a file without any."""
    _, *rounds = self._answers(source, wanted='last_round', timestamps=False)
    return max(rounds, default=-1)

  def _answers(self, source: Source, **request: Any) -> Iterator[Any]:
    process, self._idle = self._idle, None
    if process is None or not process.serves_this_process():
      process = _Process()
    try:
      with source.opened() as descriptor:
        own = {'path': source.path, 'layout': list(source.layout), 'size': source.size}
        yield from process.answers({'num_rounds': None, **own, **request}, descriptor)
    finally:  # This also runs if the caller does not want the remaining tables.
      if process.ready and self._idle is None:
        self._idle = process
      else:
        process.stop()


class _Process:
  """A process that reads one file after another.

  Attributes:
    ready: whether it has answered the last request to its end.
  """

  def __init__(self):
    self.ready = True
    self._channel, theirs = socket.socketpair()
    with theirs:
      for end in (self._channel, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
      self._process = subprocess.Popen(
        [sys.executable, '-I', '-c', _PROGRAM, str(theirs.fileno()), *sys.path],
        env={**os.environ, **_ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
      )
    self._channel.settimeout(limits.PART_SECONDS)
    self._owner = os.getpid()
    self.stop = weakref.finalize(self, _stop, self._owner, self._process, self._channel)

  def serves_this_process(self) -> bool:
    """Returns whether it runs, and was not inherited by a fork."""
    return self._owner == os.getpid() and self._process.poll() is None

  def answers(self, request: json_files.Object, descriptor: int) -> Iterator[Any]:
    """Yields a log's schema, and then the tables or last rounds that were requested."""
    path = request['path']
    self.ready = False
    try:
      reader_program.send_request(self._channel, request, descriptor)
      while True:
        kind, payload = reader_program.receive(self._channel)
        self.ready = kind in (Kind.END, Kind.REFUSED)
        if kind == Kind.END:
          return
        if kind == Kind.REFUSED:
          raise refusals.LogError(payload.decode())
        if kind == Kind.LAST_ROUND:
          yield json.loads(payload)
        elif kind == Kind.SCHEMA:
          schema = pa.ipc.read_schema(pa.py_buffer(payload))
          yield schema
          schema = schema.remove_metadata()
        else:
          batch = pa.ipc.read_record_batch(pa.py_buffer(payload), schema)
          yield pa.Table.from_batches([batch])
    except TimeoutError as e:
      raise refusals.LogError(f'{path}: nothing was read of it for {limits.PART_SECONDS} s') from e
    except (EOFError, ConnectionError) as e:
      raise refusals.LogError(f'{path}: {self._why_it_ended()}') from e

  def _why_it_ended(self) -> str:
    status = self._process.wait()
    if status == -signal.SIGXCPU:
      return (
        f'a part takes more than {limits.PART_CPU_SECONDS} s of computing to'
        ' read; it is damaged, or made to take long'
      )
    if status == -signal.SIGKILL:
      return 'what read it was killed, as happens where memory is short'
    if status < 0:
      name = signal.Signals(-status).name
      return f'crashed what read it ({name}); it is damaged, or made to do so'
    return f'the program that reads it ended with status {status}'


def _stop(owner: int, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
  channel.close()
  if os.getpid() != owner:  # A fork inherited it; the owner may be reading.
    return
  process.kill()
  process.wait()
