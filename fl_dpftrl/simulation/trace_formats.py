"""Readers of trace files as FedScale and FLASH publish them.

In every format, devices that are never ready are left out and counted, and intervals that
overlap, touch or are unsorted are joined. An interval includes its start and excludes its end;
both projects include the end too. An interval that ends in the second in which it starts is
thus empty.

Sources: Lai et al. 2022, "FedScale: benchmarking model and system performance of federated
learning at scale"; Yang et al. 2021, "Characterizing impacts of heterogeneity in federated
learning upon large-scale smartphone data" (FLASH).
"""

import os
from collections.abc import Callable

import numpy as np

from fl_dpftrl import json_files, messages
from fl_dpftrl.simulation import plain_pickle, trace_entries
from fl_dpftrl.simulation import traces as traces_lib

_Path = str | os.PathLike[str]

MOST_BYTES = 2**28
"""Size of a file of traces: 256 MiB."""


def read_traces(
  path: _Path, *, period: int | None = None, leave_out_bad: bool = False
) -> traces_lib.Traces:
  """Reads the traces of a file and detects its format from its content.

  Args:
    path: file for read_fedscale or read_flash.
    period: see read_fedscale.
    leave_out_bad: see read_fedscale.

  Raises:
    OSError: if the file cannot be read.
    ValueError: if the file has neither format, or its reader raises.
  """
  content = _content(path)
  if content.lstrip().startswith(b'{'):
    return _gather(path, _json(path, content), trace_entries.flash, period, leave_out_bad)
  # A pickle of protocol 2 and above, or a dictionary of protocol 1 or 0.
  if content.startswith((b'\x80', b'}', b'(')):
    devices = plain_pickle.load(path, content)
    return _gather(path, devices, trace_entries.fedscale, period, leave_out_bad)
  raise ValueError(f'{path} is neither a pickle of FedScale nor JSON of FLASH')


def read_fedscale(
  path: _Path, *, period: int | None = None, leave_out_bad: bool = False
) -> traces_lib.Traces:
  """Reads traces of FedScale: its pickle client_behave_trace or a similar one.

  The pickle maps each device to a dictionary. Its 'active' and 'inactive' list when the device
  starts and stops being available, in seconds. Its 'finish_time' is the number of seconds after
  which that repeats; times past it never occur. Other entries are ignored. The trace has
  neither weekday nor time of day: its second 0 is taken as a Monday, 00:00 UTC.

  Args:
    path: pickle file; no code of it is run, and it is rejected if it holds more than plain
      containers and numbers.
    period: overrides the seconds after which each trace repeats; at least the length of each
      trace.
    leave_out_bad: leaves out and counts devices with a malformed trace instead of rejecting the
      file.

  Raises:
    OSError: if the file cannot be read.
    ValueError: if the file or a device's trace is malformed, no device is ever ready, or the
      period is out of range. The message names the file and the device.
  """
  devices = plain_pickle.load(path, _content(path))
  return _gather(path, devices, trace_entries.fedscale, period, leave_out_bad)


def read_flash(
  path: _Path, *, period: int | None = None, leave_out_bad: bool = False
) -> traces_lib.Traces:
  """Reads traces of FLASH: its state_traces.json or its cached_timers.json.

  Both map each device to an object. In the first file, its 'messages' are events of the device;
  flash_messages.ready interprets them. In the second file, its 'ready_time' lists pairs of
  times at which it starts and stops being ready, in seconds from 2020-01-02 00:00, within
  'trace_start' to 'trace_end'. If 'isSuccess' is false, the device counts as one that is never
  ready.

  The clock of a trace is taken as UTC. A trace keeps its time of day. It repeats after the
  least whole number of days that covers its first to last message, or of weeks if that exceeds
  a week. It keeps its weekdays if that is whole weeks.

  Args:
    path: JSON file.
    period: see read_fedscale.
    leave_out_bad: see read_fedscale.

  Raises:
    OSError: if the file cannot be read.
    ValueError: as for read_fedscale.
  """
  return _gather(path, _json(path, _content(path)), trace_entries.flash, period, leave_out_bad)


def _content(path: _Path) -> bytes:
  try:
    return json_files.read_bytes(path, most_bytes=MOST_BYTES)
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from None


def _json(path: _Path, content: bytes) -> object:
  try:
    return json_files.parse(content)
  except ValueError as error:
    raise ValueError(f'{path} is no JSON of traces, or is not whole: {error}') from None


def _gather(
  path: _Path,
  devices: object,
  read: Callable[[object], trace_entries.Ready],
  period: int | None,
  leave_out_bad: bool,
) -> traces_lib.Traces:
  if not isinstance(devices, dict):
    raise ValueError(f'{path} must map devices to their traces, got a {type(devices).__name__}')
  if period is not None and not 1 <= period <= traces_lib.LONGEST:
    raise ValueError(f'period must lie in 1 to {traces_lib.LONGEST} seconds, got {period!r}')
  starts, ends, sizes, periods = [], [], [], []
  for name, device in devices.items():
    try:
      ready = read(device)
      if period is not None and ready.length > period:
        raise ValueError(f'a trace of {ready.length} seconds is longer than period, {period}')
    except ValueError as error:
      if leave_out_bad:
        continue
      raise ValueError(f'{path}, device {messages.quoted(name)}: {error}') from None
    if any(start < end for start, end in zip(ready.starts, ready.ends)):
      starts += ready.starts
      ends += ready.ends
      sizes.append(len(ready.starts))
      periods.append(ready.period if period is None else period)
  if not sizes:
    raise ValueError(f'{path} has no device that is ever ready')
  return traces_lib.Traces.from_intervals(
    np.repeat(np.arange(len(sizes)), sizes),
    np.array(starts, np.int64),
    np.array(ends, np.int64),
    np.array(periods, np.int64),
    left_out=len(devices) - len(sizes),
  )
