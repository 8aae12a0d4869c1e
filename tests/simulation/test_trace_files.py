"""Small files of traces in the formats of FedScale and FLASH, good and bad."""

import json
import pickle

import numpy as np
import pytest

from fl_dpftrl.simulation import trace_files

HOUR, DAY, WEEK = 3600, 86400, 604800
# Entries as the documentation of FedScale prints them.
FEDSCALE = {
  107740: {
    'duration': 1,
    'inactive': [88494, 93284],
    'finish_time': 518400,
    'active': [88494, 93283],
    'model': 'SM-G611MT',
  },
  107743: {
    'duration': 1,
    'inactive': [1],
    'finish_time': 259200,
    'active': [0],
    'model': 'moto g(7) play',
  },
}


def fedscale(tmp_path, devices, protocol=None):
  path = tmp_path / 'client_behave_trace'
  path.write_bytes(pickle.dumps(devices, protocol))
  return path


def flash(tmp_path, devices):
  path = tmp_path / 'state_traces.json'
  path.write_text(json.dumps(devices))
  return path


STATES = ('wifi', 'screen_lock', 'battery_charged_on')


def messages(*lines):
  return {'guid': 'g', 'model': 'm', 'messages': '\n'.join(lines)}


def ready(time):
  """Messages of a device that is ready from a time on."""
  return [f'{time}\t{state}' for state in STATES]


def intervals(traces, trace=0):
  which = slice(traces.offsets[trace], traces.offsets[trace + 1])
  return list(zip(traces.starts[which].tolist(), traces.ends[which].tolist()))


@pytest.mark.parametrize('protocol', range(pickle.HIGHEST_PROTOCOL + 1))
def test_fedscale(tmp_path, protocol):
  traces = trace_files.read_traces(fedscale(tmp_path, FEDSCALE, protocol))
  assert intervals(traces, 0) == [(93283, 93284)]
  assert intervals(traces, 1) == [(0, 1)]
  assert traces.periods.tolist() == [518400, 259200]


def test_fedscale_joins_sorts_and_ends_with_its_period(tmp_path):
  device = {
    'active': [500, 10, 20.0, 90_000],
    'inactive': [90_000, 20, 30.0, 90_001],
    'finish_time': DAY,
  }
  never = {'active': [7], 'inactive': [7], 'finish_time': DAY}
  traces = trace_files.read_traces(fedscale(tmp_path, {'a': device, 'b': never}))
  assert intervals(traces) == [(10, 30), (500, DAY)]
  assert traces.num_traces == 1


@pytest.mark.parametrize(
  'write, devices',
  [(fedscale, FEDSCALE), (flash, {'0': messages('2020-01-02 00:00:00\twifi')})],
  ids=['fedscale', 'flash'],
)
def test_files_that_are_not_whole(tmp_path, write, devices):
  path = write(tmp_path, devices)
  whole = path.read_bytes()
  for size in range(2, len(whole), 7):
    path.write_bytes(whole[:size])
    with pytest.raises(ValueError, match=f'^{path}.*(not whole|cut short)'):
      trace_files.read_traces(path)


def test_other_files(tmp_path):
  path = tmp_path / 'trace'
  for content in (b'', b'device,start,end\n', b'[1, 2]'):
    path.write_bytes(content)
    with pytest.raises(ValueError, match='neither'):
      trace_files.read_traces(path)
  with pytest.raises(FileNotFoundError):
    trace_files.read_traces(tmp_path / 'none')


def refused(path, device, words):
  """Checks that a file is refused in one line that names the device."""
  with pytest.raises(ValueError, match=words) as error:
    trace_files.read_traces(path)
  assert str(error.value).startswith(f'{path}, device {device!r}: ')
  assert '\n' not in str(error.value)


def entry(**changes):
  return {'active': [1, 5], 'inactive': [2, 6], 'finish_time': DAY, **changes}


@pytest.mark.parametrize(
  'device, words',
  [
    (7, 'must have the entries'),
    ({'active': [1]}, 'must have the entries'),
    (entry(active=3), 'active must be a list'),
    (entry(active=[1]), 'active has 1 times, inactive 2'),
    (entry(active=[1, 7]), 'interval 1 .* 7 to 6'),
    (entry(active=[-1, 5]), 'interval 0 .* -1 to 2'),
    (entry(active=[1, 'x']), "interval 1 must be whole seconds, got 'x'"),
    (entry(active=[1.5, 5]), 'interval 0 must be whole'),
    (entry(active=[True, 5]), 'interval 0 must be whole'),
    (entry(inactive=[2, 10**15]), 'interval 1 must be whole'),
    (entry(finish_time=0), 'after 0 seconds'),
    (entry(finish_time=10**10), 'after 10000000000 seconds'),
    (entry(finish_time=None), 'finish_time must be whole'),
  ],
)
def test_bad_entries_of_fedscale(tmp_path, device, words):
  path = fedscale(tmp_path, {107743: FEDSCALE[107743], 'bad\none': device})
  refused(path, 'bad\none', words)


def test_files_of_no_devices(tmp_path):
  with pytest.raises(ValueError, match='must map devices'):
    trace_files.read_traces(fedscale(tmp_path, [1, 2]))
  with pytest.raises(ValueError, match='ever ready'):
    trace_files.read_traces(fedscale(tmp_path, {}))
  with pytest.raises(ValueError, match='ever ready'):
    trace_files.read_traces(flash(tmp_path, {}))


# 2020-01-02 was a Thursday.
THURSDAY = 3 * DAY


def test_flash_is_ready_when_charging_locked_and_on_wifi(tmp_path):
  device = messages(
    '2020-01-02 08:00:00\tbattery_charged_on',
    '2020-01-02 08:10:00\twifi',
    '2020-01-02 08:15:00\tscreen_off',
    '2020-01-02 08:20:00\tscreen_lock',
    '2020-01-02 08:25:00\t87.0%',
    '2020-01-02 08:30:00\tscreen_on',
    '2020-01-02 09:00:00\tscreen_unlock',
    '2020-01-02 09:10:00\tscreen_lock',
    '2020-01-02 10:00:00\t4G',
    '2020-01-02 10:30:00\tWIFI',
    '2020-01-02 11:00:00\tbattery_charged_off',
    '',
    '2020-01-08 11:00:00\tUnknown',
  )
  traces = trace_files.read_traces(flash(tmp_path, {'0': device}))
  assert traces.periods.tolist() == [WEEK]
  assert [
    ((start - THURSDAY) / HOUR, (end - THURSDAY) / HOUR) for start, end in intervals(traces)
  ] == [(8 + 1 / 3, 9.0), (9 + 1 / 6, 10.0), (10.5, 11.0)]
  # A Thursday years later, at nine.
  presence = traces.presence(1, seed=0)
  thursday = 1768435200
  times = thursday + HOUR * np.array([8.5, 9.05, 10.75, 11.5, 24 + 8.5])
  assert presence.at(np.zeros(5, int), times).tolist() == [1, 0, 1, 0, 0]


@pytest.mark.parametrize('state', STATES)
def test_flash_starts_with_none_of_the_three(tmp_path, state):
  lines = [line for line in ready('2020-01-02 00:00:00') if not line.endswith(state)]
  lines += [f'2020-01-02 01:00:00\t{state}', '2020-01-02 03:00:00\t100%']
  traces = trace_files.read_traces(flash(tmp_path, {'0': messages(*lines)}))
  # Ready from the last of them up to the last message; repeats every day.
  assert intervals(traces) == [(HOUR, 3 * HOUR)]
  assert traces.periods.tolist() == [DAY]


def test_flash_in_other_spellings_and_out_of_order(tmp_path):
  device = messages(
    '2020/1/2T3:05:00.250 screen_unlock',
    ' 2020-01-02 01:00:00\t screen_lock\r',
    '2020-1-2 1:00:0   BATTERY_CHARGED_ON',
    '2020-01-02T01:00:00\tWifi',
  )
  traces = trace_files.read_traces(flash(tmp_path, {'0': device}))
  assert intervals(traces) == [(HOUR, 3 * HOUR + 300)]


@pytest.mark.parametrize(
  'last, period',
  [
    ('2020-01-02 12:00:00', DAY),
    ('2020-01-04 12:00:00', 2 * DAY),
    ('2020-01-04 12:00:01', 3 * DAY),
    ('2020-01-09 12:00:00', WEEK),
    ('2020-01-09 12:00:01', 2 * WEEK),
  ],
)
def test_flash_repeats_after_days_or_weeks(tmp_path, last, period):
  device = messages(*ready('2020-01-02 12:00:00'), *[f'{last}\tbattery_charged_off'] * 2)
  always = messages(*ready('2020-01-02 10:00:00'), *ready('2020-01-02 11:00:00'))
  devices = {'0': always, '1': device}
  traces = trace_files.read_traces(flash(tmp_path, devices))
  if last == '2020-01-02 12:00:00':
    assert traces.num_traces == 1
  else:
    assert traces.periods.tolist() == [DAY, period]
    seconds = np.datetime64(last.replace(' ', 'T')) - np.datetime64('2020-01-02T12:00:00')
    assert sum(end - start for start, end in intervals(traces, 1)) == seconds.astype(int)


def test_flash_cached_timers(tmp_path):
  good = {
    'isSuccess': True,
    'trace_start': -HOUR,
    'trace_end': 6 * DAY + 0.0,
    'ready_time': [[-60.0, 60.0], [DAY, DAY + HOUR]],
  }
  failed = {'isSuccess': False, 'trace_start': None, 'trace_end': None, 'ready_time': []}
  path = flash(tmp_path, {'g1': good, 'g2': failed})
  traces = trace_files.read_traces(path)
  assert intervals(traces) == [
    (THURSDAY - 60, THURSDAY + 60),
    (THURSDAY + DAY, THURSDAY + DAY + HOUR),
  ]
  assert traces.periods.tolist() == [WEEK]


@pytest.mark.parametrize(
  'device, words',
  [
    ([], 'must have the entries isSuccess'),
    ({'isSuccess': True}, 'must have the entries ready_time'),
    ({'messages': 3}, 'messages must be text'),
    (messages(''), 'no message'),
    (messages('2020-01-02 00:00:00'), 'message 1 must be a time and'),
    (messages('2020-01-02\twifi'), 'message 1 must be a time and'),
    (messages('', '2020-02-30 00:00:00\twifi'), 'message 2 has no such'),
    (messages('2020-01-02 24:00:00\twifi'), 'no such time'),
    (messages('2020-01-02 00:00:00+08:00\twifi'), 'a time and a state'),
    (messages('2020-01-02 00:00:00\tbluetooth'), "state: 'bluetooth'"),
    (messages('2020-01-02 00:00:00\tx%'), "state: 'x%'"),
    (
      {'isSuccess': True, 'trace_start': 0, 'trace_end': 9, 'ready_time': [[1, 2], [8, 10]]},
      'interval 1 must ascend within 0 to 9',
    ),
    (
      {'isSuccess': True, 'trace_start': 0, 'trace_end': 9, 'ready_time': [[1, 2, 3]]},
      'interval 0 must be two times',
    ),
    (
      {'isSuccess': True, 'trace_start': 9, 'trace_end': 0, 'ready_time': {}},
      'ready_time must be a list',
    ),
  ],
)
def test_bad_entries_of_flash(tmp_path, device, words):
  good = messages(*ready('2020-01-02 00:00:00'), '2020-01-02 01:00:00\t99%')
  refused(flash(tmp_path, {'good': good, 'bad': device}), 'bad', words)
