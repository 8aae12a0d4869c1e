"""What rounds in process take from the machine: memory and descriptors, and no more."""

import collections
import contextlib
import ctypes
import gc
import os
import pathlib
import statistics

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.tff.training import processes
from tests import made

pytestmark = [pytest.mark.tff, pytest.mark.slow]

NUM_ROUNDS = 75
WIDTH = 512  # A copy of the weights a round is far above what allocators hold back.
WEIGHT_BYTES = 4 * WIDTH**2
SPEC = collections.OrderedDict(
  x=tf.TensorSpec([None, WIDTH], tf.float32), y=tf.TensorSpec([None, WIDTH], tf.float32)
)


def linear_model():
  return tff.learning.models.FunctionalModel(
    initial_weights=((np.zeros([WIDTH, WIDTH], np.float32),), ()),
    predict_on_batch_fn=tf.function(lambda weights, x, training: x @ weights[0][0]),
    loss_fn=tf.function(
      lambda output, label, sample_weight=None: tf.reduce_mean(tf.square(output - label))
    ),
    input_spec=SPEC,
  )


def resident_bytes() -> int:
  """Memory that is in use, without what waits for the collector or to be used again."""
  gc.collect()
  ctypes.CDLL(None).malloc_trim(0)
  pages = pathlib.Path('/proc/self/statm').read_text().split()[1]
  return int(pages) * os.sysconf('SC_PAGE_SIZE')


def ports_and_children() -> tuple[set[str], set[str]]:
  """Returns the sockets at which this process listens, and its children."""
  held = set()
  for link in pathlib.Path('/proc/self/fd').iterdir():
    with contextlib.suppress(OSError):
      held.add(os.readlink(link))
  tables = [pathlib.Path(f'/proc/self/net/{name}').read_text() for name in ('tcp', 'tcp6')]
  fields = [line.split() for table in tables for line in table.splitlines()[1:]]
  ports = {f[9] for f in fields if f[3] == '0A' and f'socket:[{f[9]}]' in held}
  threads = pathlib.Path('/proc/self/task').glob('*/children')
  return ports, {child for thread in threads for child in thread.read_text().split()}


def test_rounds_take_no_more_and_more(in_process):
  x = np.ones([4, WIDTH], np.float32)
  data = [tf.data.Dataset.from_tensors(collections.OrderedDict(x=x, y=x))] * 3
  aggregator = made.factory(noise_multiplier=0.1, report_goal=3, memory='engine')
  before = ports_and_children()
  third = NUM_ROUNDS // 3
  with in_process():
    process = processes.build_fed_avg(
      linear_model(),
      aggregator=aggregator,
      client_learning_rate=0.1,
      server_learning_rates=np.ones(1),
    )
    state, resident, opened = process.initialize(), [], []
    for number in range(NUM_ROUNDS):
      state = process.next(state, data).state
      opened.append(len(os.listdir('/proc/self/fd')))
      if number % third == third - 1:
        resident.append(resident_bytes())
    assert before == ports_and_children()
  # A row that is being made may hold a file for a moment, in any round.
  assert statistics.median(opened[-third:]) <= statistics.median(opened[third:-third])
  # The first rounds fill the allocator's pools. TensorFlow itself keeps some 200 bytes
  # of each data set that is read, and threads pass memory on as they come and go; a copy of the
  # weights in each round is far more.
  _, middle, last = resident
  assert last - middle < third * WEIGHT_BYTES / 2
