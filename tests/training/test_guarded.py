"""TFF's `train_model` repeats discarded rounds; no noise row enters two sums."""

import asyncio

import pytest
import tensorflow_federated as tff

import fl_dpftrl as dpftrl
import tff_inprocess
from fl_dpftrl.training import guarded
from tests.tff_inprocess import small_processes

IDS = [f'd{i}' for i in range(4)]


class Releases(tff.program.ReleaseManager):
  """Keeps what is released."""

  def __init__(self):
    self.rows = []

  async def release(self, value, key):
    del key
    self.rows.append(value)


class Train:
  """A program, with the noise rows that entered sums, discarded ones included."""

  def __init__(self, folder, discarded=()):
    self.rows, self.sizes, self._discarded = [], [], list(discarded)
    strategy = dpftrl.BLT([0.9], [0.3])
    factory = dpftrl.CorrelatedNoiseFactory(
      strategy, noise_multiplier=2.0, clip_norm=0.5, report_goal=2, noise_seed=1
    )
    process = small_processes.unweighted(factory)
    schema = dpftrl.MinSep(num_rounds=9, min_sep=2)
    self.guard = dpftrl.Guard(
      dpftrl.Claim(strategy=strategy, noise_multiplier=2.0, schema=schema),
      delta=1e-6,
      max_epsilon=30.0,
      log=folder / 'log.parquet',
    )
    weights = process.get_model_weights.type_signature.result
    data = dict(zip(IDS, small_processes.clients()))
    self.process, self.source = guarded.guarded(
      process,
      self.guard,
      candidates=lambda t, k: IDS,
      client_data=lambda ids: [data[i] for i in ids],
      skip_row=factory.skip_row(weights.trainable),
    )
    self._manager = tff.program.FileProgramStateManager(str(folder / 'states'))

  def _discard(self, output):
    self.rows.append(int(output.metrics['aggregator']['noise_row']))
    return self._discarded.pop(0) if self._discarded else False

  def run(self, rounds):
    context = tff_inprocess.AsyncInProcessContext(tff_inprocess.InProcessContext(seed=1))
    # Outside of this test, contexts are as they were.
    with tff.framework.get_context_stack().install(tff.program.NativeFederatedContext(context)):
      asyncio.run(
        tff.learning.programs.train_model(
          train_process=self.process,
          train_data_source=self.source,
          train_per_round_clients=2,
          train_total_rounds=rounds,
          should_discard_round=self._discard,
          program_state_manager=self._manager,
          model_output_manager=Releases(),
          evaluation_manager=None,
          evaluation_periodicity=100,
        )
      )


@pytest.mark.slow
def test_discarded_rows_are_skipped_and_a_program_goes_on(tmp_path):
  first = Train(tmp_path, [False, True, True])
  first.run(2)
  assert first.rows == [0, 1, 2, 3]  # Each row is in one sum; TFF alone has 0, 1, 1, 1.
  first.guard.close()
  again = Train(tmp_path)
  again.run(3)
  assert again.rows == [4] and again.guard.num_rounds == 5
  # The guard lets each device in every other round.
  cohorts = [again.guard.log.cohort(t).tolist() for t in range(5)]
  assert cohorts == [IDS[:2], IDS[2:], IDS[:2], IDS[2:], IDS[:2]]
