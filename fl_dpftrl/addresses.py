"""Where processes on this or other machines listen, as host:port."""

from typing import NamedTuple, Sequence


class Address(NamedTuple):
  host: str
  port: int

  def __str__(self) -> str:
    return f'{self.host}:{self.port}'


def parse(text: str) -> Address:
  """Of host:port.

  Raises:
    ValueError: for anything else.
  """
  host, _, port = text.strip().rpartition(':')
  if not host or not port.isdecimal() or not 0 < int(port) < 65536:
    raise ValueError(f'{text!r} is not host:port, such as localhost:8000')
  return Address(host, int(port))


def parse_all(texts: Sequence[str]) -> list[Address]:
  """Of several, each of which is there once.

  Raises:
    ValueError: where one is not host:port, or there twice.
  """
  found = [parse(text) for text in texts]
  for address in found:
    if found.count(address) > 1:
      raise ValueError(f'{address} is named twice')
  return found
