"""The simulation that a run's flags describe."""

import dataclasses

import pytest

from experiments.stackoverflow import configuration, setting
from fl_dpftrl.simulation import availability, timer

HPARAMS = configuration.Hparams(noise_multiplier=1.0, report_goal=20, num_rounds=30)


def simulation(**changes):
  return setting.simulation(dataclasses.replace(HPARAMS, **changes), num_clients=400)


def test_by_default_devices_are_always_there_and_all_report():
  found = simulation()
  assert found.population.availability == availability.Always()
  assert (found.population.num_devices, found.population.dropout) == (400, 0.0)
  assert (found.server.report_goal, found.server.clients_per_round) == (20, 20)
  assert found.timer == timer.RoundTimer(1)


def test_flags_reach_the_simulation():
  found = simulation(
    availability='nightly',
    population=300,
    clients_per_round=26,
    timer_hours=24.0,
    report_minutes=5.0,
    seed=7,
  )
  assert found.population.availability == availability.Nightly()
  assert (found.population.num_devices, found.population.report_minutes) == (300, 5.0)
  assert (found.server.clients_per_round, found.timer) == (26, timer.HourTimer(24.0))
  assert found.seed == found.population.seed == 7


def test_availability_may_be_a_file_of_traces(tmp_path):
  path = tmp_path / 'traces.txt'
  with pytest.raises(FileNotFoundError, match='traces.txt'):
    simulation(availability=str(path))


def test_every_flag_is_a_hyperparameter_with_its_help():
  for field in dataclasses.fields(configuration.Hparams):
    flag = configuration.flags.FLAGS[field.name]
    assert flag.default == field.default
    assert flag.help.endswith(field.metadata['help'])
