"""Text from files and flags is shown, and acts on nothing."""

import json

import pytest

from fl_dpftrl.commands import output
from fl_dpftrl.prove.reports import page
from fl_dpftrl.support import style, tables
from tests import made

FORGED = 'ε at δ = 1e-06  0.001'
# Clears the screen, forges a line, is one control character, turns text round.
HOSTILE = f'a\x1b[2J\n{FORGED}\n\x9b31m\u202e\u2028b'
REPLAY = 'replay --strategy=identity --noise_multiplier=3 --delta=1e-6 --log'


@pytest.fixture(name='log')
def fixture_log(tmp_path):
  claim = made.claim('identity', noise_multiplier=3.0, void_reason=HOSTILE)
  cohorts = ['a', '', 'ac', '']
  return made.log(tmp_path / 'log.parquet', cohorts, metadata=claim.to_metadata())


def acts(text):
  return [c for c in text if not c.isprintable() and c != '\n']


def test_ids_and_metadata_cannot_forge_lines(log, run):
  status, out, err = run(f'{REPLAY}={log}')
  assert status == 4
  for text in (out, err):
    assert not acts(text)
    assert not [l for l in text.splitlines() if l.startswith(FORGED)]
    assert '\\x1b[2J' in text
  assert len([l for l in out.splitlines() if l.startswith('ε at δ')]) == 1


def test_json_is_the_same_object_without_what_acts(log, run):
  out = run(f'{REPLAY}={log} --json')[1]
  assert not acts(out)
  assert json.loads(out)['void_reason'] == HOSTILE


def test_pages_escape_it_and_show_what_is_invisible(log, tmp_path, run):
  run(f'{REPLAY}={log} --report={tmp_path / "r.html"}')
  text = (tmp_path / 'r.html').read_text()
  assert not acts(text)
  assert '\\x1b[2J' in text and '\\u202e' in text
  common = {'kind': 'k', 'embedded': HOSTILE, 'by_hour': [], 'by_device': []}
  made = page.render('base.html', title='\u202eb<\x1b', **common)
  assert '<h1>\\u202eb&lt;\\x1b</h1>' in made
  assert not acts(made)


def test_cells_and_progress(capsys, monkeypatch):
  cell = tables.table({'strategy': HOSTILE})
  assert '\n' not in cell and not acts(cell)
  monkeypatch.setattr(output, 'SECONDS', -1.0)
  output.Progress('compare').say(HOSTILE)
  err = capsys.readouterr().err
  assert len(err.splitlines()) == 1 and not acts(err)


def test_labels_of_figures_are_no_formulas():
  assert style.plain('a $x_1$\nb\x1b') == r'a \$x_1\$ b\x1b'


def test_names_of_strategies_are_shown_on_one_line(tmp_path, run):
  name = 'evil\nblt  0.001'
  _, out, _ = run(
    f"compare '--mechanisms=identity,{name}=blt-b400' --num_rounds=20 --min_sep=5"
    f' --output={tmp_path / "out"}'
  )
  assert 'evil' in out and not [l for l in out.splitlines() if l.startswith('blt  0.001')]
