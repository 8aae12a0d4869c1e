"""A study by fine-tuning: its mechanisms, ε and seeds, on a small made-up model."""

import sys

import pytest

from experiments.finetune import data, study, train
from tests.finetune import small


@pytest.mark.parametrize('text', ['changelogs', 'chat.jsonl'])
def test_a_study_trains_each_mechanism_at_its_epsilon(text, tmp_path, monkeypatch):
  units = data.Units('own', 'a person', dict.fromkeys(small.task().names, ''), {})
  taken = {}
  monkeypatch.setattr(data, 'load', lambda text, columns: taken.setdefault(text, units))
  monkeypatch.setattr(study.command, 'weights', lambda: 'small.gguf')
  monkeypatch.setattr(train, 'task', lambda units, chosen, path: small.task(seed=chosen.seed))
  monkeypatch.setattr(train, 'prepare', lambda task: task)
  arguments = ['--mechanisms=blt,identity', '--epsilons=2', '--seeds=2']
  arguments += [f'--output_dir={tmp_path / "study"}', f'--text={text}']
  monkeypatch.setattr(sys, 'argv', ['study', *arguments])
  with pytest.raises(SystemExit, match='^0$'):
    study.main()
  lines = (tmp_path / 'study' / 'results.csv').read_text().splitlines()
  columns = lines[0].split(',')
  rows = [dict(zip(columns, line.split(','))) for line in lines[1:]]
  assert list(taken) == [text]
  assert len(rows) == 6 and {row['status'] for row in rows} == {'done'}
  assert {row['mechanism'] for row in rows} == {'blt', 'identity', 'no noise'}
  assert all(float(row['epsilon_of_run']) <= 2 for row in rows if row['epsilon'])
  assert len({row['test'] for row in rows}) == 6
