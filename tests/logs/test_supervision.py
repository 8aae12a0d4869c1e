"""Commands that read files of others run in a child with limits, and end as it does."""

import pathlib
import resource
import signal
import subprocess
import sys
import time

import pytest

from fl_dpftrl.logs import limits
from fl_dpftrl.support import signals
from tests import made

# Does something in place of the command.
_PROGRAM = """
import os, resource, signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # It is ignored under nohup.
from fl_dpftrl.commands import dispatch, main
def work(arguments, guard):
  with guard('fl-dpftrl replay: interrupted'):
    exec(arguments[1])
dispatch.run = work
main.main()
"""


def ended(work):
  # Before the child there is no thread: Python 3.12 and newer would warn.
  arguments = [sys.executable, '-W', 'always:This process', '-c', _PROGRAM, 'replay', work]
  return subprocess.run(arguments, capture_output=True, text=True, timeout=60)


@made.cases(
  'number, words',
  (signal.SIGSEGV, 'a file crashed what read it (SIGSEGV); it is damaged'),
  (signal.SIGABRT, 'a file crashed what read it (SIGABRT)'),
  (signal.SIGXCPU, f'a part of a file took more than {limits.PART_CPU_SECONDS} s of computing'),
  (signal.SIGKILL, 'it was killed, as happens where memory is short'),
)
def test_a_crash_is_one_line(number, words):
  done = ended(f'os.kill(os.getpid(), {int(number)})')
  assert (done.returncode, done.stdout) == (2, '')
  assert done.stderr.startswith('fl-dpftrl replay: ') and words in done.stderr
  assert done.stderr.count('\n') == 1


def test_limits_are_those_of_the_child_and_its_output_and_status_go_on():
  done = ended(
    'print(*(resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_CORE, resource.RLIMIT_AS)));'
    'print("told", file=sys.stderr); sys.exit(4)'
  )
  assert (done.returncode, done.stdout, done.stderr) == (4, f'0 {limits.MEMORY}\n', 'told\n')
  assert resource.getrlimit(resource.RLIMIT_AS)[0] != limits.MEMORY


@made.cases('work, status', ('', 0), ('sys.exit(4)', 4), ('1 / 0', 1))
def test_what_crashes_as_an_interpreter_ends_is_left_out(work, status):
  crash = (
    'class Crash:\n  def __del__(self, os=os): os.kill(os.getpid(), 11)\nsignal.crash = Crash()\n'
  )
  told = 'import atexit; atexit.register(print, "end")\n'
  done = ended(crash + told + work)
  assert (done.returncode, done.stdout) == (status, 'end\n')
  assert ('ZeroDivisionError' in done.stderr) == (status == 1) and 'crashed' not in done.stderr


def test_names_of_columns_are_read_without_a_pool_of_threads(tmp_path):
  (tmp_path / 'log.csv').write_text('kind,num\n0,1\n')
  count = 'print(len(os.listdir("/proc/self/task")))'
  work = f'try: participation_log.read_log("{tmp_path}/log.csv")\nexcept ValueError: {count}'
  done = ended(f'from fl_dpftrl.logs import participation_log\n{count}\n{work}')
  before, after = map(int, done.stdout.split())
  assert after - before <= 1  # Arrow's own


def test_a_part_that_takes_too_long_ends():
  work = 'from fl_dpftrl.logs import limits; limits.grant_time(0)\nwhile True: pass'
  done = ended(work)
  assert done.returncode == 2 and 's of computing' in done.stderr


@pytest.mark.parametrize('number', signals.SIGNALS)
def test_a_signal_goes_on_to_the_child(number):
  done = ended(f'os.kill(os.getppid(), {int(number)}); time.sleep(30)')
  assert (done.returncode, done.stderr) == (128 + number, 'fl-dpftrl replay: interrupted\n')


def test_a_child_ends_with_its_parent(tmp_path):
  work = (
    f'open({str(tmp_path / "child")!r}, "w").write(str(os.getpid()));'
    'os.kill(os.getppid(), signal.SIGKILL); time.sleep(30)'
  )
  assert ended(work).returncode == -signal.SIGKILL  # Its streams are closed too.
  stat = pathlib.Path('/proc', (tmp_path / 'child').read_text(), 'stat')
  deadline = time.monotonic() + 20
  while stat.exists() and stat.read_text().rsplit(')', 1)[1].split()[0] != 'Z':
    assert time.monotonic() < deadline
    time.sleep(0.05)
