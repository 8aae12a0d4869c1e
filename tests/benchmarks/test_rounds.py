"""The parts of the rounds benchmark that need no long run."""

import pytest

from benchmarks.rounds import cases, noise, run, simulated
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


def test_page():
  about = {
    'date': '2026-01-01',
    'processor': 'x86_64',
    'cores': 4,
    'versions': {'python': '3.11.7'},
  }
  row = {
    'strategy': 'blt-4',
    'size': 10,
    'threads': 1,
    'seconds': [0.2],
    'cpu_seconds': [0.2],
    'reading': [0.1],
    'normals': [0.1],
    'state_bytes': 5e6,
  }
  peer = {'strategy': 'blt-4', 'ours': [1.0], 'seconds': [1.5], 'state_bytes': 1}
  training = {
    'size': 10,
    'batches': 1,
    'gibibytes': 2.0,
    'seconds': {'plain': [1.0, 1.0], 'blt-4': [1.0, 1.5]},
    'state_bytes': {'plain': 1e6, 'blt-4': 2e6},
  }
  machines = {
    'case': 'lstm-128',
    'nodes': 2,
    'seconds': {'in process': [1.0], 'machines': [1.2]},
    'model_bytes': 2e6,
    'sent': {'to_machine': 2.1e6, 'to_driver': 6e7, 'num': 60},
  }
  text = run.document(about, [row], [peer], [training], [machines])
  assert '4 cores. python 3.11.7.' in text and text.count('blt-4') == 3
  for found in ('2.00×', '1.5×', '1.25× plain', '2.0 ', '1.20×', '60.0'):
    assert found in text
  assert run.spread([1.0, 0.5, 2.0]) == '1,000 (500–2,000)'


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
