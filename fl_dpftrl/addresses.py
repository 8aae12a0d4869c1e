"""Network addresses of processes, as host:port."""

import ipaddress
import re
from collections.abc import Sequence
from typing import NamedTuple

_HOST = re.compile(r'[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?')


class Address(NamedTuple):
  host: str
  port: int

  def __str__(self) -> str:
    return f'{self.host}:{self.port}'

  @property
  def is_loopback(self) -> bool:
    """Returns True if only this machine can be meant."""
    if self.host.lower() == 'localhost':
      return True
    try:
      return ipaddress.ip_address(self.host).is_loopback
    except ValueError:
      return False


def parse(text: str) -> Address:
  """Parses host:port.

  Raises:
    ValueError: if the text is not host:port.
  """
  host, _, port = text.strip().rpartition(':')
  if not _HOST.fullmatch(host) or not _is_port(port):
    raise ValueError(f'{text!r} is not host:port, such as localhost:8000')
  return Address(host, int(port))


def parse_all(texts: Sequence[str]) -> list[Address]:
  """Parses several addresses and rejects duplicates.

  Raises:
    ValueError: if one is not host:port, or given twice.
  """
  found = [parse(text) for text in texts]
  for address in found:
    if found.count(address) > 1:
      raise ValueError(f'{address} is named twice')
  return found


def check_loopback(found: Sequence[Address], consent: str) -> None:
  """Refuses addresses of TFF's workers on a network.

  Args:
    found: the addresses.
    consent: what says that the network is safe.

  Raises:
    ValueError: naming the first such address.
  """
  for address in found:
    if not address.is_loopback:
      raise ValueError(
        f"{address} is on a network, and TensorFlow Federated's worker knows neither encryption"
        f' nor passwords: reach it by `ssh -L {address.port}:localhost:{address.port}'
        f' {address.host}` as localhost:{address.port}, or give {consent} in a private network'
      )


def _is_port(text: str) -> bool:
  return text.isascii() and text.isdecimal() and 0 < int(text) < 65536
