"""Seeds that a study adds: where, until when, recorded, and with intervals that allow looking."""

import json

import numpy as np
import pytest
from scipy import stats

import fl_dpftrl as dpftrl
from fl_dpftrl.studies import intervals, sequential, table
from fl_dpftrl.studies import study as study_lib
from tests.studies import linear

MEANS = {'identity': 0.60, 'blt:1': 0.70, 'tree_online': 0.50}


@pytest.fixture(autouse=True)
def fixture_only_a_table(monkeypatch):
  """Writes the table alone: figures and predictions take longer than all else."""

  def write(self, **unused):
    (self.folder / 'table.md').write_text(table.markdown(self.design, self.rows))

  monkeypatch.setattr(study_lib.Study, 'write', write)


def trained(means=MEANS, spread=0.01, fails=lambda cell: False):
  """Returns a function that trains in no time: a mean by mechanism, and a draw by seed."""
  calls = []

  def train(cell):
    label = cell.setting.label
    calls.append((label, cell.seed))
    if fails(cell):
      raise RuntimeError('out of luck')
    draw = np.random.default_rng([cell.seed, sorted(MEANS).index(label), 4]).normal()
    accuracy = {'accuracy': means[label] + spread * draw}
    return {'validation': accuracy, 'test': accuracy, 'noise_multiplier': cell.noise_multiplier}

  return train, calls


def study(folder, train, said=None, **changes):
  arguments = dict(
    mechanisms=list(MEANS),
    epsilons=[4.0],
    server_learning_rates=[1.0],
    seeds=[0, 1, 2],
    schema=linear.SCHEMA,
    clip_norm=1.0,
    report_goal=linear.GOAL,
    without_noise=False,
    say=(lambda line: None) if said is None else said.append,
  )
  return dpftrl.study(train, folder=folder, **arguments | changes)


def test_nothing_is_added_where_the_first_look_is_clear(tmp_path):
  train, calls = trained()
  said = []
  found = study(tmp_path / 's', train, said, until_told_apart=1.0)
  assert len(calls) == 9 and found.looks == {4.0: (3,)}
  assert 'at each ε the best mechanism and the next are told apart' in said
  # Looking may go on, so the interval is that of the first look and not of 95 %.
  rows = {row.label: row for row in found.rows}
  values = [rows['blt:1'].tests[s] - rows['identity'].tests[s] for s in range(3)]
  interval = stats.t.interval(0.975, 2, np.mean(values), stats.sem(values))
  assert rows['identity'].difference.margin == pytest.approx(0.5 * (interval[1] - interval[0]))
  plain = study(tmp_path / 'plain', train)
  assert plain.looks == {} and not (tmp_path / 'plain' / sequential.NAME).exists()
  by_label = {row.label: row for row in plain.rows}
  assert by_label['identity'].difference.margin < rows['identity'].difference.margin
  assert 'Seeds were added' not in (tmp_path / 'plain' / 'table.md').read_text()


def test_the_two_best_get_seeds_until_they_are_told_apart(tmp_path):
  means = {**MEANS, 'identity': 0.685}
  train, calls = trained(means, spread=0.008)
  found = study(tmp_path / 's', train, until_told_apart=1.0)
  rows = {row.label: row for row in found.rows}
  looks = found.looks[4.0]
  assert len(looks) > 1 and looks[0] == 3
  assert all(later == -(-3 * now // 2) for now, later in zip(looks, looks[1:]))
  assert len(rows['blt:1'].tests) == len(rows['identity'].tests) == looks[-1]
  assert len(rows['tree_online'].tests) == 3 and rows['identity'].difference.is_clear
  # Not at any look before: each has its own confidence.
  for j, seeds in enumerate(looks, start=1):
    values = [rows['blt:1'].tests[s] - rows['identity'].tests[s] for s in range(seeds)]
    p_value = stats.ttest_1samp(values, 0.0).pvalue
    assert (p_value < 0.05 / (j * (j + 1))) == (j == len(looks))
  text = (tmp_path / 's' / 'table.md').read_text()
  more = looks[-1] - 3
  assert f'{more} of blt:1, {more} of identity at ε = 4 ({len(looks)} looks' in text
  assert 'Bonferroni over looks' in text
  # Later calls, with the flag or without, keep what was added.
  trained_before = len(calls)
  for changes in ({}, {'until_told_apart': 1.0}):
    again = study(tmp_path / 's', train, **changes)
    assert again.looks == found.looks and [r.tests for r in again.rows] == [
      r.tests for r in found.rows
    ]
  assert len(calls) == trained_before
  # Seeds that the design gets later are not trained twice.
  wider = study(tmp_path / 's', train, seeds=[0, 1, 2, 3])
  assert len(calls) == trained_before + 1 and calls[-1] == ('tree_online', 3)
  assert {row.label: len(row.tests) for row in wider.rows}['blt:1'] == looks[-1]


def test_an_interrupted_study_goes_on_with_the_seeds_that_it_recorded(tmp_path):
  means, stopped = {**MEANS, 'identity': 0.685}, []

  def interrupt(cell):
    if cell.seed == 4 and not stopped:
      stopped.append(cell)
      raise KeyboardInterrupt
    return False

  train, calls = trained(means, spread=0.008, fails=interrupt)
  with pytest.raises(KeyboardInterrupt):
    study(tmp_path / 's', train, until_told_apart=1.0)
  record = json.loads((tmp_path / 's' / sequential.NAME).read_text())
  assert record['seeds'] == [3, 4] and record['looks'] == {'4.0': [3]}
  found = study(tmp_path / 's', train, until_told_apart=1.0)
  whole, _ = trained(means, spread=0.008)
  at_once = study(tmp_path / 'whole', whole, until_told_apart=1.0)
  assert found.looks == at_once.looks
  assert [row.tests for row in found.rows] == [row.tests for row in at_once.rows]
  assert len(set(calls)) == len(calls) - 1  # The interrupted run alone was begun twice.


def test_time_ends_it_and_a_later_call_goes_on(tmp_path):
  train, calls = trained({**MEANS, 'identity': 0.70}, spread=0.02)
  said = []
  found = study(tmp_path / 's', train, said, until_told_apart=0.0)
  assert len(calls) == 9 and found.looks == {4.0: (3,)}
  assert any('the 0 hours are spent; not told apart' in line for line in said)
  for wrong in (-1.0, float('nan'), float('inf')):
    with pytest.raises(ValueError, match='until_told_apart'):
      study(tmp_path / 's', train, until_told_apart=wrong)


def test_runs_that_fail_end_it(tmp_path):
  train, calls = trained({**MEANS, 'identity': 0.70}, 0.02, fails=lambda cell: cell.seed > 2)
  said = []
  found = study(tmp_path / 's', train, said, until_told_apart=1.0)
  assert len(calls) == 11 and len(found.failed) == 2
  assert 'none of the runs with added seeds gave a result, so no more are added' in said


def test_a_damaged_record_is_refused(tmp_path):
  train, _ = trained()
  study(tmp_path / 's', train, until_told_apart=1.0)
  (tmp_path / 's' / sequential.NAME).write_text('{"seeds": [1]}')
  with pytest.raises(ValueError, match=sequential.NAME):
    study(tmp_path / 's', train)


def test_looks_again_and_again_are_wrong_in_no_more_than_5_percent():
  looks, rng, studies = (3, 5, 8, 12, 18), np.random.default_rng(8), 1500
  wrong = {True: 0, False: 0}
  for _ in range(studies):
    draws = rng.normal(size=looks[-1])
    for corrected in wrong:
      wrong[corrected] += any(
        intervals.paired(
          dict(enumerate(draws[:seeds])),
          dict.fromkeys(range(seeds), 0.0),
          looks[: j + 1] if corrected else (),
        ).is_clear
        for j, seeds in enumerate(looks)
      )
  slack = 3 * (0.05 * 0.95 / studies) ** 0.5
  assert 0.01 < wrong[True] / studies < 0.05 + slack < wrong[False] / studies
