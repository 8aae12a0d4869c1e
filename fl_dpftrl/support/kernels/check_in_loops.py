"""Loops over simulated check-ins and over the devices of a pool, for `planning.simulation`.

Loops wait for memory where they read a device at random, and a branch that depends on it keeps them
from reading the next. So candidates are read some hundred at a time, each column in its own loop.
"""

import numpy as np

from fl_dpftrl.support.kernels import compiled

_AT_ONCE, _PLACES = 256, 1 << 11
_HOUR, _DAY = 3600.0, 86400.0
_GOLDEN, _FIRST = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_JITTER, _PLUGGED_IN = np.uint64(1), np.uint64(2)


@compiled.loop
def _mixed(value):
  value += _GOLDEN
  value = (value ^ value >> np.uint64(30)) * _FIRST
  value = (value ^ value >> np.uint64(27)) * _SECOND
  return value ^ value >> np.uint64(31)


@compiled.loop
def uniform(seed, purpose, device, night):
  """Returns a device's draw in 0 to 1 for a night (SplitMix64: Steele, Lea, Flood 2014)."""
  state = _mixed(seed * _GOLDEN + purpose)
  return (_mixed(_mixed(state ^ device) ^ night) >> np.uint64(11)) * 2.0**-53


@compiled.loop
def nightly(devices, times, habits, seed, jitter, delay, charging, daytime):
  """Returns the presence of devices at UTC seconds by their start, length and offset: `Nightly`."""
  result, near = np.empty(devices.size), np.empty((_AT_ONCE, 3))
  for i in range(devices.size):
    if i % _AT_ONCE == 0:
      for j in range(min(_AT_ONCE, devices.size - i)):
        for column in range(3):
          near[j, column] = habits[devices[i + j], column]
    start, length, offset = near[i % _AT_ONCE]
    seconds = times[i] + (offset - _DAY / 2)
    night = np.floor(seconds / _DAY)
    seconds -= _DAY * night
    device, number = np.uint64(devices[i]), np.uint64(np.int64(night))
    start += jitter * (2.0 * uniform(seed, _JITTER, device, number) - 1.0)
    if 4 <= (np.int64(night) + 3) % 7 <= 5:  # Friday or Saturday; 1970-01-01 was a Thursday.
      start += delay
    start = min(max(start, 0.0), _DAY - length)
    is_plugged_in = uniform(seed, _PLUGGED_IN, device, number) < charging
    there = (start <= seconds) & (seconds < start + length) & is_plugged_in
    result[i] = 1.0 if there else daytime
  return result


@compiled.loop
def candidates(uniform, gaps, needed, now, end, ceilings, sizes, first, members, rates, pace):
  """Draws members in the order of time, from a Poisson process at the ceiling of each group.

  Each uniform draw in 0 to 1 names a member. Gaps are standard exponential draws. Those whose
  rate is below what is needed of the ceiling, another uniform draw, are left out.

  Returns:
    Devices, times, the least presence of each that lets it check in, and the end of the period.
  """
  ends = np.cumsum(sizes * ceilings)
  total = ends[-1]
  top = np.searchsorted(ends, total)
  starts = np.arange(_PLACES) * total / _PLACES
  guide = np.minimum(np.searchsorted(ends, starts, side='right'), top)
  devices, times = np.empty(gaps.size, np.int64), np.empty(gaps.size)
  least = np.empty(gaps.size)
  groups, places = np.empty(_AT_ONCE, np.int64), np.empty(_AT_ONCE, np.int64)
  moments, chosen = np.empty(_AT_ONCE), np.empty(_AT_ONCE, np.int64)
  count, time = 0, now
  for begin in range(0, gaps.size, _AT_ONCE):
    width = 0
    for i in range(begin, min(begin + _AT_ONCE, gaps.size)):
      time += gaps[i] / total
      if time >= end:
        time = end
        break
      point = uniform[i] * total
      group = guide[np.int64(uniform[i] * _PLACES)]
      while group < top and ends[group] <= point:
        group += 1
      below = np.int64((ends[group] - point) / ceilings[group])
      places[width] = first[group] + min(max(below, 0), sizes[group] - 1)
      groups[width], moments[width] = group, time
      width += 1
    for i in range(width):
      chosen[i] = members[places[i]]
    for i in range(width):
      usual = _HOUR / rates[chosen[i]] + pace
      devices[count], times[count] = chosen[i], moments[i]
      least[count] = needed[begin + i] * ceilings[groups[i]] * usual
      count += least[count] < 1.0
  return devices[:count], times[:count], least[:count], time


@compiled.loop
def choose(devices, times, least, presence, is_chosen, most):
  """Returns the first devices, and their times, that are present enough and not yet chosen."""
  count = 0
  for i in range(devices.size):
    if count < most and least[i] < presence[i] and not is_chosen[devices[i]]:
      is_chosen[devices[i]] = True
      devices[count], times[count] = devices[i], times[i]
      count += 1
  return devices[:count], times[:count]


@compiled.loop
def add(devices, groups, places, members, first, sizes):
  """Adds devices to the end of their groups; members stay where they are."""
  for device in devices:
    if places[device] < 0:
      group = groups[device]
      place = first[group] + sizes[group]
      members[place], places[device] = device, place
      sizes[group] += 1


@compiled.loop
def remove(devices, groups, places, members, first, sizes):
  """Removes those devices that are members; the last of the group takes the place of each."""
  for device in devices:
    place = places[device]
    if place >= 0:
      group = groups[device]
      sizes[group] -= 1
      last = members[first[group] + sizes[group]]
      members[place], places[last] = last, place
      places[device] = -1
