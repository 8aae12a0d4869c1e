"""TLS in front of a local socket: who has no certificate never reaches the server behind.

Each connection proves itself within a limited time and begins as gRPC does; only then is it
passed on. Of handshakes that are not completed the oldest make room for new ones, so idle
connections keep nobody out. What is refused is one line, however often it happens at a time.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any, NoReturn, cast

_PREFACE = b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'  # with which a client of HTTP/2 begins
_HANDSHAKE_SECONDS = 10.0
_GATHER_SECONDS = 0.5
_PAUSE_SECONDS = 0.2
_MOST_HANDSHAKES = 64
_MOST_CONNECTIONS = 32
_BYTES = 2**18  # passed on at a time


class _Refused(Exception):
  """The connection is ended, for this reason."""


class Gate:
  """Passes connections with a certificate on to a Unix socket.

  Args:
    context: TLS of this side.
    inner: path of the Unix socket.
    say: told, in a line, who is refused and who is gone.
  """

  def __init__(self, context: ssl.SSLContext, inner: str, say: Callable[[str], None]):
    self._context, self._inner, self._say = context, inner, say
    self._handshakes: dict[asyncio.Task[None], str] = {}  # the oldest first
    self._tasks: set[asyncio.Task[None]] = set()  # of connections; a loop holds none itself
    self._connections = 0
    self._counts: dict[str, int] = {}

  async def serve(self, listener: socket.socket) -> NoReturn:
    """Passes connections on until it is cancelled."""
    listener.setblocking(False)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, about: self._note('a connection', about['message']))
    while True:
      try:
        connection, peer = await loop.sock_accept(listener)
      except OSError as error:  # No descriptor is free, or the other side has left.
        self._note('somebody', f'{error.strerror or error}')
        await asyncio.sleep(_PAUSE_SECONDS)
        continue
      while len(self._handshakes) >= _MOST_HANDSHAKES:
        oldest = next(iter(self._handshakes))
        host = self._handshakes.pop(oldest)
        oldest.cancel()
        self._note(host, f'more than {_MOST_HANDSHAKES} connections did not prove themselves')
      connection.setblocking(False)
      connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
      connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
      if hasattr(socket, 'TCP_KEEPIDLE'):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)
      task = loop.create_task(self._connection(connection, peer[0]))
      self._handshakes[task] = peer[0]
      self._tasks.add(task)
      task.add_done_callback(self._forget)
      await asyncio.sleep(0)  # Lets it begin, so that it also ends in order.

  def _forget(self, task: asyncio.Task[None]) -> None:
    self._tasks.discard(task)
    self._handshakes.pop(task, None)

  async def _connection(self, connection: socket.socket, host: str) -> None:
    """Checks a connection, and passes it on until it ends."""
    try:
      reader, writer = await asyncio.wait_for(self._greeted(connection), _HANDSHAKE_SECONDS)
    except (asyncio.TimeoutError, TimeoutError):
      self._note(host, f'it did not prove itself within {_HANDSHAKE_SECONDS:g} s')
      return
    except _Refused as error:
      self._note(host, str(error))
      return
    except (OSError, EOFError) as error:
      self._note(host, _reason(error))
      return
    self._handshakes.pop(cast(Any, asyncio.current_task()), None)
    self._connections += 1
    try:
      await self._pass_on(reader, writer)
    except OSError as error:
      self._note(host, str(error))
    finally:
      self._connections -= 1
      writer.transport.abort()
    self._say(f'{host} is gone')

  async def _greeted(
    self, connection: socket.socket
  ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Completes the handshake; what it returns begins with the preface."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_BYTES, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.connect_accepted_socket(
      lambda: protocol,
      connection,
      ssl=self._context,
      ssl_handshake_timeout=2 * _HANDSHAKE_SECONDS,  # Not before the limit around it.
    )
    try:
      if await reader.readexactly(len(_PREFACE)) != _PREFACE:
        raise _Refused('it has a certificate, and what it sent is not gRPC')
      if self._connections >= _MOST_CONNECTIONS:
        raise _Refused(f'{_MOST_CONNECTIONS} connections are open, the most there may be')
    except BaseException:
      transport.abort()
      raise
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

  async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    inner_reader, inner_writer = await asyncio.open_unix_connection(self._inner, limit=_BYTES)
    inner_writer.write(_PREFACE)
    ways = [
      asyncio.ensure_future(_copy(reader, inner_writer)),
      asyncio.ensure_future(_copy(inner_reader, writer)),
    ]
    try:
      await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
      if ways[1].done():  # What the server said last.
        with contextlib.suppress(OSError, asyncio.TimeoutError, TimeoutError):
          await asyncio.wait_for(writer.drain(), _HANDSHAKE_SECONDS)
    finally:
      for way in ways:
        way.cancel()
      inner_writer.close()

  def _note(self, host: str, reason: str) -> None:
    """Says why a connection was refused, once for all that are refused at the same time."""
    if reason in self._counts:
      self._counts[reason] += 1
      return
    self._counts[reason] = 1

    def say():
      count = self._counts.pop(reason)
      times = f' ({count} times)' if count > 1 else ''
      self._say(f'{host} was refused: {reason}{times}')

    asyncio.get_running_loop().call_later(_GATHER_SECONDS, say)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
  with contextlib.suppress(OSError):
    while content := await reader.read(_BYTES):
      writer.write(content)
      await writer.drain()


def _reason(error: Exception) -> str:
  if isinstance(error, ssl.SSLCertVerificationError):
    return f'its certificate will not do: {error.verify_message}'
  if isinstance(error, ssl.SSLError) and error.reason:
    return f'it is no run with a certificate: {error.reason.lower().replace("_", " ")}'
  return 'it left before it had proven itself'
