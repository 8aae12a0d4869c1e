"""Signals end a program in one line, at any moment, and leave nothing behind."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from fl_dpftrl.support import signals
from fl_dpftrl.support.files import durable
from tests import made

ROOT = pathlib.Path(__file__).parents[2]
INT, TERM, HUP = signals.SIGNALS

# A program that sends itself a signal where it first imports a module, or calls a function.
AT_IMPORT = """
import os, runpy, sys
number, awaited, program = int(sys.argv[1]), sys.argv[2], sys.argv[3]
class Finder:
  def find_spec(self, name, path=None, target=None):
    if name == awaited:
      os.kill(os.getpid(), number)
sys.meta_path.insert(0, Finder())
sys.argv[1:] = sys.argv[4:]
runpy.run_module(program, run_name='__main__', alter_sys=True)
"""
# A background job's children ignore interrupts, and those of nohup hangups.
HEARS_SIGNALS = """
import signal
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
"""


def ended(program: str, *arguments: object, **kwargs) -> subprocess.CompletedProcess:
  """Runs a program of those above to its end."""
  command = [sys.executable, '-c', HEARS_SIGNALS + program, *map(str, arguments)]
  return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, **kwargs)


@made.cases(
  'number, program, module, flags',
  (TERM, 'fl_dpftrl.commands.main', 'numpy', ['describe', 'identity', '--num_rounds=4']),
  (TERM, 'experiments.stackoverflow.train', 'absl', ['--output_dir=none']),
  (HUP, 'fl_dpftrl.commands.main', 'numpy', ['describe', 'identity', '--num_rounds=4']),
  (INT, 'experiments.stackoverflow.study', 'argparse', ['--study=none', '--output_dir=none']),
)
def test_while_a_program_imports(program, module, flags, number):
  done = ended(AT_IMPORT, int(number), module, program, *flags)
  assert (done.returncode, done.stdout) == (128 + number, '')
  name = 'fl-dpftrl' if program.startswith('fl_') else program.rpartition('.')[2]
  assert done.stderr == f'{name}: interrupted\n'


def interrupted_at(step: int, work) -> bool:
  """Does work, and raises KeyboardInterrupt after a call in `files`; False if there are fewer."""
  left = step

  def profile(frame, event, arg):
    nonlocal left
    caller = frame if event.startswith('c_') else frame.f_back
    if event in ('return', 'c_return') and caller.f_code.co_filename == durable.__file__:
      left -= 1
      if left == 0:
        raise KeyboardInterrupt

  before = sys.getprofile()
  sys.setprofile(profile)
  try:
    work()
  except KeyboardInterrupt:
    return True
  finally:
    sys.setprofile(before)
  return False


def write_folder(path: pathlib.Path) -> None:
  with durable.building(path) as temporary:
    durable.write_durably(temporary / 'file', b'content')


@pytest.mark.parametrize(
  'write', [write_folder, lambda path: durable.write_durably(path, b'content', private=True)]
)
def test_at_any_moment_of_a_writer(tmp_path, write):
  step = 1
  while interrupted_at(step, lambda: write(tmp_path / 'new')):
    assert {path.name for path in tmp_path.iterdir()} <= {'new'}, step
    for path in tmp_path.iterdir():
      path.unlink() if path.is_file() else durable.shutil.rmtree(path)
    step += 1
  assert step > 10


@pytest.fixture(name='heard')
def _heard():
  before = {n: signal.getsignal(n) for n in (*signals.SIGNALS, signal.SIGALRM)}
  for number in signals.SIGNALS:
    signal.signal(number, signal.SIG_DFL)
  yield
  signals.restore(before)


@pytest.mark.usefixtures('heard')
def test_a_lost_signal_is_raised_again(capsys):
  class Loses:
    def __del__(self):
      os.kill(os.getpid(), signal.SIGTERM)

  cleaned = []
  with pytest.raises(SystemExit) as end, signals.cleaned_up('program: interrupted'):
    try:
      Loses()
      signal.pause()  # Until the signal comes again.
    finally:
      os.kill(os.getpid(), signal.SIGINT)  # Waits for the clean-up.
      cleaned.append(True)
  assert (end.value.code, cleaned) == (143, [True])
  assert capsys.readouterr().err == 'program: interrupted\n'


@pytest.mark.usefixtures('heard')
def test_whatever_a_library_makes_of_a_signal_ends_the_program(capsys):
  with pytest.raises(SystemExit) as end, signals.cleaned_up('program: interrupted'):
    try:
      os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
      raise RuntimeError('query interrupted') from None
  assert end.value.code == 130
  assert capsys.readouterr().err == 'program: interrupted\n'
  with pytest.raises(KeyError), signals.cleaned_up('program: interrupted'):
    raise KeyError
  assert signal.getsignal(signal.SIGALRM) is not None


def test_processes_that_are_started_do_not_hear_interrupts():
  with signals.hidden_from_children():
    program = 'import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))'
    done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True)
  assert 'SIGINT' in done.stdout and 'SIGTERM' not in done.stdout
  assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
