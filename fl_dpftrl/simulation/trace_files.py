"""Reader of trace files as FedScale and FLASH publish them.

In every format, devices that are never ready are left out, and intervals that overlap, touch or
are unsorted are joined. An interval includes its start and excludes its end; both projects include
the end too. An interval that ends in the second in which it starts is thus empty.

Sources: Lai et al. 2022, "FedScale: benchmarking model and system performance of federated
learning at scale"; Yang et al. 2021, "Characterizing impacts of heterogeneity in federated
learning upon large-scale smartphone data" (FLASH).
"""

import calendar
import datetime
import operator
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fl_dpftrl.files import json_files
from fl_dpftrl.logs import reader as reader_lib
from fl_dpftrl.simulation import traces
from fl_dpftrl.text import messages as text

MOST_BYTES = 2**28
"""Size of a file of traces: 256 MiB."""
# For some 20 million times of devices.
_MOST_MEMORY = 2**31
_MOST_SECONDS = 2**40
# FLASH's cached timers count seconds from 2020-01-02 00:00, a Thursday.
_CACHE_START = 1577923200
_MESSAGE = re.compile(
  r'(\d{4})[-/](\d\d?)[-/](\d\d?)[ T]+(\d\d?):(\d\d?):(\d\d?)(?:\.\d+)?'
  r'\s+(\S+)'
)
_LEVEL = re.compile(r'\d+(\.\d+)?%')
_CHARGING, _LOCKED, _WIFI = 1, 2, 4
_READY = _CHARGING | _LOCKED | _WIFI
# Condition that each message refers to, and its value after the message.
_MEANS = {
  'battery_charged_on': (_CHARGING, True),
  'battery_charged_off': (_CHARGING, False),
  'screen_lock': (_LOCKED, True),
  'screen_unlock': (_LOCKED, False),
  'wifi': (_WIFI, True),
  'unknown': (_WIFI, False),
  '2g': (_WIFI, False),
  '3g': (_WIFI, False),
  '4g': (_WIFI, False),
  '5g': (_WIFI, False),
  'screen_on': (0, False),
  'screen_off': (0, False),
}


class Ready(NamedTuple):
  """Times at which a device is ready.

  Attributes:
    starts: starts of the intervals, in seconds from a Monday, 00:00.
    ends: ends of the intervals, each at or after its start.
    period: seconds after which the trace repeats.
  """

  starts: list[int]
  ends: list[int]
  period: int


def read_traces(path: str | os.PathLike[str]) -> traces.Traces:
  """Reads the traces of a file, in one of two formats that its content tells apart.

  A file of FedScale is its pickle client_behave_trace or a similar one; see `fedscale_entry`. No
  code of it is run. A file of FLASH is the JSON of its state_traces.json or its
  cached_timers.json; see `flash_entry`. Each maps devices to their traces.

  Args:
    path: the file.

  Raises:
    OSError: if the file cannot be read.
    ValueError: if the file has neither format, a device's trace is malformed, or no device is ever
      ready. The message names the file and the device.
  """
  content = _named(path, json_files.read_bytes, path, most_bytes=MOST_BYTES)
  # A pickle of protocol 2 and above, or a dictionary of protocol 1 or 0.
  is_pickle = content.startswith((b'\x80', b'}', b'('))
  if is_pickle:  # Another process reads it.
    content = reader_lib.Reader().pickled(reader_lib.Source(os.fspath(path)))
  elif not content.lstrip().startswith(b'{'):
    raise ValueError(f'{path} is neither a pickle of FedScale nor JSON of FLASH')
  devices = _named(path, json_files.parse, content, most_memory=_MOST_MEMORY)
  read = fedscale_entry if is_pickle else flash_entry
  if not isinstance(devices, dict):
    raise ValueError(f'{path} must map devices to their traces, got a {type(devices).__name__}')
  ready = []
  for name, device in devices.items():
    try:
      ready.append(read(device))
    except ValueError as error:
      raise ValueError(f'{path}, device {text.quoted(name)}: {error}') from None
  ready = [one for one in ready if any(map(operator.lt, one.starts, one.ends))]
  if not ready:
    raise ValueError(f'{path} has no device that is ever ready')
  return traces.Traces.from_intervals(
    np.repeat(np.arange(len(ready)), [len(one.starts) for one in ready]),
    np.array([start for one in ready for start in one.starts], np.int64),
    np.array([end for one in ready for end in one.ends], np.int64),
    np.array([one.period for one in ready], np.int64),
  )


def _named(path: str | os.PathLike[str], read: Callable[..., Any], *args, **kwargs) -> Any:
  """Returns the result of a function whose errors get the name of the file."""
  try:
    return read(*args, **kwargs)
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from None


def fedscale_entry(device: object) -> Ready:
  """Parses the trace of a device in a file of FedScale.

  Its 'active' and 'inactive' list when the device starts and stops being available, in seconds.
  Its 'finish_time' is the number of seconds after which that repeats; times past it never occur.
  Other entries are ignored. The trace has neither weekday nor time of day: its second 0 is taken
  as a Monday, 00:00 UTC.

  Raises:
    ValueError: if the entry has another structure.
  """
  entries = _entries(device, ('active', 'inactive', 'finish_time'))
  for name in ('active', 'inactive'):
    if not isinstance(entries[name], (list, tuple)):
      raise ValueError(f'{name} must be a list, got {text.quoted(entries[name])}')
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
  return Ready(starts, ends, period)


def flash_entry(device: object) -> Ready:
  """Parses the trace of a device in a file of FLASH.

  In state_traces.json, its 'messages' are events of the device; ready_by_messages interprets them.
  In cached_timers.json, its 'ready_time' lists pairs of times at which it starts and stops being
  ready, in seconds from 2020-01-02 00:00, within 'trace_start' to 'trace_end'. If 'isSuccess' is
  false, the device counts as one that is never ready.

  The clock of a trace is taken as UTC. A trace keeps its time of day. It repeats after the
  least whole number of days that covers its first to last message, or of weeks if that exceeds
  a week. It keeps its weekdays if that is whole weeks.

  Raises:
    ValueError: if the entry has another structure.
  """
  if isinstance(device, dict) and 'messages' in device:
    starts, ends, first, last = ready_by_messages(device['messages'])
  else:
    if not _entries(device, ('isSuccess',))['isSuccess']:
      return Ready([], [], traces.DAY)
    entries = _entries(device, ('ready_time', 'trace_start', 'trace_end'))
    first = _seconds('trace_start', entries['trace_start'])
    last = _seconds('trace_end', entries['trace_end'])
    times = entries['ready_time']
    if not isinstance(times, list):
      raise ValueError(f'ready_time must be a list, got {text.quoted(times)}')
    pairs = [_interval(index, pair, first, last) for index, pair in enumerate(times)]
    starts = [start + _CACHE_START for start, _ in pairs]
    ends = [end + _CACHE_START for _, end in pairs]
  return Ready(
    [start - traces.MONDAY for start in starts],
    [end - traces.MONDAY for end in ends],
    _checked_period(_covering(last - first)),
  )


def _covering(seconds: int) -> int:
  """Returns the least period of whole days, or whole weeks beyond a week."""
  days = max(1, -(-seconds // traces.DAY))
  if days > 7:
    days = 7 * -(-days // 7)
  return days * traces.DAY


def _checked_period(period: int) -> int:
  if not 1 <= period <= traces.LONGEST:
    raise ValueError(f'repeats after {period} seconds, which must lie in 1 to {traces.LONGEST}')
  return period


def _interval(index: int, pair: object, first: int, last: int) -> tuple[int, int]:
  if not isinstance(pair, (list, tuple)) or len(pair) != 2:
    raise ValueError(f'interval {index} must be two times, got {text.quoted(pair)}')
  start, end = (_seconds(f'interval {index}', time) for time in pair)
  if not first <= start <= end <= last:
    raise ValueError(f'interval {index} must ascend within {first} to {last}, got {start} to {end}')
  return start, end


def _entries(device: object, names: tuple[str, ...]) -> json_files.Object:
  if not (isinstance(device, dict) and all(name in device for name in names)):
    raise ValueError(f'must have the entries {", ".join(names)}, got {text.quoted(device)}')
  return device


def _seconds(name: str, value: Any) -> int:
  whole = isinstance(value, (int, float)) and not isinstance(value, bool)
  if not whole or not abs(value) <= _MOST_SECONDS or value != int(value):
    raise ValueError(f'{name} must be whole seconds, got {text.quoted(value)}')
  return int(value)


def ready_by_messages(messages: object) -> tuple[list[int], list[int], int, int]:
  """Returns the times when the device charges, locked and on Wi-Fi.

  This is FLASH's own rule. None of the three conditions holds before the first message about
  it. battery_charged_on and _off report charging; screen_lock and screen_unlock report the
  lock. wifi means Wi-Fi; unknown and 2g to 5g mean no Wi-Fi. screen_on, screen_off and battery
  levels such as 87.0% change nothing. A device that is still ready at the last message was
  ready up to then; FLASH drops that last interval.

  Args:
    messages: text with a time and a state per line, separated by white space. States may be in
      capitals. A time is year, month, day, hour, minute and second, 2020-01-31 22:05:00, also
      with / for - or T for the space, without leading zeros, or with fractions of a second,
      which are dropped. Lines are sorted by time; lines of the same second keep their order.

  Returns:
    Starts and ends of the ready intervals, ascending, and the times of the first and last
    message, all in seconds from 1970-01-01 00:00.

  Raises:
    ValueError: if messages are malformed, or there is none.
  """
  if not isinstance(messages, str):
    raise ValueError(f'messages must be text, got {text.quoted(messages)}')
  events = []
  for number, line in enumerate(messages.split('\n'), 1):
    line = line.strip()
    if line:
      events.append(_event(number, line))
  if not events:
    raise ValueError('messages holds no message')
  events.sort(key=lambda event: event[0])
  starts: list[int] = []
  ends: list[int] = []
  holds = 0
  for time, condition, is_true in events:
    was_ready = holds == _READY
    holds = holds | condition if is_true else holds & ~condition
    if (holds == _READY) != was_ready:
      (ends if was_ready else starts).append(time)
  if len(ends) < len(starts):
    ends.append(events[-1][0])
  return starts, ends, events[0][0], events[-1][0]


def _event(number: int, line: str) -> tuple[int, int, bool]:
  match = _MESSAGE.fullmatch(line)
  if match is None:
    raise ValueError(f'message {number} must be a time and a state, got {text.quoted(line)}')
  *numbers, state = match.groups()
  year, month, day, hour, minute, second = map(int, numbers)
  try:
    time = datetime.datetime(year, month, day, hour, minute, second)
  except ValueError:
    raise ValueError(f'message {number} has no such time: {text.quoted(line)}') from None
  state = state.lower()
  means = (0, False) if _LEVEL.fullmatch(state) else _MEANS.get(state)
  if means is None:
    raise ValueError(f'message {number} has an unknown state: {text.quoted(state)}')
  return calendar.timegm(time.timetuple()), *means
