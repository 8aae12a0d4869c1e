"""The example of four hospitals, on a made-up table in the form of FLCHAIN."""

import re
import zipfile

import numpy as np
import pytest

from tests.run.test_examples import program

HEAD = """@relation flchain
@attribute age numeric
@attribute chapter {Circulatory,Neoplasms}
@attribute creatinine numeric
@attribute death {alive,dead}
@attribute futime numeric
@attribute kappa numeric
@attribute lambda numeric
@attribute sex {F,M}

@data
"""


def table(num_people=160):
  """Returns people of whom the older ones die; some leave before."""
  rng, rows = np.random.default_rng(1), []
  for age in rng.uniform(50, 90, num_people).round().astype(int).tolist():
    is_dead = age + rng.normal(0, 5) > 72
    days = rng.integers(1, 3652) if is_dead or rng.random() < 0.1 else rng.integers(3652, 5000)
    tests = (f'{v:.2f}' for v in rng.uniform(0.5, 2.0, 2))
    creatinine = '?' if rng.random() < 0.2 else f'{rng.uniform(0.7, 1.5):.1f}'
    status = 'dead' if is_dead else 'alive'
    row = (age, 'Circulatory' if is_dead else '?', creatinine, status, days, *tests, 'M')
    rows.append(','.join(map(str, row)))
  return HEAD + '\n'.join(rows) + '\n'


@pytest.mark.parametrize('suffix', ['arff', 'whl'])
def test_people_who_left_before_are_left_out_and_nothing_else_tells_of_death(
  tmp_path, suffix, monkeypatch
):
  example, path = program('flchain_sites', monkeypatch), tmp_path / f'data.{suffix}'
  if suffix == 'whl':
    with zipfile.ZipFile(path, 'w') as wheel:
      wheel.writestr('sksurv/datasets/data/flchain.arff', table())
  else:
    path.write_text(table())
  features, deaths = example.read(path)
  assert len(features) == len(deaths) < 160 and features.shape[1] == 7
  assert 0.2 < deaths.mean() < 0.9 and np.isfinite(features).all()
  assert example.auc(features[:, 1], deaths) > 0.9
  assert example.auc(np.zeros(len(deaths)), deaths) == pytest.approx(0.5)


@pytest.mark.slow
def test_four_sites_train_and_have_one_statement(tmp_path, monkeypatch, capsys):
  example = program('flchain_sites', monkeypatch, COHORT=8, ROUNDS=8)
  monkeypatch.setattr(example, 'SCHEMA', example.dpftrl.MinSep(8, 3, 2))
  (tmp_path / 'data.arff').write_text(table())
  example.main(tmp_path / 'data.arff', tmp_path / 'runs', 1)
  shown = capsys.readouterr().out
  aucs = dict(re.findall(r'^(.*?) +AUC ([\d.]+)', shown, re.M))
  assert list(aucs) == list(example.mechanisms()) and float(aucs['no noise']) > 0.9
  assert 'ε of patients by their logs      0.500' in shown
