import dataclasses

import pytest

from fl_dpftrl.simulation import fitting, recording, scenario

PHONES = scenario.Scenario(population=1, report_goal=10)

# The BLT paper's table of production runs: language, known run, run with about
# twice its report goal. A min-sep above the rounds: nobody took part twice.
PRODUCTION = [
  ('pt-PT', 100, (72.0,), fitting.Row(3000, 430, 92, 4), fitting.Row(6000, 320, 49, 6)),
  ('pt-BR', 65, (336.0,), fitting.Row(6500, 2000, 2001, 1), fitting.Row(12000, 2000, 1181, 2)),
]


@pytest.mark.slow
@pytest.mark.parametrize(
  'language, scale, timers, known, other',
  # The runs of the second have five times as many rounds.
  [PRODUCTION[0], pytest.param(*PRODUCTION[1], marks=pytest.mark.thorough)],
)
def test_one_run_of_production_predicts_the_other(language, scale, timers, known, other):
  del language
  found = fitting.fit(known, PHONES, timers=timers, scale=scale)
  assert found.min_sep == pytest.approx(known.apart, rel=0.01)
  assert found.max_participations == known.max_participations
  phones = dataclasses.replace(
    PHONES,
    population=found.num_devices // scale,
    report_goal=other.report_goal // scale,
    timer_hours=found.timer_hours,
  )
  predicted = recording.simulate(phones, num_rounds=other.num_rounds)
  assert predicted.min_sep == pytest.approx(other.apart, rel=0.15)
  assert predicted.max_participations == other.max_participations


@pytest.mark.slow
def test_finds_the_population_that_made_the_row():
  truth = scenario.Scenario(population=1500, report_goal=15, timer_hours=48.0)
  made = recording.simulate(truth, num_rounds=120)
  row = fitting.Row(15, 120, made.min_sep, made.max_participations)
  lines = []
  found = fitting.fit(row, PHONES, timers=[24.0, 48.0], progress=lines.append)
  assert found.num_devices == pytest.approx(1500, rel=0.05)
  assert found.min_sep == pytest.approx(made.min_sep, rel=0.01)
  assert found.max_participations == made.max_participations
  assert len(lines) > 5 and lines[0].startswith('timer of 24 h')


@pytest.mark.slow
def test_says_what_nothing_explains():
  with pytest.raises(ValueError, match='min-sep of 50 with 9 participations'):
    fitting.fit(fitting.Row(10, 100, 50, 9), PHONES, timers=[24.0])


@pytest.mark.parametrize('chosen', [None, 13])
def test_another_report_goal_chooses_as_many_more(chosen):
  resized = scenario.Scenario(population=100, report_goal=10, clients_per_round=chosen).simulation(
    num_devices=70, report_goal=20
  )
  assert (resized.population.num_devices, resized.server.clients_per_round) == (70, 26)
