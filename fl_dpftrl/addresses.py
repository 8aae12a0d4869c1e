"""Network addresses of processes, as host:port."""

import re
from collections.abc import Sequence
from typing import NamedTuple

_HOST = re.compile(r'[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?')


class Address(NamedTuple):
  host: str
  port: int

  def __str__(self) -> str:
    return f'{self.host}:{self.port}'


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


def _is_port(text: str) -> bool:
  return text.isascii() and text.isdecimal() and 0 < int(text) < 65536
