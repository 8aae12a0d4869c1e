"""A signal ends work between two steps, and a second one at once."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from experiments.stackoverflow import interrupts
from fl_dpftrl.support import signals


@pytest.fixture(autouse=True)
def signals_are_heard():
  before = {n: signal.getsignal(n) for n in signals.SIGNALS}
  for number in before:  # A shell, or nohup, may have had them ignored.
    signal.signal(number, signal.SIG_DFL)
  signal.signal(signal.SIGINT, signal.default_int_handler)
  yield
  for number, handler in before.items():
    signal.signal(number, handler)


def test_work_that_nobody_interrupts(capsys):
  interrupts.run(lambda _: print('done'))
  assert capsys.readouterr().out == 'done\n'
  assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize('number', signals.SIGNALS)
def test_ends_at_the_next_look(number):
  seen = []

  def work(interrupt):
    os.kill(os.getpid(), number)
    while not interrupt.asked:
      time.sleep(0.01)
    seen.append('step')
    interrupt.check()
    seen.append('never')

  with pytest.raises(KeyboardInterrupt):
    interrupts.run(work)
  assert seen == ['step']


def test_a_step_that_takes_long_is_aborted(monkeypatch):
  monkeypatch.setattr(interrupts, '_PATIENCE_SECONDS', 0.2)
  aborted, cleaned = threading.Event(), threading.Event()

  def work(interrupt):
    interrupt.on_abort(aborted.set)
    os.kill(os.getpid(), signal.SIGINT)
    aborted.wait(60)
    cleaned.set()

  with pytest.raises(KeyboardInterrupt):
    interrupts.run(work)
  assert aborted.is_set() and cleaned.is_set()


def test_a_step_that_does_not_end_is_left(monkeypatch):
  monkeypatch.setattr(interrupts, '_PATIENCE_SECONDS', 0.1)
  never = threading.Event()

  def work(_):
    os.kill(os.getpid(), signal.SIGINT)
    never.wait(60)

  with pytest.raises(KeyboardInterrupt):
    interrupts.run(work)
  never.set()


def test_the_second_signal_ends_the_process():
  program = """
import os, signal, time
from experiments.stackoverflow import interrupts
from fl_dpftrl.support import signals
signal.signal(signal.SIGINT, signal.default_int_handler)
def work(interrupt):
  os.kill(os.getpid(), signal.SIGINT)
  while not interrupt.asked: time.sleep(0.01)
  os.kill(os.getpid(), signal.SIGINT)
  time.sleep(60)
interrupts.run(work)
"""
  done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, timeout=60)
  assert (done.returncode, done.stdout, done.stderr) == (130, '', '')
