import dataclasses
import functools
import html.parser
import json
import re

import pyarrow as pa
import pytest

from fl_dpftrl import participation
from fl_dpftrl.accounting import gaussian
from fl_dpftrl.logs import identity
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import replay
from fl_dpftrl.logs import report
from fl_dpftrl.strategies import blt

BLT = blt.BLT([0.99, 0.7], [0.1, 0.3])
COMMAND = "fl-dpftrl replay --log='a b.parquet' --strategy=s.json"


class Page(html.parser.HTMLParser):
  """The text, figures, scripts and references of a page; checks the nesting."""

  def __init__(self, text):
    super().__init__()
    self.open, self.figures, self.words, self.scripts = [], [], [], {}
    self.tags, self.references = [], []
    self.feed(text)
    self.close()
    assert not self.open

  def handle_starttag(self, tag, attrs):
    self.open.append((tag, dict(attrs)))
    self.note(tag, dict(attrs))

  def handle_startendtag(self, tag, attrs):
    self.note(tag, dict(attrs))

  def note(self, tag, attrs):
    self.tags.append(tag)
    if tag == 'data':
      self.figures.append((attrs['data-field'], attrs['value']))
    for key in ('src', 'href', 'srcset', 'data', 'action'):
      if key in attrs:
        self.references.append(attrs[key])

  def handle_endtag(self, tag):
    assert self.open.pop()[0] == tag

  def handle_data(self, data):
    tag, attrs = self.open[-1] if self.open else ('', {})
    if tag == 'script':
      self.scripts[attrs['id']] = data
    elif tag != 'style':
      self.words.append(data)

  @property
  def text(self):
    return re.sub(r'\s+', ' ', ''.join(self.words))


def happened(rows, num_rounds, **kwargs):
  table = pa.table(
      {'round': [r for r, _ in rows], 'device_id': [d for _, d in rows]}
  )
  log = log_lib.of_table(table, num_rounds=num_rounds)
  return dataclasses.replace(log, **kwargs)


LOG = happened(
    [(0, 'a'), (4, 'a'), (9, 'a'), (1, 'b'), (6, 'b'), (3, 'c')], 12
)
FILE = {'name': 'log.parquet', 'sha256': 'ab' * 32}


@pytest.fixture(autouse=True, scope='module')
def fixture_remember_epsilon():
  """Privacy loss distributions take most of the time, and repeat."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(gaussian, 'epsilon', functools.cache(gaussian.epsilon))
    yield


def statement(log=LOG, min_sep=3, noise_multiplier=3.0, deltas=1e-6, **kwargs):
  run = replay.run(
      log,
      BLT,
      noise_multiplier=noise_multiplier,
      declared=participation.MinSep(
          num_rounds=log.num_rounds, min_sep=min_sep
      ),
  )
  return {**replay.replay(run, deltas=deltas, **kwargs), 'log': [FILE]}


def setting(noise_multiplier=3.0, **kwargs):
  return report.Setting(
      run='first', noise_multiplier=noise_multiplier, command=COMMAND, **kwargs
  )


SEED = 'the noise seed was given'
HYPOTHETICAL = {
    'report_goal': 6500,
    'population': 1_040_000,
    'noise_multiplier': 487.5,
    'sensitivity': 1.7,
    'rho': 0.0625,
    'epsilon': 1.9375,
    'delta': 1e-6,
}


def look_up(values, field):
  for key in field.split('.'):
    values = values[int(key) if key.isdigit() else key]
  return values


@pytest.mark.parametrize('deltas', [1e-6, [1e-6, 1e-9]])
def test_figures_are_the_statements(tmp_path, deltas):
  stated = statement(deltas=deltas)
  path = tmp_path / 'privacy.html'
  report.write_report(
      path, stated, setting=setting(hypothetical=HYPOTHETICAL)
  )
  page = Page(path.read_text())
  assert json.loads(page.scripts['statement']) == stated
  everything = {**stated, 'hypothetical': HYPOTHETICAL}
  for field, value in page.figures:
    assert float(value) == look_up(everything, field)
  shown = {field for field, _ in page.figures}
  for part in ('worst_case', 'observed', 'declared'):
    for field in ('sensitivity', 'rho', 'epsilon'):
      assert f'{part}.{field}' in shown
  assert ('worst_case.curve.1.epsilon' in shown) is isinstance(deltas, list)
  assert {f'hypothetical.{field}' for field in HYPOTHETICAL} <= shown
  assert {'num_rounds', 'min_sep', 'max_participations', 'delta'} <= shown


def test_the_headline_comes_first(tmp_path):
  path = tmp_path / 'privacy.html'
  report.write_report(path, statement(), setting=setting())
  page = Page(path.read_text())
  assert page.figures[0][0] == 'worst_case.epsilon'
  assert page.figures[1][0] == 'delta'
  assert 'No guarantee' not in page.text


def test_stands_alone():
  text = report.report(statement(), setting(hypothetical=HYPOTHETICAL))
  page = Page(text)
  assert not page.references
  assert not {'link', 'img', 'iframe', 'object', 'embed'} & set(page.tags)
  assert not re.search(r'https?:|url\(|@import|//', text)
  assert list(page.scripts) == ['statement']
  assert page.tags.count('svg') == 2


@pytest.mark.parametrize(
    'words',
    [
        'Central differential privacy',
        'Data accesses covered',
        'Mechanism output',
        'Unit of privacy',
        'Adjacency',
        'Type of accounting',
        'Assumptions',
        'Formal statement',
        'Transparency',
        'Outside the guarantee',
        'training losses and accuracies',
        '31 clipped, 2 dropped for their size, 1 dropped as not finite',
        'vocabulary',
        'Tuning of hyperparameters',
        'floating point',
        'not a cryptographic one',
        COMMAND,
        'ab' * 32,
        identity.strategy_digest(BLT),
        'device a in rounds 0 and 4',
        'every other Tuesday',
    ],
)
def test_says(full_page, words):
  assert words in full_page


@pytest.fixture(name='full_page', scope='module')
def fixture_full_page():
  filled = setting(
      clipped_count=31,
      zeroed_count=2,
      rejected_count=1,
      notes=('every other Tuesday',),
  )
  return Page(report.report(statement(), filled)).text


def test_a_void_run_says_so_before_any_figure():
  by_setting = report.report(
      statement(), setting(void_reason=SEED)
  )
  by_log = report.report(
      {**statement(happened([(0, 'a')], 3)), 'void_reason': SEED},
      setting(),
  )
  without_noise = report.report(
      statement(noise_multiplier=0.0), setting(noise_multiplier=0.0)
  )
  for text, reason in (
      (by_setting, SEED),
      (by_log, SEED),
      (without_noise, 'no noise was added'),
  ):
    before = text.partition('<data')[0]
    assert 'No guarantee' in before
    assert f'This run guarantees nothing: {reason}.' in before
    assert f'None: {reason}.' in Page(text).text
    assert text.count('class="card void"') == 3


def test_a_violated_declaration_is_loud():
  kept = Page(report.report(statement(min_sep=4), setting())).text
  violated = report.report(statement(min_sep=5), setting())
  assert 'violated' not in kept
  text = Page(violated).text
  assert 'The declared participation was violated' in text
  assert 'Declared were a min-sep of 5' in text
  assert violated.count('card bad void') == 1


def test_warnings_are_shown():
  log = happened([(0, 'a')], 3, warnings=('rows <may> be missing',))
  assert 'rows <may> be missing' in Page(
      report.report(statement(log), setting())
  ).text


def test_nobody_twice():
  page = Page(report.report(statement(happened([(0, 'a')], 3)), setting()))
  assert 'No device took part twice' in page.text
  assert page.tags.count('svg') == 1


def test_hostile_names_stay_text():
  hostile = '</script><img src=x onerror=alert(1)>'
  log = happened([(0, hostile), (2, hostile)], 3)
  text = report.report(
      statement(log, min_sep=1), setting(dataset=hostile, unit=hostile)
  )
  page = Page(text)
  assert 'img' not in page.tags
  assert page.text.count(hostile) >= 3
  stated = json.loads(page.scripts['statement'])
  assert stated['witness']['device_id'] == hostile


def test_refuses_another_noise_multiplier(tmp_path):
  with pytest.raises(ValueError, match='noise_multiplier is 2.0 in the'):
    report.write_report(
        tmp_path / 'r.html', statement(), setting=setting(noise_multiplier=2.0)
    )
  assert not list(tmp_path.iterdir())


def test_adjacency_and_groups():
  text = Page(
      report.report(
          statement(adjacency='replace_one', group_size=3),
          setting(unit='a phone'),
      )
  ).text
  assert 'Adjacency: replace-one.' in text
  assert 'Unit of privacy: a group of 3: a phone' in text
  assert 'twice those of zero-out' in text
