"""Messages between a process and the one that reads files for it."""

import enum
import json
import os
import socket
import struct
from typing import Any

from fl_dpftrl.files import json_files

_HEADER = struct.Struct('<BQ')
_MOST = 1 << 32  # bytes of a message; a batch of the longest ids is far smaller


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
  payload = json.dumps(request).encode()
  header = _HEADER.pack(Kind.REQUEST, len(payload))
  socket.send_fds(channel, [header], [descriptor])
  channel.sendall(payload)


def receive_request(channel: socket.socket) -> tuple[json_files.Object, int] | None:
  """Receives a request and its file's descriptor; None at the channel's end."""
  header, descriptors, _, _ = socket.recv_fds(channel, _HEADER.size, 1)
  if not header:
    return None
  header = bytearray(header)
  header += _exactly(channel, _HEADER.size - len(header))
  _, size = _HEADER.unpack(header)
  payload = _exactly(channel, size)
  return json.loads(payload), descriptors[0]


def reopened(descriptor: int):
  """Opens a descriptor's file with a position of its own; closes the other."""
  try:
    return open(f'/proc/self/fd/{descriptor}', 'rb')
  finally:
    os.close(descriptor)
