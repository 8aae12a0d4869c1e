"""The parts of the rounds benchmark that need no long run."""

import pytest

from benchmarks.rounds import cases, noise, simulated
from fl_dpftrl.noise import recurrence


@pytest.mark.slow
@pytest.mark.parametrize('name', sorted({case.strategy for case in cases.ROW_CASES}))
def test_rows_are_timed(name):
  found = noise.main(name, 1000, 1, 2)
  assert len(found['seconds']) == len(found['reading']) == len(found['normals']) == 2
  strategy = cases.strategy(name)
  assert found['state_bytes'] == recurrence.buffer_bytes(strategy, cases.NUM_ROUNDS, 1000)
  if name.startswith('banded'):
    assert cases.first_row(name) > strategy.num_bands
    assert cases.first_row(name) % 16 == 8


@pytest.mark.parametrize(
  'merges, seconds_of_driver, num_machines',
  [(False, 813 * 0.032, 100), (True, 26 * 0.032, 100), (False, 813 * 0.032, 10)],
)
def test_a_simulated_driver_takes_what_paper_says(merges, seconds_of_driver, num_machines):
  found = simulated.Simulation(4_000_000, 0.2, merges, num_machines).run()
  # It may also wait for the link of a machine.
  assert seconds_of_driver - 1e-6 < found.driver_seconds < 1.05 * seconds_of_driver
  training = 6500 * 0.2 / num_machines
  assert max(training, seconds_of_driver) < found.seconds < training + seconds_of_driver + 3.0
  assert found.most_waiting <= 2 * num_machines
