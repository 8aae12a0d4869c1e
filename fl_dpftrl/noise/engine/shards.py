"""A row in slices, each made by a process of its own, here or elsewhere.

A slice's recurrence needs no other slice, so workers hold nothing in common, and
what travels is their part of each row. The rows are those that one process would
make. Workers and runs prove to each other that they have certificates of the same
authority, and everything is encrypted. Their messages are in `wire`, and the
workers' side is in `slices`.

Source: McKenna 2024 (scaling BandMF), section 3.3.
"""

import contextlib
import math
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fl_dpftrl import addresses, json_files, messages
from fl_dpftrl.noise.engine import certificates as certificates_lib
from fl_dpftrl.noise.engine import draws, slices, source, wire

TIMEOUT_SECONDS = 3600.0
"""How long a worker may give no sign, unless another time is given."""

# How long a worker that is being started anew is waited for.
_PATIENCE_SECONDS = 10.0
_PAUSE_SECONDS = 0.2
_CLOSE_SECONDS = 1.0
_CHANNEL_OPTIONS = [
  ('grpc.max_receive_message_length', wire.MOST_BYTES),
  ('grpc.max_send_message_length', wire.MOST_BYTES),
  ('grpc.min_reconnect_backoff_ms', 10_000),  # The time for a handshake, too.
  ('grpc.use_local_subchannel_pool', 1),
  ('grpc.enable_retries', 0),
  ('grpc.enable_http_proxy', 0),
  # Notices a machine that is gone, after about a minute.
  ('grpc.keepalive_time_ms', 60_000),
  ('grpc.keepalive_timeout_ms', 20_000),
  ('grpc.http2.max_pings_without_data', 0),
]


class _Call:
  """One call of gRPC, with the rows of one slice.

  Args:
    address: address of the worker.
    certificates: of the run.
    first: messages that describe the slice.
  """

  def __init__(
    self,
    address: addresses.Address,
    certificates: certificates_lib.Certificates,
    first: Sequence[bytes],
  ):
    grpc = slices.import_grpc()
    authority, key, certificate = certificates.contents()
    self._channel = grpc.secure_channel(
      str(address), grpc.ssl_channel_credentials(authority, key, certificate), _CHANNEL_OPTIONS
    )
    self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    for message in first:
      self._requests.put(message)
    method = self._channel.stream_stream(f'/{wire.SERVICE}/{wire.METHOD}')
    self._answers = method(iter(self._requests.get, None))
    self._has_ended = threading.Event()
    self._answers.add_done_callback(lambda _: self._has_ended.set())

  def send(self, message: bytes) -> None:
    self._requests.put(message)

  def answer(self) -> bytes:
    """The next message.

    Raises:
      grpc.RpcError: where the call has failed.
      EOFError: where the worker has ended it.
    """
    for message in self._answers:
      return message
    raise EOFError('the worker ended the call')

  def cancel(self) -> None:
    """Ends all waiting for the worker, from any thread."""
    self._answers.cancel()

  def close(self, seconds: float) -> None:
    """Ends the call, which the worker may take a time for to end in order."""
    self._requests.put(None)
    self._has_ended.wait(seconds)
    self._channel.close()


class _Watch:
  """Cancels a call whose worker gives no sign for too long.

  Attributes:
    has_rung: whether it did.
  """

  def __init__(self, call: _Call, seconds: float):
    self._call, self._seconds = call, seconds
    self._last = time.monotonic()
    self._end = threading.Event()
    self.has_rung = False

  def sign(self) -> None:
    self._last = time.monotonic()

  def __enter__(self) -> '_Watch':
    threading.Thread(target=self._run, daemon=True).start()
    return self

  def __exit__(self, *_: Any) -> None:
    self._end.set()

  def _run(self) -> None:
    while (left := self._last + self._seconds - time.monotonic()) > 0:
      if self._end.wait(left):
        return
    self.has_rung = True
    self._call.cancel()


class _Shard:
  """One worker's slice, as seen by the process that requests it.

  Args:
    address: address of the worker.
    certificates: of the run.
    where: position of the slice in a whole row.
    described: messages that describe the slice.
    timeout: how many seconds the worker may give no sign.
  """

  def __init__(
    self,
    address: addresses.Address,
    certificates: certificates_lib.Certificates,
    where: slice,
    described: Sequence[bytes],
    timeout: float,
  ):
    self._address, self._certificates = address, certificates
    self._where, self._described, self._timeout = where, described, timeout
    self._call: _Call | None = None
    self._asked: int | None = None

  def ask(self, row: int, used: int) -> None:
    """Requests a row, unless it was requested before and not yet taken."""
    if self._call is not None and self._asked == row:
      return
    if self._call is None or self._asked is not None:
      self.disconnect()
      self._call = _Call(self._address, self._certificates, self._described)
    self._call.send(wire.encode_request(wire.Request(row, used)))
    self._asked = row

  def take(self, out: np.ndarray) -> float:
    """Writes the requested row's slice; returns its standard deviation."""
    call = self._call
    if call is None:
      raise ConnectionError(f'the noise worker at {self._address} is not asked')
    with _Watch(call, self._timeout) as watch, self._telling(watch):
      stddev = self._receive(call, watch, out[self._where])
    self._asked = None
    return stddev

  def _receive(self, call: _Call, watch: _Watch, part: np.ndarray) -> float:
    made: wire.Made | None = None
    reached, filled = -1, 0
    while made is None or filled < part.size:
      answer = wire.decode_answer(call.answer())
      if isinstance(answer, wire.Failed) and made is None:
        self._asked = None
        raise RuntimeError(f'the noise worker at {self._address} failed: {answer.line}')
      if isinstance(answer, wire.Working) and made is None:
        if answer.row > reached:
          watch.sign()
          reached = answer.row
      elif isinstance(answer, wire.Made) and made is None and answer.size == part.size:
        made = answer
      elif isinstance(answer, np.ndarray) and made and answer.size <= part.size - filled:
        part[filled : filled + answer.size] = answer
        filled += answer.size
        watch.sign()
      else:
        raise ValueError(f'{type(answer).__name__} is not what comes next')
    return made.stddev

  @contextlib.contextmanager
  def _telling(self, watch: _Watch) -> Iterator[None]:
    """Names the worker in errors."""
    grpc = slices.import_grpc()
    try:
      yield
    except ValueError as error:
      self.disconnect()
      raise RuntimeError(
        f'the noise worker at {self._address} does not answer as one: {error}'
      ) from error
    except (grpc.RpcError, EOFError) as error:
      self.disconnect()
      if watch.has_rung:
        raise RuntimeError(
          f'the noise worker at {self._address} gave no sign for {self._timeout:g} s,'
          ' the worker timeout: start it again, or allow more time, and resume'
        ) from error
      reason = messages.one_line(
        error.details() if isinstance(error, grpc.Call) else str(error), 120
      )
      if 'CERTIFICATE_VERIFY_FAILED' in str(error) or 'Peer name' in str(error):
        raise RuntimeError(
          f'the noise worker at {self._address} has a certificate of another authority, for'
          f' another name, or an expired one ({reason}): give both the same authority'
        ) from error
      raise ConnectionError(
        f'the noise worker at {self._address} is not there, or refuses this certificate'
        f' ({reason}): start it with certificates of the same authority, and resume'
      ) from error

  def interrupt(self) -> None:
    """Ends all waiting for the worker, from another thread."""
    call = self._call
    if call is not None:
      call.cancel()

  def disconnect(self) -> None:
    if self._call is not None:
      self._call.close(_CLOSE_SECONDS if self._asked is None else 0.0)
    self._call = self._asked = None


class ShardedSource:
  """Rows whose slices workers make, all at the same time.

  Args:
    workers: host:port of each. Of more than there are chunks, the first are not needed.
    certificates: those of a run.
    recipe: arguments of `RowMaker`.
    snapshot_rows: rows between two snapshots that workers write.
    timeout: how many seconds a worker may give no sign while its row is waited for. Each row
      that it makes on its way, and each part of a row that arrives, is a sign.

  Raises:
    ValueError: for arguments that will not do, and where gRPC is not installed.
  """

  def __init__(
    self,
    workers: Sequence[str],
    certificates: certificates_lib.Certificates | None,
    recipe: json_files.Object,
    snapshot_rows: int,
    timeout: float = TIMEOUT_SECONDS,
  ):
    if certificates is None:
      raise ValueError('worker_certificates are missing: name those that the noise workers accept')
    check_timeout('worker_timeout', timeout)
    slices.import_grpc()
    found = addresses.parse_all(workers)
    num_chunks = -(-recipe['size'] // draws.CHUNK)
    bounds = [num_chunks * i // len(found) for i in range(len(found) + 1)]
    strategy, arrays = wire.pack(recipe['strategy'])
    array_messages = list(wire.array_messages(arrays))
    self._shards = []
    for address, first, last in zip(found, bounds, bounds[1:]):
      where = slice(first * draws.CHUNK, min(last * draws.CHUNK, recipe['size']))
      if first < last:
        of_slice = wire.Slice(
          strategy=strategy,
          arrays_bytes=len(arrays),
          row_size=recipe['size'],
          first_chunk=first,
          size=where.stop - where.start,
          num_rounds=recipe['num_rounds'],
          stddev=float(recipe['stddev']),
          seed=recipe['seed'],
          memory=recipe['memory'],
          precision=recipe['precision'],
          snapshot_rows=snapshot_rows,
          made_by=slices.versions(),
        )
        described = [of_slice.encode(), *array_messages]
        self._shards.append(_Shard(address, certificates, where, described, timeout))
    self._closing = False

  def make(self, row: int, out: np.ndarray, used: int) -> float:
    """See `source.Source`. A worker that is started anew is asked again.

    Raises:
      RuntimeError: if a worker cannot be reached, gives no sign, or says that it failed.
    """
    give_up = None
    taken: dict[_Shard, float] = {}
    while True:
      try:
        left = [shard for shard in self._shards if shard not in taken]
        for shard in left:
          shard.ask(row, used)
        for shard in left:
          if self._closing:
            raise source.Abandoned
          taken[shard] = shard.take(out)
        return taken[self._shards[0]]
      except ConnectionError as error:
        if self._closing:
          raise source.Abandoned from error
        give_up = give_up or time.monotonic() + _PATIENCE_SECONDS
        if time.monotonic() > give_up:
          raise RuntimeError(str(error)) from error
      time.sleep(_PAUSE_SECONDS)

  def abandon(self) -> None:
    """See `source.Source`; the workers finish the row that they are at."""
    self._closing = True
    for shard in self._shards:
      shard.interrupt()

  def close(self) -> None:
    """See `source.Source`."""
    for shard in self._shards:
      shard.disconnect()
    self._closing = False


def check_timeout(name: str, seconds: float) -> None:
  """Raises ValueError unless a time is one that can be waited for."""
  if not 0.0 < seconds <= threading.TIMEOUT_MAX or math.isnan(seconds):
    raise ValueError(f'{name} must be a number of seconds above 0, got {seconds!r}')
