"""The program of the page on studies: a TFF model of one's own, by `dpftrl.train`."""

import json

import pytest

from tests import pages

pytestmark = [pytest.mark.tff, pytest.mark.slow]


def test_the_program_of_the_page_compares_mechanisms(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  (program,) = pages.programs('own-study.md')
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
