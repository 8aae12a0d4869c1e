"""The pages of the site: their size, their programs without TensorFlow, and what the hook finds."""

import ast
import importlib
import json
import operator
import re

import duckdb
import numpy as np
import pytest
import sqlglot

import fl_dpftrl
from tests import pages
from tests.commands import lines

ROOT = pages.DOCS.parent
# They begin without a command.
_OTHERS = {'api.md', 'layout.md', 'one-round.md', 'published-figures.md'}
TASKS = {path.name for path in pages.DOCS.glob('*.md')} - _OTHERS


def test_no_page_has_more_than_1500_words():
  words = {path.name: len(path.read_text().split()) for path in pages.DOCS.rglob('*.md')}
  assert {name: count for name, count in words.items() if count > 1500} == {}


@pytest.mark.parametrize('name', sorted(TASKS))
def test_a_page_begins_with_what_one_gets(name):
  text = (pages.DOCS / name).read_text()
  assert '```' in text[:1500] or name == 'index.md'


def test_a_readme_is_one_breath_and_shows_pictures_that_are_there():
  text = (ROOT / 'README.md').read_text()
  assert len(text.splitlines()) <= 120
  targets = re.findall(r'\]\(([^)#]+)(?:#[^)]*)?\)', text)
  targets += re.findall(r'src="([^"]+)"', text)
  assert 'docs/pictures/accuracy.png' in targets
  assert all((ROOT / target).exists() for target in targets)


@pytest.mark.slow
def test_programs_without_tensorflow_run():
  names = {}
  for program in pages.programs('guarantee.md'):
    exec(compile(program, 'guarantee.md', 'exec'), names)
  assert names['guarantee'].sensitivity is not None


def test_one_round_names_functions_that_are_there(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (program,) = pages.programs('one-round.md')
  names = {}
  exec(compile(program, 'one-round.md', 'exec'), names)
  assert names['cohort'].tolist() == ['ann', 'bob', 'eve'] and names['mean'].shape == (4,)
  steps = [row[2:] for row in pages.rows('one-round.md', 'step')]
  assert len(steps) == 6
  for file, function in steps:
    module = importlib.import_module(f'fl_dpftrl.{file[1:-4].replace("/", ".")}')
    assert callable(operator.attrgetter(function[1:-1])(module))
  text = (pages.DOCS / 'one-round.md').read_text()
  files = re.findall(r'`((?:\w+/)+\w*(?:\.py)?)`', text)
  assert [f for f in files if not (ROOT / 'fl_dpftrl' / f).exists()] == ['fl_dpftrl/']


def table_of(page):
  """The figures that a page shows as those of its first commands."""
  return re.search('```\n( +worst case.*?)```', (pages.DOCS / page).read_text(), re.DOTALL)[1]


def printed(words, folder):
  done = lines.run(words, cwd=folder)
  assert done.returncode == 0, done.stderr
  return done.stdout


@pytest.mark.slow
def test_commands_of_sampled_batches_print_what_their_page_shows(tmp_path):
  told = [printed(words, tmp_path) for words in pages.commands('sampled-batches.md')]
  assert table_of('sampled-batches.md') in told[2] and len(told) == 6


@pytest.mark.slow
def test_commands_for_a_warehouse_give_the_figures_of_the_log(tmp_path):
  """DuckDB is the warehouse, and reads the text as BigQuery does."""
  rounds, ids = np.nonzero(np.random.default_rng(0).random((200, 50)) < 0.02)
  fl_dpftrl.write_log(tmp_path / 'log.parquet', rounds=rounds, device_ids=ids, num_rounds=200)
  write, replay = (
    next(words for words in pages.commands('replay.md') if word in ' '.join(words))
    for word in ('--dialect', '--from_counts')
  )
  printed(write, tmp_path)
  (text,) = sqlglot.transpile((tmp_path / 'replay.sql').read_text(), 'bigquery', 'duckdb')
  with duckdb.connect() as engine:
    for name, file in (('participation', 'log'), ('gram', 'gram')):
      engine.execute(f"CREATE TABLE {name} AS FROM '{tmp_path}/{file}.parquet'")
    engine.execute(f"COPY ({text}) TO '{tmp_path}/result.parquet'")
  of_log = ['--log=log.parquet' if 'from_counts' in word else word for word in replay]
  first, other = (json.loads(printed([*w, '--json'], tmp_path)) for w in (replay, of_log))
  differing = {name for name in {*first, *other} if first.get(name) != other.get(name)}
  assert differing == {'log', 'assumptions', 'from_counts', 'ids'}


@pytest.mark.slow
def test_a_report_is_read_as_its_page_says(tmp_path):
  log, *_ = pages.commands('replay.md')
  statement = [printed(words, tmp_path) for words in [log, *pages.commands('report.md')]][-1]
  assert table_of('replay.md') in statement
  report = (tmp_path / 'privacy.html').read_text()
  shown = [
    figure
    for row in pages.rows('report.md', 'on the page')
    for figure in re.findall(r'\d\S+\d', row[1])
  ]
  assert len(shown) == 11 and [f for f in shown if f not in report.replace('<sup>−', '⁻')] == []
  source = (ROOT / 'fl_dpftrl/prove/replaying/assumption_sentences.py').read_text()
  questions = list(pages.rows('report.md', 'ask'))
  assert len(questions) == 12
  assert [words for _, words in questions if words not in statement + source] == []


def test_the_reference_has_every_name():
  text = (pages.DOCS / 'api.md').read_text()
  shown = re.findall(r'^::: fl_dpftrl\.(.*)$', text, re.M)
  assert len(shown) == len(set(shown))
  # A room has the name of its function.
  public = set(fl_dpftrl._HOMES) - {'study', 'observers'} | {'study.study'}
  assert public | {
    f'observers.{name}' for name in dir(fl_dpftrl.observers) if name[0].isupper()
  } <= set(shown)


@pytest.mark.slow
def test_the_tutorial_runs_and_its_notebook_has_the_same_programs(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  programs, names = pages.programs('tutorial.md'), {}
  for program in [*programs, *programs]:  # A second start goes on.
    exec(compile(program, 'tutorial.md', 'exec'), names)
  printed = capsys.readouterr().out
  for words in ('round 25 of 60', 'is held, by declared', 'Verification: passed'):
    assert words in printed
  for command in pages.commands('tutorial.md'):
    assert lines.run(command).returncode == 0
  cells = json.loads((ROOT / 'examples' / 'tutorial.ipynb').read_text())['cells']
  sources = [''.join(cell['source']) for cell in cells if cell['cell_type'] == 'code']
  assert sources == [program.rstrip() for program in programs]


def test_notebooks_are_run_by_make_docs_and_have_outputs_with_epsilon():
  notebooks = sorted(ROOT.rglob('examples/*.ipynb'))
  assert [path.stem for path in notebooks] == ['compare', 'train', 'tutorial']
  assert '.ci/notebooks.py examples/*.ipynb' in (ROOT / 'Makefile').read_text()
  for path in notebooks:
    cells = [c for c in json.loads(path.read_text())['cells'] if c['cell_type'] == 'code']
    assert [cell['execution_count'] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = json.dumps([cell['outputs'] for cell in cells], ensure_ascii=False)
    assert 'ε = ' in outputs and not re.search('/(tmp|home|root|work)/', outputs)
    assert len(outputs) < 250_000


def anchors(path) -> set[str]:
  """Returns the anchors that the headings of a page get."""
  headings = re.findall(r'^#+ (.*)$', path.read_text(), re.M)
  return {re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-') for heading in headings}


def named(room: str) -> set[str]:
  """Returns the names that a room's `__init__`, or a module, lists, imports or defines."""
  path = ROOT.joinpath(*room.split('.'))
  tree = ast.parse((path / '__init__.py' if path.is_dir() else path.with_suffix('.py')).read_text())
  names = {alias.asname for node in ast.walk(tree) for alias in getattr(node, 'names', [])}
  names |= {node.name for node in tree.body if hasattr(node, 'name')}
  lists = re.search(r'__all__ = (\[.*?\])', ast.unparse(tree))
  adapters = (
    {'flower', 'nvflare', 'opacus', 'optax', 'peft', 'pfl', 'sites'}
    if room == 'fl_dpftrl.adapters'
    else set()
  )
  return names | adapters | set(ast.literal_eval(lists[1]) if lists and room != 'fl_dpftrl' else [])


@pytest.mark.tff
@pytest.mark.parametrize(
  'path',
  [*pages.DOCS.glob('*.md'), ROOT / 'README.md', *ROOT.glob('examples/*.py')],
  ids=lambda path: path.name,
)
def test_pages_and_examples_use_public_names_alone(path):
  text = path.read_text()
  of_package = {*fl_dpftrl.__all__, 'auditing'}
  assert set(re.findall(r'\bdpftrl\.(\w+)', text)) - {'md'} <= of_package
  used = [
    (room, name)
    for room, names in re.findall(r'from (fl_dpftrl\.[\w.]+) import ([\w, ]+)', text)
    for name in re.sub(r' as \w+', '', names).split(', ')
  ]
  if path.suffix == '.md':
    used += re.findall(r'`(fl_dpftrl\.[a-z_]+)\.(\w+)', text)
  assert [(room, name) for room, name in used if name not in named(room)] == []


def test_what_make_is_told_to_make_is_there():
  makefile = (ROOT / 'Makefile').read_text()
  for path in [*pages.DOCS.rglob('*.md'), *ROOT.glob('*.md'), *ROOT.glob('*/README.md')]:
    for target in re.findall(r'(?:^|`)make ([.\w/-]+)', path.read_text(), re.MULTILINE):
      assert re.search(rf'(?:^|\s){re.escape(target)}(?=[\s:])', makefile), (path.name, target)


def test_the_whole_repository_links_to_pages_that_are_there():
  lost = []
  for path in [*ROOT.glob('*.md'), *(ROOT / 'benchmarks').glob('*.md')]:
    for target, anchor in re.findall(r'\]\(([^)#:]+)(#[^)]*)?\)', path.read_text()):
      aim = path.parent / target
      if not aim.exists() or (anchor and anchor[1:] not in anchors(aim)):
        lost.append(f'{path.name}: {target}{anchor}')
  assert lost == []
