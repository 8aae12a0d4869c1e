"""Runs and study on the language with topics."""

import functools
import sys

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from experiments.topics import __main__ as command
from experiments.topics import run

TASK = run.Task(
  num_clients=150, num_sentences=3, embedding=8, rounds_per_evaluation=5, num_test_sentences=60
)
SCHEMA = dpftrl.MinSep(num_rounds=12, min_sep=4)
SMALL = {
  'mechanisms': ('identity', 'blt:2'),
  'epsilons': (4,),
  'server_learning_rates': (0.3,),
  'extend_rates': 0,
  'seeds': (0, 1),
  'schema': SCHEMA,
  'report_goal': 4,
  'deployment_report_goal': 8,
}


def test_cohorts_keep_to_the_schema_and_to_their_seed():
  drawn = run.cohorts.__wrapped__(TASK, SCHEMA, 4, 5)
  last = {}
  for t, (clients, sentences) in enumerate(drawn):
    assert len(set(clients)) == 4 and sentences.shape == (4, 3, 21)
    assert all(t - last.get(client, -99) >= 4 for client in clients)
    last |= dict.fromkeys(clients, t)
  for (clients, sentences), (same, alike) in zip(drawn, run.cohorts(TASK, SCHEMA, 4, 5)):
    np.testing.assert_array_equal(clients, same)
    np.testing.assert_array_equal(sentences, alike)
  assert (drawn[0][0] != run.cohorts(TASK, SCHEMA, 4, 6)[0][0]).any()
  text = run.topics.load(seed=0, num_clients=150).sentences(f'client{drawn[0][0][0]:06d}')
  assert all((text == row).all(axis=1).any() for row in drawn[0][1][0])


@pytest.mark.slow
def test_study_and_its_page(tmp_path, monkeypatch, capsys):
  trained, plain = [], run.train

  def train(task, cell):
    trained.append(cell.name)
    return plain(task, cell)

  monkeypatch.setattr(command, 'STUDY', {**command.STUDY, **SMALL})
  monkeypatch.setattr(command, 'TASK', TASK)
  monkeypatch.setattr(command.run, 'train', train)
  page = tmp_path / 'study-topics.md'
  arguments = ['topics', f'--output_dir={tmp_path / "study"}', f'--publish={page}']
  monkeypatch.setattr(sys, 'argv', arguments)
  for _ in range(2):
    with pytest.raises(SystemExit) as ended:
      command.main()
    assert ended.value.code == 0
  assert len(trained) == len(set(trained)) == 6  # The second call trains none.
  capsys.readouterr()
  text = page.read_text()
  assert '- devices: 150' in text and '- rounds: 12' in text and '- data set: topics' in text
  assert '150 clients speak' in text and '12 rounds and a min-sep of 4' in text
  assert (tmp_path / 'study-topics' / 'accuracy_by_epsilon.svg').exists()
  for name in trained:
    log = tmp_path / 'study' / 'cells' / name / 'rounds' / 'participation.parquet'
    assert log.exists()


def test_an_interrupted_run_begins_anew(tmp_path, monkeypatch):
  calls = []
  plain = run.log_bilinear.gradients

  def gradients(*arguments):
    calls.append(1)
    if len(calls) == 5:
      raise MemoryError('no more')
    return plain(*arguments)

  monkeypatch.setattr(run.log_bilinear, 'gradients', gradients)
  design = {**SMALL, 'mechanisms': ['identity'], 'seeds': [0], 'without_noise': False}
  study = functools.partial(
    dpftrl.study, functools.partial(run.train, TASK), folder=tmp_path, clip_norm=0.5, **design
  )
  assert len(study().failed) == 1
  (result,) = study().results
  assert result.summary['num_rounds'] == 12
  assert len(calls) == 5 + 12


def test_bad_folder_is_one_line(tmp_path, monkeypatch, capsys):
  (tmp_path / 'notes.txt').write_text('mine')
  monkeypatch.setattr(sys, 'argv', ['topics', f'--output_dir={tmp_path}'])
  with pytest.raises(SystemExit) as ended:
    command.main()
  assert ended.value.code == 2
  message = capsys.readouterr().err
  assert message.startswith('topics: ') and message.count('\n') == 1
