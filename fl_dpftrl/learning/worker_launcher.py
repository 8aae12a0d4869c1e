"""Program that becomes TFF's worker, tied to its parent, in a network of its own.

    python -IS worker_launcher.py PARENT PORT LISTENER REPORT PROGRAM ARGUMENT…

PARENT is the process whose death ends the worker. LISTENER is the descriptor of
a Unix or TCP socket whose connections are relayed to the worker's PORT, and REPORT that
of a pipe, which gets `isolated` or the reason why not, and stays open while the
relay lives. A LISTENER of -1 leaves the worker in the network of its parent.

Nothing here imports more than the standard library.
"""

import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys
import threading
import time

ISOLATED = b'isolated\n'
_PR_SET_PDEATHSIG = 1
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_RELAY_BYTES = 2**20
_POLL_SECONDS = 0.02


def _die_with(parent: int) -> None:
  """Asks Linux for SIGKILL on the parent's death, unless it died before."""
  if sys.platform == 'linux':
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
  if os.getppid() != parent:
    os._exit(1)


def _isolate() -> None:
  """Moves this process into a new network that has a loopback and no more.

  Raises:
    OSError: if the system does not allow it.
  """
  libc = ctypes.CDLL(None, use_errno=True)
  user, group = os.geteuid(), os.getegid()
  if libc.unshare(_CLONE_NEWNET):
    # Only an administrator may do that; others may in a user namespace.
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET):
      number = ctypes.get_errno()
      raise OSError(number, os.strerror(number))
    for name, content in [
      ('setgroups', 'deny'),
      ('uid_map', f'{user} {user} 1'),
      ('gid_map', f'{group} {group} 1'),
    ]:
      with open(f'/proc/self/{name}', 'wb') as file:
        file.write(content.encode())
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    up = struct.pack('16sH14x', b'lo', _IFF_UP)
    fcntl.ioctl(control, _SIOCSIFFLAGS, up)


def _relay(listener: socket.socket, port: int) -> None:
  """Joins each connection to one of the worker's, for ever."""
  while True:
    client, _ = listener.accept()
    threading.Thread(target=_serve, args=(client, port), daemon=True).start()


def _serve(client: socket.socket, port: int) -> None:
  worker = _connect(port)
  for end in (client, worker):
    if end.family == socket.AF_INET:
      end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
  back = threading.Thread(target=_copy, args=(worker, client), daemon=True)
  back.start()
  _copy(client, worker)
  back.join()
  client.close()
  worker.close()


def _connect(port: int) -> socket.socket:
  """Waits until the worker listens; this process ends with the worker."""
  while True:
    try:
      return socket.create_connection(('127.0.0.1', port))
    except ConnectionRefusedError:
      time.sleep(_POLL_SECONDS)


def _copy(source: socket.socket, target: socket.socket) -> None:
  """Passes bytes on until either side ends, and tells both so."""
  buffer = memoryview(bytearray(_RELAY_BYTES))
  try:
    while count := source.recv_into(buffer):
      target.sendall(buffer[:count])
  except OSError:
    pass
  for end, how in [(source, socket.SHUT_RD), (target, socket.SHUT_WR)]:
    try:
      end.shutdown(how)
    except OSError:
      pass


def main(argv: list[str]) -> None:
  parent, port, listener, report = map(int, argv[:4])
  program = argv[4:]
  if listener >= 0:
    try:
      _isolate()
    except OSError as error:
      os.write(report, (error.strerror or str(error)).encode())
      sys.exit(1)
  # After the move, which may make Linux forget it.
  _die_with(parent)
  if listener >= 0:
    launcher = os.getpid()
    if not os.fork():
      _die_with(launcher)
      os.write(report, ISOLATED)
      _relay(socket.socket(fileno=listener), port)
    os.close(listener)
    os.close(report)
  os.execv(program[0], program)


if __name__ == '__main__':
  main(sys.argv[1:])
