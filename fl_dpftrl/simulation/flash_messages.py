"""Times at which a device is ready for training, from messages of a FLASH trace.

Source: Yang et al. 2021, "Characterizing impacts of heterogeneity in federated learning upon
large-scale smartphone data".
"""

import calendar
import datetime
import re

from fl_dpftrl import messages as messages_lib

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


def ready(messages: object) -> tuple[list[int], list[int], int, int]:
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
    raise ValueError(f'messages must be text, got {messages_lib.quoted(messages)}')
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
    raise ValueError(
      f'message {number} must be a time and a state, got {messages_lib.quoted(line)}'
    )
  *numbers, state = match.groups()
  year, month, day, hour, minute, second = map(int, numbers)
  try:
    time = datetime.datetime(year, month, day, hour, minute, second)
  except ValueError:
    raise ValueError(f'message {number} has no such time: {messages_lib.quoted(line)}') from None
  state = state.lower()
  means = (0, False) if _LEVEL.fullmatch(state) else _MEANS.get(state)
  if means is None:
    raise ValueError(f'message {number} has an unknown state: {messages_lib.quoted(state)}')
  return calendar.timegm(time.timetuple()), *means
