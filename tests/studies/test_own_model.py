"""The programs of the page on studies: a TFF model by `dpftrl.train`, and a loop in NumPy."""

import json

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.centralized import partition, sampling
from tests import pages

pytestmark = [pytest.mark.tff, pytest.mark.slow]


def test_the_program_of_the_page_compares_mechanisms(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  program, _ = pages.programs('own-study.md')
  shorter = program.replace('[0.3, 1.0], seeds=[0, 1]', '[1.0], seeds=[0], without_noise=False')
  assert shorter != program
  names = {}
  exec(compile(shorter, 'own-study.md', 'exec'), names)
  study = names['study']
  assert not study.failed and 'Study: 2 runs, in study' in capsys.readouterr().out
  for row in study.rows:
    (result,) = row.results
    assert result.test > 0.6 and result.summary['epsilon'] <= 8.0
    stated = json.loads((result.cell.folder / 'privacy.json').read_text())
    assert stated['worst_case']['epsilon'] == result.summary['epsilon']
  assert set(study.figures()) >= {'accuracy_by_epsilon', 'accuracy_by_round'}
  # A run that does not keep to the schema of its noise has no ε of the study.
  summary = study.results[0].cell.folder / 'summary.json'
  summary.write_text(json.dumps({**json.loads(summary.read_text()), 'min_sep': 3}))
  exec(compile(shorter, 'own-study.md', 'exec'), names)
  assert 'min_sep=3, and its noise is calibrated' in names['study'].failed[0].reason


def test_a_loop_of_ones_own_is_judged_by_its_log(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  _, program = pages.programs('own-study.md')
  shorter = program.replace('[0.3, 1.0], seeds=[0, 1, 2]', '[1.0], seeds=[0, 1]')
  assert shorter != program
  names = {}
  exec(compile(shorter, 'own-study.md', 'exec'), names)
  study = names['loop_study']
  assert not study.failed and len(study.results) == 6
  for result in study.results:
    assert result.test > 0.6 and result.summary['min_sep'] >= 20
    assert result.summary['max_participations'] <= 3
    if result.cell.noise is None:
      assert result.summary['epsilon'] is None
    else:
      assert 3.0 < result.summary['epsilon'] <= 4.0
      log, strategy = (
        result.cell.folder / 'rounds' / name for name in ('participation.parquet', 'strategy.json')
      )
      proved = dpftrl.replay(dpftrl.open_run(log, strategy), deltas=1e-4)
      assert result.summary['epsilon'] == proved.worst_case.epsilon
  # A run that was interrupted begins anew, with another model; what it claims does not count.
  cell = next(result.cell for result in study.results if result.cell.noise)
  (cell.folder / 'summary.json').unlink()
  train, made = names['train'], []

  def claims(cell):
    made.append(cell.name)
    return {**train(cell), 'epsilon': 0.1, 'noise_multiplier': 99.0}

  names['train'] = claims
  exec(compile(shorter[shorter.index('loop_study =') :], 'own-study.md', 'exec'), names)
  again = next(r for r in names['loop_study'].results if r.cell.name == cell.name)
  assert made == [cell.name] and again.test > 0.6
  assert again.summary['epsilon'] > 3.0 and again.summary['noise_multiplier'] < 99.0


@pytest.mark.parametrize('batches', ['drawn', 'cut short'])
def test_drawn_batches_are_judged_by_the_log(batches, tmp_path):
  def train(cell):
    scheme = cell.sampling
    with cell.private_aggregator(np.zeros(2)) as aggregator:
      for batch in partition.Partition(scheme=scheme, seed=cell.seed).rounds():
        ids = batch.device_ids if batches == 'drawn' else np.arange(1500)
        with aggregator.round(ids) as round_:
          round_.add_batch(np.zeros((len(ids), 2)))
        assert np.isfinite(round_.mean).all()
    return {'validation': {'accuracy': 0.5}, 'test': {'accuracy': 0.5}}

  study = dpftrl.study(
    train,
    folder=tmp_path / 'study',
    mechanisms=['identity'],
    epsilons=[2.0],
    server_learning_rates=[0.1],
    sampling=sampling.CyclicPoisson(num_rounds=20, num_examples=2000, batch_size=50),
    clip_norm=1.0,
    report_goal=50,
    delta=1e-5,
    seeds=[0],
    without_noise=False,
    extend_rates=0,
  )
  (result,) = study.results
  if batches == 'drawn':
    assert 1.9 < result.summary['epsilon'] <= 2.0
  else:
    assert 'nothing proves an ε' in result.reason


def test_an_aggregator_that_is_left_open_is_told(tmp_path):
  def train(cell):
    aggregator = cell.private_aggregator(np.zeros(2))
    with aggregator.round(['a', 'b']) as round_:
      for _ in range(2):
        round_.add(np.zeros(2))
    left.append(aggregator)
    return {'validation': {'accuracy': 0.5}, 'test': {'accuracy': 0.5}}

  left = []
  with pytest.raises(ValueError, match='train must use the aggregator, and close it'):
    dpftrl.study(
      train,
      folder=tmp_path / 'study',
      mechanisms=['identity'],
      epsilons=[2.0],
      server_learning_rates=[0.1],
      schema=dpftrl.MinSep(num_rounds=4, min_sep=2),
      clip_norm=1.0,
      report_goal=2,
      seeds=[0],
    )
  left[0].close()
