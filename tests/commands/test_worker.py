"""The command that trains clients for runs elsewhere: what it refuses."""

import importlib.util
import os
import socket

import pytest

from fl_dpftrl import worker_program
from fl_dpftrl.learning import isolation


@pytest.mark.parametrize(
  'flags, message',
  [
    ('', 'required: --port'),
    ('--port=x', "invalid int value: 'x'"),
    ('--port=0', '--port=0 is not between 1 and 65535'),
    ('--port=70000', '--port=70000 is not between 1 and 65535'),
    ('--port=8000 --deterministic=no', "invalid choice: 'no'"),
    ('--port=8000 --max_concurrent_calls=-1', '--max_concurrent_calls must be at least 0, got -1'),
  ],
)
def test_refuses(run, flags, message):
  status, out, err = run(f'worker {flags}')
  assert (status, out) == (2, '') and message in err
  assert err.count('\n') == 1


def test_a_taken_port(run):
  with socket.socket() as taken:
    taken.bind(('', 0))
    taken.listen()
    port = taken.getsockname()[1]
    for flag in ('', '--insecure_network'):
      status, _, err = run(f'worker --port={port} {flag}')
      assert status == 2 and f'--port={port} cannot be listened at' in err


def test_without_tff_it_says_what_to_do(run, monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  for flag in ('', '--insecure_network'):
    status, _, err = run(f'worker --port={free_port()} {flag}')
    assert status == 2 and 'no worker program' in err and 'make env' in err


def test_it_is_out_of_reach_or_refused(run, monkeypatch):
  listening = []

  def launch(launch, listener):
    listening.append(listener.getsockname()[0])
    listener.close()
    raise isolation.NotIsolatedError('Operation not permitted')

  monkeypatch.setattr(isolation, 'launch_behind', launch)
  status, _, err = run(f'worker --port={free_port()}')
  assert status == 2 and listening == ['127.0.0.1'] and err.count('\n') == 1
  for part in ('every interface', 'Operation not permitted', '--insecure_network'):
    assert part in err


def free_port():
  with socket.socket() as free:
    free.bind(('', 0))
    return free.getsockname()[1]


def test_the_program_runs_the_same_each_time():
  assert worker_program.environment()['TF_DETERMINISTIC_OPS'] == '1'
  assert worker_program.environment(False)['TF_DETERMINISTIC_OPS'] == '0'


@pytest.mark.parametrize(
  'flag, variable', [('', '1'), ('--deterministic=true', '1'), ('--deterministic=false', '0')]
)
def test_determinism_is_a_switch(run, monkeypatch, flag, variable):
  started = []
  monkeypatch.setattr(worker_program, 'command', lambda *args: ['program'])

  def become(*args):
    started.append(args)
    raise SystemExit(0)

  monkeypatch.setattr(os, 'execve', become)
  assert run(f'worker --port={free_port()} --insecure_network {flag}')[0] == 0
  ((_, _, environment),) = started
  assert environment['TF_DETERMINISTIC_OPS'] == variable


def test_help_names_an_example_and_the_danger(run):
  status, out, _ = run('worker --help')
  assert status == 0 and 'fl-dpftrl worker --port=8000' in out
  assert 'private network' in ' '.join(out.split())
