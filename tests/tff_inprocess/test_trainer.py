"""Work that travels, without a cluster: what is sent, trained and merged."""

import pickle

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_inprocess
from tests import every_family, made
from tests.tff_inprocess import small_processes as small
from tff_inprocess import clients, trainer

pytestmark = pytest.mark.tff


class Elsewhere(clients.Threads):
  """Trains and merges every group by a `trainer.Trainer`, to which all is sent as pickles."""

  def __init__(self, sent):
    super().__init__()
    object.__setattr__(self, 'sent', sent)

  def groups(self, work, stop):
    sent, lost = self.sent, []

    def put(value):
      sent.append(pickle.dumps(value))
      return len(sent) - 1

    def fetch(reference):
      if reference in lost:
        lost.remove(reference)
        raise KeyError(reference)
      return pickle.loads(sent[reference])

    options = dict(at_a_time=1, num_threads=1, deterministic=False)
    there = trainer.Trainer(fetch=fetch, lost=(KeyError,), **options)
    sender = trainer.Sender(put)
    reference = [sender.work(work, merges=True)]
    blocks = [sender.block(work, block) for block in clients.blocks(work.num_clients)]
    for group in clients.groups(len(blocks)):
      outcomes = [there.train(reference, blocks[index]) for index in group]
      assert [failed for failed, _ in outcomes] == [None] * len(group)
      references = [put(one) for _, one in outcomes]
      lost.append(references[0])
      assert there.merge(reference, references) == ([0], None)
      failed, merged = there.merge(reference, references)
      assert failed is None
      yield trainer.received(merged)


@pytest.mark.slow
def test_rounds_have_the_same_bits_and_no_noise_is_sent(monkeypatch):
  monkeypatch.setattr(clients, 'GROUP', 3)
  options = dict(noise_multiplier=0.3, clip_norm=0.5, report_goal=4, noise_seed=3)
  aggregator = made.factory(every_family.example('blt', 4), memory='state', **options)
  process = small.unweighted(aggregator)
  sent, states = [], []
  for place in (None, Elsewhere(sent)):
    context = tff_inprocess.InProcessContext(seed=7, clients_at=place)
    with tff.framework.get_context_stack().install(context):
      state = process.initialize()
      for number in range(2):
        state = process.next(state, small.clients(number) * 2).state
    states.append(state)
  for one, other in zip(*map(tf.nest.flatten, states), strict=True):
    np.testing.assert_array_equal(one, other)
  secret = [np.asarray(leaf) for leaf in tf.nest.flatten(states[0].aggregator)]
  secret = [leaf.tobytes() for leaf in secret if leaf.nbytes >= 16 and leaf.any()]
  assert len(secret) > 2 and not any(one in pickled for one in secret for pickled in sent)
