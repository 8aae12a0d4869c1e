"""Becomes a command as a container runs it: container.py FOLDER COMMAND…

It imports little, as a process of several threads enters no namespace of users. The command is that
of user 10001 without any right, without a network, on a read-only root. It may write only /tmp,
which is in memory, and FOLDER, which it sees as /tmp/data. Its environment is that of
examples/Dockerfile.
"""

import ctypes
import errno
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
IMAGE = (ROOT / 'examples/Dockerfile').read_text()
VARIABLES = dict(re.findall(r'^ENV (\w+)=(.*)$', IMAGE, re.MULTILINE))
FORBIDDEN = 77  # exit status where the kernel gives an ordinary process no namespaces
# Of Linux: include/uapi/linux/sched.h and mount.h.
_NEW_NAMESPACES = 0x10000000 | 0x00020000 | 0x40000000  # users, mounts, network
_BIND, _NOSUID_NODEV_NOEXEC = 4096, 2 | 4 | 8
_MOUNT_SETATTR, _RECURSIVE, _READ_ONLY = 442, 0x8000, 1


def _call(function, *arguments) -> None:
  if function(*arguments) != 0:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))


def _set_read_only(libc, path: str, flags: int, is_read_only: bool) -> None:
  values = (_READ_ONLY, 0, 0, 0) if is_read_only else (0, _READ_ONLY, 0, 0)
  attributes = (ctypes.c_uint64 * 4)(*values)
  _call(libc.syscall, _MOUNT_SETATTR, -100, os.fsencode(path), flags, attributes, 32)


def main(data: str, *command: str) -> None:
  """Enters the namespaces and becomes the command."""
  libc = ctypes.CDLL(None, use_errno=True)
  owner, group = os.geteuid(), os.getegid()
  try:
    _call(libc.unshare, _NEW_NAMESPACES)
    pathlib.Path('/proc/self/setgroups').write_text('deny')
    pathlib.Path('/proc/self/uid_map').write_text(f'10001 {owner} 1')
    pathlib.Path('/proc/self/gid_map').write_text(f'10001 {group} 1')
    _set_read_only(libc, '/', _RECURSIVE, True)
  except OSError as error:
    if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOSPC):
      print(f'the kernel gives an ordinary process no namespaces: {error}', file=sys.stderr)
      sys.exit(FORBIDDEN)
    raise
  # What lies in /tmp and is needed stays, read-only.
  needed = [path for path in {str(ROOT), sys.prefix, sys.base_prefix} if path.startswith('/tmp/')]
  opened = {path: os.open(path, os.O_PATH) for path in sorted(needed)}
  opened['/tmp/data'] = os.open(data, os.O_PATH)
  options = b'mode=1777,size=64m'
  _call(libc.mount, b'tmpfs', b'/tmp', b'tmpfs', _NOSUID_NODEV_NOEXEC, options)
  for path, handle in opened.items():
    if not os.path.exists(path):
      os.makedirs(path)
      source = b'/proc/self/fd/%d' % handle
      _call(libc.mount, source, os.fsencode(path), None, _BIND, None)
  _set_read_only(libc, '/tmp/data', 0, False)
  os.chdir('/')
  os.execve(command[0], command, VARIABLES)


if __name__ == '__main__':
  main(*sys.argv[1:])
