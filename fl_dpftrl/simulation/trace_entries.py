"""Entries of one device in the trace files of FedScale and FLASH."""

from typing import Any, NamedTuple

from fl_dpftrl import json_files
from fl_dpftrl import messages as messages_lib
from fl_dpftrl.simulation import flash_messages
from fl_dpftrl.simulation import traces as traces_lib

_MOST_SECONDS = 2**40
# FLASH's cached timers count seconds from 2020-01-02 00:00, a Thursday.
_CACHE_START = 1577923200


class Ready(NamedTuple):
  """Times at which a device is ready.

  Attributes:
    starts: starts of the intervals, in seconds from a Monday, 00:00.
    ends: ends of the intervals, each at or after its start.
    length: length of the trace, in seconds.
    period: seconds after which it repeats, at least its length.
  """

  starts: list[int]
  ends: list[int]
  length: int
  period: int


def fedscale(device: object) -> Ready:
  """Parses an entry of a FedScale trace; see trace_formats.read_fedscale.

  Raises:
    ValueError: if the entry has another structure.
  """
  entries = _entries(device, ('active', 'inactive', 'finish_time'))
  for name in ('active', 'inactive'):
    if not isinstance(entries[name], (list, tuple)):
      raise ValueError(f'{name} must be a list, got {_short(entries[name])}')
  if len(entries['active']) != len(entries['inactive']):
    raise ValueError(
      f'active has {len(entries["active"])} times, inactive {len(entries["inactive"])}'
    )
  period = _checked_period(_seconds('finish_time', entries['finish_time']))
  starts, ends = [], []
  for index, pair in enumerate(zip(entries['active'], entries['inactive'])):
    start, end = _interval(index, pair, 0, _MOST_SECONDS)
    starts.append(min(start, period))
    ends.append(min(end, period))
  return Ready(starts, ends, period, period)


def flash(device: object) -> Ready:
  """Parses an entry of a FLASH trace; see trace_formats.read_flash.

  Raises:
    ValueError: if the entry has another structure.
  """
  if isinstance(device, dict) and 'messages' in device:
    starts, ends, first, last = flash_messages.ready(device['messages'])
  else:
    if not _entries(device, ('isSuccess',))['isSuccess']:
      return Ready([], [], 0, traces_lib.DAY)
    entries = _entries(device, ('ready_time', 'trace_start', 'trace_end'))
    first = _seconds('trace_start', entries['trace_start'])
    last = _seconds('trace_end', entries['trace_end'])
    times = entries['ready_time']
    if not isinstance(times, list):
      raise ValueError(f'ready_time must be a list, got {_short(times)}')
    pairs = [_interval(index, pair, first, last) for index, pair in enumerate(times)]
    starts = [start + _CACHE_START for start, _ in pairs]
    ends = [end + _CACHE_START for _, end in pairs]
  return Ready(
    [start - traces_lib.MONDAY for start in starts],
    [end - traces_lib.MONDAY for end in ends],
    last - first,
    _checked_period(_covering(last - first)),
  )


def _covering(seconds: int) -> int:
  """Returns the least period of whole days, or whole weeks beyond a week."""
  days = max(1, -(-seconds // traces_lib.DAY))
  if days > 7:
    days = 7 * -(-days // 7)
  return days * traces_lib.DAY


def _checked_period(period: int) -> int:
  if not 1 <= period <= traces_lib.LONGEST:
    raise ValueError(f'repeats after {period} seconds, which must lie in 1 to {traces_lib.LONGEST}')
  return period


def _interval(index: int, pair: object, first: int, last: int) -> tuple[int, int]:
  if not isinstance(pair, (list, tuple)) or len(pair) != 2:
    raise ValueError(f'interval {index} must be two times, got {_short(pair)}')
  start, end = (_seconds(f'interval {index}', time) for time in pair)
  if not first <= start <= end <= last:
    raise ValueError(f'interval {index} must ascend within {first} to {last}, got {start} to {end}')
  return start, end


def _entries(device: object, names: tuple[str, ...]) -> json_files.Object:
  if not (isinstance(device, dict) and all(name in device for name in names)):
    raise ValueError(f'must have the entries {", ".join(names)}, got {_short(device)}')
  return device


def _seconds(name: str, value: Any) -> int:
  whole = isinstance(value, (int, float)) and not isinstance(value, bool)
  if not whole or not abs(value) <= _MOST_SECONDS or value != int(value):
    raise ValueError(f'{name} must be whole seconds, got {_short(value)}')
  return int(value)


def _short(value: object) -> str:
  return messages_lib.quoted(value)
