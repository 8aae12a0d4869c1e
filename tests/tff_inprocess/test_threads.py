"""Threads that are used again and again."""

import os
import threading

import pytest

from tff_inprocess import threads

pytestmark = pytest.mark.tff


def ids(num_clients: int, num_threads: int) -> set[int]:
  """Threads that work in a round; each waits for all others."""
  together = threading.Barrier(num_threads)

  def work(index, manager):
    together.wait(30)
    return threading.get_ident()

  return set(threads.in_order(work, num_clients, num_threads))


def test_rounds_use_the_same_threads():
  first = ids(3, 3)
  assert len(first) == 3
  for _ in range(20):
    assert ids(2, 2) <= set(threading._active)
  assert sum(t.name == 'client' for t in threading.enumerate()) == len(threads._IDLE)
  count = threading.active_count()
  for _ in range(20):
    ids(3, 3)
  assert threading.active_count() == count


@pytest.mark.filterwarnings('ignore::pytest.PytestUnhandledThreadExceptionWarning')
def test_a_thread_whose_task_raises_is_not_used_again():
  def fail():
    raise OSError('a task')

  assert threads.start(fail).wait(30)
  done = threading.Event()
  assert threads.start(done.set).wait(30) and done.is_set()


def test_a_forked_process_starts_threads_of_its_own():
  assert ids(1, 1)
  child = os.fork()
  if not child:
    os._exit(not threads.start(lambda: None).wait(30))
  assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
