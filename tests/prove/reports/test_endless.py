"""The page of a run without an end."""

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.prove.reports import privacy, settings

CLAIM = dpftrl.Claim(
  strategy=dpftrl.BLT([0.9], [0.3]),
  noise_multiplier=3.0,
  participation=dpftrl.LossBudget(max_participations=2, min_sep=3),
)


@pytest.mark.parametrize('second, holds', [(3, True), (1, False)])
def test_the_page_has_one_figure_for_any_number_of_rounds(tmp_path, second, holds):
  with dpftrl.LogWriter(tmp_path / 'participation.parquet', CLAIM) as log:
    for t in range(6):
      log.append(t, ['a', 'b'] if t in (0, second) else [f'c{t}'], t)
  CLAIM.save(tmp_path)
  stated = dpftrl.replay(tmp_path, delta=1e-6)
  assert stated.declared.holds == holds
  for statement in (stated, stated.publishable()):
    text = ' '.join(privacy.report(statement, settings.Setting()).split())
    assert ('any number of rounds' in text) and ('devices passed it' in text) != holds
    assert '>none' not in text and 'None rounds' not in text and 'most None' not in text
    is_shown = statement is stated and holds
    assert ('Devices by share of the budget: 6 in all' in text) == is_shown
    assert ('Quote the declared loss budget' in text) == holds
