"""Losses in round after round, of actors and of machines.

The row of noise is among what is compared with rounds in process, where none is used twice.
"""

import contextlib
import os
import random
import signal
import threading
import time

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl import runtime
from tests import every_family
from tests.runtime import small_processes as small
from tests.runtime import test_machines as machines

pytest.importorskip('ray')

pytestmark = [pytest.mark.tff, pytest.mark.slow, pytest.mark.thorough]

NUM_ROUNDS, NUM_KILLS = 20, 50


def noisy(num_rounds):
  return small.unweighted(
    dpftrl.CorrelatedNoiseFactory(
      every_family.example('blt', num_rounds),
      noise_multiplier=0.3,
      clip_norm=0.5,
      report_goal=machines.NUM_CLIENTS,
      noise_seed=3,
    )
  )


def slow(number, place):
  time.sleep(0.03)
  return machines.client(number, place)


def check(context, before, num_rounds):
  process = noisy(num_rounds)
  found = machines.trained(context, process, num_rounds, slow, before)
  machines.assert_same(machines.here(process, num_rounds), found)


def test_a_machine_is_lost_in_each_of_twenty_rounds(cluster):
  draws = random.Random(5)
  add = lambda: cluster.add_node(num_cpus=1, object_store_memory=100_000_000)
  actors = runtime.Actors(number=3, cpus=0.5)
  nodes, ends, num_lost = [add()], [], 0
  with runtime.on_machines(cluster.address, seed=7, actors=actors) as context:

    def lose():
      nonlocal num_lost
      cluster.remove_node(nodes.pop(), allow_graceful=False)
      num_lost += 1

    def before(number):
      for end in ends:
        end.join()
      if not nodes:
        nodes.append(add())  # Ray starts a node in the main thread alone.
      ends[:] = [threading.Timer(draws.uniform(0.1, 0.6), lose)]
      ends[0].start()

    check(context, before, NUM_ROUNDS)
    for end in ends:
      end.join()
  assert num_lost == NUM_ROUNDS


def test_fifty_actors_are_lost(cluster):
  draws = random.Random(7)
  kills, ends = [], []
  actors = runtime.Actors(number=2, cpus=0.5)
  with runtime.on_machines(cluster.address, seed=7, actors=actors) as context:

    def kill():
      if pids := context.clients_at.pids:
        kills.append(draws.choice(pids))
        with contextlib.suppress(ProcessLookupError):
          os.kill(kills[-1], signal.SIGKILL)

    def before(number):
      for end in ends:
        end.join()
      ends[:] = [threading.Timer(draws.uniform(0.1, 0.6), kill)]
      if len(set(kills)) < NUM_KILLS:
        ends[0].start()
      else:
        ends.clear()

    check(context, before, NUM_KILLS + 10)
    for end in ends:
      end.join()
    assert len(set(kills)) == NUM_KILLS <= context.clients_at.losses
