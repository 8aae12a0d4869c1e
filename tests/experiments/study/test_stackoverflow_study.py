"""The papers' study in small: a quick network on a database like StackOverflow's."""

import csv
import json
import random

import pytest

from fl_dpftrl.studies import design as design_lib
from fl_dpftrl.studies import run
from tests.experiments import stackoverflow_files, starts

pytestmark = pytest.mark.tff

WORDS = ['the', 'is', '.', 'a', 'query', 'sql']
SMALL = [
  *('--num_rounds=4', '--timer_rounds=2', '--report_goal=3', '--deployment_report_goal=30'),
  *('--batch_size=2', '--max_sentences=2', '--embedding=4', '--vocabulary_size=6'),
  *('--rounds_per_evaluation=4', '--model=log_bilinear'),
]
LABELS = ['BandMF', 'BLT, 2 buffers, k=1']


def clients(count):
  draw = random.Random(7)
  return {f'{i}': [' '.join(draw.choices(WORDS, k=5)) for _ in range(3)] for i in range(count)}


@pytest.mark.slow
def test_cells_of_the_papers_tables_are_trained_on_a_database(tmp_path):
  splits = {'train': clients(9), 'heldout': clients(2), 'test': clients(2)}
  stackoverflow_files.write_database(tmp_path / 'stackoverflow.sqlite', splits)
  counts = stackoverflow_files.word_counts(WORDS)
  (tmp_path / 'stackoverflow.word_count').write_bytes(counts)
  study = json.loads((starts.ROOT / 'studies/stackoverflow.json').read_text())
  study['flags'] += [*SMALL, f'--data_dir={tmp_path}']
  study['cells'] = [
    {**cell, 'server_learning_rates': cell['server_learning_rates'][:1]}
    for cell in study['cells']
    if cell['label'] in LABELS and cell['epsilon'] == 2
  ]
  design = design_lib.parse(study)
  assert not run.run(design, starts.task(design), tmp_path / 'study', jobs=None, say=print).failed
  with (tmp_path / 'study' / 'results.csv').open(newline='') as stream:
    rows = list(csv.DictReader(stream))
  assert [row['label'] for row in rows] == LABELS
  for row, cell in zip(rows, study['cells']):
    assert (row['status'], row['num_rounds'], row['num_devices']) == ('done', '4', '9')
    # The noise of the deployment is that of the table, whatever the strategy's sensitivity.
    assert float(row['deployment_epsilon']) <= float(row['declared_epsilon'])
    assert float(row['published_test_accuracy']) == cell['published']
    assert 0 <= float(row['test_accuracy']) <= 1
  text = (tmp_path / 'study' / 'table.txt').read_text()
  assert 'published: 23.19' in text and 'published: 22.37' in text
