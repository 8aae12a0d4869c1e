"""Canaries of an audit: their device ids, and the log's metadata about them."""

from collections.abc import Iterable, Mapping

from fl_dpftrl.logs import refusals

KEY = 'fl_dpftrl.canaries'
PREFIX = 'fl_dpftrl-canary-'
MOST = 100_000


def device_id(number: int) -> str:
  """Returns the device id of a canary."""
  return f'{PREFIX}{number:05d}'


def is_canary(device: object) -> bool:
  """True for a device id of a canary."""
  return str(device).startswith(PREFIX)


def check_ids(device_ids: Iterable[object]) -> None:
  """Raises ValueError if a device has an id that is reserved for canaries."""
  for device in device_ids:
    if is_canary(device):
      raise ValueError(
        f'device {str(device)!r} has an id of a canary: ids with {PREFIX} are reserved for them'
      )


def metadata(num_canaries: int) -> dict[str, str]:
  """Returns the metadata of a log in which so many devices are canaries; none for 0."""
  return {KEY: str(num_canaries)} if num_canaries else {}


def read(metadata: Mapping[str, str]) -> int:
  """Returns the number of canaries that a log's metadata state; 0 if they state none.

  Raises:
    LogError: unless it is a whole number.
  """
  text = metadata.get(KEY, '0')
  if not (text.isascii() and text.isdigit() and len(text) <= 6 and int(text) <= MOST):
    raise refusals.LogError(
      f'{KEY} in the metadata of the log must be a whole number up to {MOST}, got {text[:80]!r}'
    )
  return int(text)
