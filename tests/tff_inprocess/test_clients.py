"""Clients at the same time, taken in order, and dropped when they must be."""

import signal
import threading
import time

import pytest
import tensorflow as tf

from tff_inprocess import clients, memory, threads

pytestmark = pytest.mark.tff


def busy() -> int:
  """Threads of clients that have a task."""
  return sum(t.name == 'client' for t in threading.enumerate()) - len(threads._IDLE)


@pytest.mark.parametrize('num', [10, 100, 129, 6500])
def test_blocks_follow_one_another(num):
  blocks = clients.blocks(num)
  assert [client for block in blocks for client in block] == list(range(num))
  assert len({len(block) for block in blocks[:-1]}) <= 1 and len(blocks[0]) <= 8
  # As the table of docs/decisions/runtime.md has it.
  assert len(blocks) == {10: 10, 100: 17, 129: 17, 6500: 813}[num]


def test_results_come_in_order_whoever_is_fast():
  def work(index, manager):
    time.sleep(0.02 if index % 3 == 0 else 0.0)
    return index

  for num_threads in (1, 2, 8):
    assert list(threads.in_order(work, 20, num_threads)) == list(range(20))
  assert not list(threads.in_order(work, 0, 4))


def test_the_first_of_those_that_fail_counts_and_ends_all():
  third_has_failed, second_has_failed = threading.Event(), threading.Event()
  begun = []

  def work(index, manager):
    begun.append(index)
    if index == 3:
      third_has_failed.set()
      raise ValueError('third')
    if index == 2:
      third_has_failed.wait()
      second_has_failed.set()
      raise ValueError('second')
    second_has_failed.wait()

  with pytest.raises(ValueError, match='^second$'):
    list(threads.in_order(work, 1000, 4))
  assert max(begun) <= 2 * 4 and not busy()


def test_a_stop_wins_over_what_it_cancels():
  stop = threads.Stop()

  def work(index, manager):
    stop.ask()
    assert manager.is_cancelled
    raise tf.errors.CancelledError(None, None, 'cancelled')

  with pytest.raises(RuntimeError, match='^the round was stopped$'):
    list(threads.in_order(work, 3, 2, stop))


@pytest.mark.slow
def test_an_endless_client_is_cancelled():
  @tf.function
  def endless():
    data = tf.data.Dataset.range(1).repeat()
    return data.reduce(tf.constant(0, tf.int64), lambda a, b: a + b)

  endless_graph = endless.get_concrete_function()

  main = threading.main_thread().ident  # Another thread would take it, and nobody be woken.
  interrupt = threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT))

  def work(index, manager):
    if index:
      raise OSError('client 1')
    interrupt.start()  # Not before the test waits for it.
    return manager.get_cancelable_function(endless_graph)()

  results = threads.in_order(work, 2, 2)
  with pytest.raises(KeyboardInterrupt):
    next(results)
  assert not busy()


def test_another_thread_stops_a_round_and_all_to_come():
  stop = threads.Stop()
  endless = threading.Event()

  def ask_and_end():
    stop.ask()
    endless.set()

  asking = threading.Timer(0.2, ask_and_end)
  asking.start()
  with pytest.raises(RuntimeError, match='stopped'):
    list(threads.in_order(lambda index, _: endless.wait(), 3, 2, stop))
  asking.join()
  with pytest.raises(RuntimeError, match='stopped'):
    list(threads.in_order(lambda index, _: index, 3, 2, stop))


@pytest.mark.parametrize(
  'free, model_bytes, expected',
  [(None, 10, 8), (10**9, 0, 8), (10**9, 10**6, 8), (10**9, 30 * 10**6, 2), (10**9, 10**9, 1)],
)
def test_memory_bounds_who_trains_at_the_same_time(monkeypatch, free, model_bytes, expected):
  monkeypatch.setattr(memory.machine, 'free_memory', lambda: free)
  monkeypatch.setattr(memory.machine, 'cores', lambda: 4)
  assert memory.concurrent_clients(model_bytes) == expected


def test_one_client_at_a_time_with_onednn(monkeypatch):
  monkeypatch.setattr(memory, 'uses_one_dnn', lambda: True)
  memory._warn_of_one_dnn.cache_clear()
  with pytest.warns(RuntimeWarning, match='TF_ENABLE_ONEDNN_OPTS=0') as told:
    assert memory.concurrent_clients(1, 5) == memory.concurrent_clients(1, 2) == 1
  assert len(told) == 1
