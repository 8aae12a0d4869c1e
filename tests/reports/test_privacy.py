import dataclasses
import functools
import html
import html.parser
import json
import re

import numpy as np
import pyarrow as pa
import pytest

from fl_dpftrl import auditing
from fl_dpftrl.accounting import gaussian
from fl_dpftrl.families import blt
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.participation import schemas
from fl_dpftrl.replaying import publication, replay, runs
from fl_dpftrl.reports import privacy
from fl_dpftrl.strategies import document
from tests import pages

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
  table = pa.table({'round': [r for r, _ in rows], 'device_id': [d for _, d in rows]})
  log = log_lib.of_table(table, num_rounds=num_rounds)
  return dataclasses.replace(log, **kwargs)


LOG = happened([(0, 'a'), (4, 'a'), (9, 'a'), (1, 'b'), (6, 'b'), (3, 'c')], 12)
FILE = log_lib.LogFile('log.parquet', 'ab' * 32)


@pytest.fixture(autouse=True, scope='module')
def fixture_remember_epsilon():
  """Privacy loss distributions take most of the time, and repeat."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(gaussian, 'epsilon', functools.cache(gaussian.epsilon))
    yield


def filed(stated, *files):
  """A statement as if its logs were these files, one for each run."""
  facts = zip(stated.runs, files, strict=True)
  return dataclasses.replace(
    stated, runs=tuple(dataclasses.replace(run, log=(file,)) for run, file in facts)
  )


def statement(log=LOG, min_sep=3, noise_multiplier=3.0, deltas=1e-6, **kwargs):
  run = runs.Run.of(
    log,
    BLT,
    noise_multiplier=noise_multiplier,
    declared_schema=schemas.MinSep(num_rounds=log.num_rounds, min_sep=min_sep),
  )
  return filed(replay.replay(run, deltas=deltas, **kwargs), FILE)


def setting(noise_multiplier=3.0, **kwargs):
  return privacy.Setting(run='first', noise_multiplier=noise_multiplier, command=COMMAND, **kwargs)


SEED = 'the noise seed was given'
HYPOTHETICAL = privacy.Deployment(
  report_goal=6500,
  population=1_040_000,
  noise_multiplier=487.5,
  sensitivity=1.7,
  rho=0.0625,
  epsilon=1.9375,
  delta=1e-6,
)


@pytest.mark.parametrize('deltas', [1e-6, [1e-6, 1e-9]])
def test_figures_are_the_statements(tmp_path, deltas):
  stated = statement(deltas=deltas)
  path = tmp_path / 'privacy.html'
  privacy.write_report(path, stated, setting=setting(hypothetical=HYPOTHETICAL))
  page = Page(path.read_text())
  assert json.loads(page.scripts['statement']) == stated.to_json()
  everything = {**stated.to_json(), 'hypothetical': vars(HYPOTHETICAL)}
  for field, value in page.figures:
    assert float(value) == pages.look_up(everything, field)
  shown = {field for field, _ in page.figures}
  for part in ('worst_case', 'observed', 'declared'):
    for field in ('sensitivity', 'rho', 'epsilon'):
      assert f'{part}.{field}' in shown
  assert ('worst_case.curve.1.epsilon' in shown) is isinstance(deltas, list)
  assert {f'hypothetical.{field}' for field in vars(HYPOTHETICAL)} <= shown
  assert {'num_rounds', 'min_sep', 'max_participations', 'delta'} <= shown


def test_the_headline_comes_first(tmp_path):
  path = tmp_path / 'privacy.html'
  privacy.write_report(path, statement(), setting=setting())
  page = Page(path.read_text())
  assert page.figures[0][0] == 'worst_case.epsilon'
  assert page.figures[1][0] == 'delta'
  assert 'No guarantee' not in page.text


def test_stands_alone():
  text = privacy.report(statement(), setting(hypothetical=HYPOTHETICAL))
  page = Page(text)
  assert not page.references
  assert not {'link', 'img', 'iframe', 'object', 'embed'} & set(page.tags)
  assert not re.search(r'https?:|url\(|@import|//', text)
  assert list(page.scripts) == ['statement']
  assert page.tags.count('svg') == 4


@pytest.mark.parametrize(
  'words',
  [
    'central differential privacy',
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
    document.strategy_digest(BLT),
    "device 'a' in rounds 0 and 4",
    'every other Tuesday',
  ],
)
def test_says(full_page, words):
  assert words in full_page


@pytest.fixture(name='full_page', scope='module')
def fixture_full_page():
  filled = setting(
    clipped_count=31, zeroed_count=2, rejected_count=1, notes=('every other Tuesday',)
  )
  return Page(privacy.report(statement(), filled)).text


def test_a_void_run_says_so_before_any_figure():
  by_setting = privacy.report(statement(), setting(void_reason=SEED))
  by_log = privacy.report(
    dataclasses.replace(statement(happened([(0, 'a')], 3)), void_reason=SEED), setting()
  )
  without_noise = privacy.report(statement(noise_multiplier=0.0), setting(noise_multiplier=0.0))
  for text, reason in ((by_setting, SEED), (by_log, SEED), (without_noise, 'no noise was added')):
    before = text.partition('<data')[0]
    assert 'No guarantee' in before
    assert f'This run guarantees nothing: {reason}.' in before
    assert f'None: {reason}.' in Page(text).text
    assert text.count('class="card void"') == 3


def test_a_violated_declaration_is_loud():
  kept = Page(privacy.report(statement(min_sep=4), setting())).text
  violated = privacy.report(statement(min_sep=5), setting())
  assert 'violated' not in kept
  text = Page(violated).text
  assert 'The declared participation was violated' in text
  assert 'A min-sep of 5 and at most' in text
  assert violated.count('card bad void') == 1


def test_warnings_are_shown():
  log = happened([(0, 'a')], 3, warnings=('rows <may> be missing',))
  assert 'rows <may> be missing' in Page(privacy.report(statement(log), setting())).text


def test_nobody_twice():
  page = Page(privacy.report(statement(happened([(0, 'a')], 3)), setting()))
  assert 'No device took part twice' in page.text
  assert page.tags.count('svg') == 3


def test_hostile_names_stay_text():
  hostile = '</script><img src=x onerror=alert(1)>'
  log = happened([(0, hostile), (2, hostile)], 3)
  text = privacy.report(statement(log, min_sep=1), setting(dataset=hostile, unit=hostile))
  page = Page(text)
  assert 'img' not in page.tags
  assert page.text.count(hostile) >= 3
  stated = json.loads(page.scripts['statement'])
  assert stated['witness']['device_id'] == hostile


def test_refuses_another_noise_multiplier(tmp_path):
  with pytest.raises(ValueError, match='noise_multiplier is 2.0 in the'):
    privacy.write_report(tmp_path / 'r.html', statement(), setting=setting(noise_multiplier=2.0))
  assert not list(tmp_path.iterdir())


def test_adjacency_and_groups():
  text = Page(
    privacy.report(statement(adjacency='replace_one', group_size=3), setting(unit='a phone'))
  ).text
  assert 'Adjacency: replace-one.' in text
  assert 'Unit of privacy: a phone, 3 of them together' in text
  assert 'twice those of zero-out' in text
  assert 'tell which of two data sets a group of 3 devices held' in text


def test_says_what_an_attacker_would_tell_apart():
  text = Page(privacy.report(statement(), setting())).text
  assert 'whether a device sent updates of its own or zeros' in text
  assert 'two data sets' not in text


CONFIDENTIAL = (
  'Confidential: this page has figures of single devices from the private log;'
  ' there is a version for publication.'
)


def crowd(num_devices=1009, prefix='SECRET'):
  """Devices with one to four participations; some rounds have none."""
  rows = [
    (device % 20 + 23 * again, f'{prefix}{device:05}')
    for device in range(num_devices)
    for again in range(1 + device % 4)
  ]
  return happened(rows, 97, warnings=('rows may be missing',))


CROWD = crowd()
SHA_OF_CROWD = log_lib.LogFile('crowd.parquet', 'cd' * 32)


def together(**kwargs):
  """A statement of two runs: the second with restarts and changes."""
  both = [
    runs.Run.of(LOG, BLT, noise_multiplier=3.0),
    runs.Run.of(
      crowd(prefix=''),
      BLT,
      noise_multiplier=2.5,
      changes=((11, 2.25), (40, 4.0)),
      restarts=(31, 62),
    ),
  ]
  return filed(replay.replay(both, deltas=1e-6, **kwargs), FILE, SHA_OF_CROWD)


def one_changed():
  run = runs.Run.of(LOG, BLT, noise_multiplier=3.0, changes=((5, 2.75),), restarts=(7,))
  return filed(replay.replay(run, deltas=1e-6), FILE)


def section(text, heading):
  """The words of a page from a heading of second order to the next."""
  _, _, after = text.partition(f'<h2>{heading}</h2>')
  assert after, heading
  inside = after.partition('<h2>')[0]
  return html.unescape(re.sub(r'\s+', ' ', re.sub(r'<[^>]+>', ' ', inside)))


def test_confidential_is_said_first():
  text = privacy.report(statement(), setting())
  words = Page(text).text
  assert CONFIDENTIAL in words
  assert 'Confidential' in text.partition('<data')[0]
  assert 'For publication' not in words


@pytest.mark.slow
@pytest.mark.parametrize('several', [False, True])
@pytest.mark.parametrize('group_size', [1, 2])
def test_publication_tells_nothing_of_single_devices(several, group_size):
  run = runs.Run.of(
    CROWD, BLT, noise_multiplier=3.0, declared_schema=schemas.MinSep(num_rounds=97, min_sep=30)
  )
  whole = replay.replay(
    [run, run] if several else run, deltas=[1e-6, 1e-9], group_size=group_size, report_goal=50
  )
  whole = filed(whole, *[SHA_OF_CROWD] * len(whole.runs))
  given = setting(
    population=765_432,
    clipped_count=54_321,
    zeroed_count=65_431,
    rejected_count=76_541,
    hypothetical=dataclasses.replace(HYPOTHETICAL, population=8_765_000),
  )
  confidential = privacy.report(whole, given)
  public = privacy.report(publication.publishable(whole), given)
  counts = {1009, 765_432, 54_321, 65_431, 76_541, 8_765_000}
  counts.add(whole.counted.num_participations)
  for text in ('SECRET', *(f'{count:,}' for count in counts)):
    assert text in confidential
    assert text not in public
  for text in (
    *map(str, counts),
    'per_device',
    'histogram',
    'num_devices',
    'num_participations',
    'cohort_sizes',
    'separations',
    'witness',
    'most_exposed',
    '"observed"',
    'observed.',
  ):
    assert text not in public
  assert public.count('<svg') == public.count('<figure') == 1
  assert 'Least share of false negatives' in public
  for text in ('cd' * 32, 'crowd.parquet', 'rows may be missing'):
    assert text in confidential
    assert text not in public


def test_publication_says_what_was_left_out():
  stated = publication.publishable(statement())
  text = privacy.report(stated, setting(hypothetical=HYPOTHETICAL))
  page = Page(text)
  assert CONFIDENTIAL not in page.text
  assert 'For publication. This page leaves out what was counted from single' in page.text
  assert 'For publication' in text.partition('<data')[0]
  assert json.loads(page.scripts['statement']) == stated.to_json()
  assert 'Two figures and their assumptions' in page.text
  assert 'Privacy loss of actual devices' not in page.text
  shown = dict(page.figures)
  for field in ('worst_case.epsilon', 'declared.epsilon'):
    assert float(shown[field]) == pages.look_up(stated.to_json(), field)
  assert 'hypothetical.population' not in shown
  assert 'hypothetical.epsilon' in shown


def test_publication_of_a_violated_declaration():
  words = Page(privacy.report(publication.publishable(statement(min_sep=5)), setting())).text
  assert 'The declared participation was violated' in words
  assert 'The worst-case guarantee rests on the log and stands.' in words


@pytest.mark.parametrize('deltas', [1e-6, [1e-6, 1e-9]])
def test_how_devices_fared(deltas):
  stated = filed(statement(CROWD, deltas=deltas), SHA_OF_CROWD)
  text = privacy.report(stated, setting())
  page = Page(text)
  words = section(text, 'Privacy loss of actual devices')
  shown = dict(page.figures)
  fields = ['rho', 'epsilon']
  fields += ['curve.1.epsilon'] if isinstance(deltas, list) else []
  for index in range(4):
    for field in ('share', *fields):
      field = f'per_device.quantiles.{index}.{field}'
      assert float(shown[field]) == pages.look_up(stated.to_json(), field)
  own = text.partition('Privacy loss of actual devices')[2]
  table = own.partition('<tbody>')[2].partition('</tbody>')[0]
  for field in fields:
    assert f'data-field="observed.{field}"' in table
  for share in ('50 % of', '90 % of', '99 % of', '99.9 % of', 'most exposed'):
    assert share in re.sub(' +', ' ', words)
  assert f'device: {stated.per_device.most_exposed!r}' in re.sub(' +', ' ', words)
  assert 'assumes that each device would have been in the same rounds' in words
  assert 'This is not a guarantee in advance' in words
  assert 'worst case: ρ = ' in words
  drawing = own.partition('<svg')[2].partition('</svg>')[0]
  at = float(re.search(r'd="M ([\d.]+) [^"]*" style="[^"]*dasharray', drawing)[1])
  bars = re.findall(r'<title>([^<]*)</title><path d="M ([\d.]+) ', drawing)
  # No bar begins to the right of the worst case, which bounds every device.
  assert bars and all(float(left) < at for _, left in bars)
  assert [tip for tip, _ in bars] == [
    f'{low:.4g} to {high:.4g}: {count:,}'
    for low, high, count in stated.per_device.rho_histogram
    if count
  ]


def test_groups_are_not_compared_with_single_devices():
  text = privacy.report(statement(group_size=3), setting())
  words = section(text, 'Privacy loss of actual devices')
  assert 'worst case' not in words
  assert 'most exposed</th>' not in text
  assert 'They are those of each device alone, not of 3 together.' in words
  assert 'the 3 most exposed devices together' in Page(text).text


def test_void_figures_of_devices_are_crossed_out():
  text = privacy.report(statement(), setting(void_reason=SEED))
  assert '<table class="void">' in text
  assert 'worst case: void' in text
  without_noise = privacy.report(statement(noise_multiplier=0.0), setting(noise_multiplier=0.0))
  words = section(without_noise, 'Privacy loss of actual devices')
  assert 'Without noise no device was protected' in words


@pytest.mark.slow
def test_each_guarantee_is_beside_its_assumptions():
  text = privacy.report(statement(), setting())
  cards = text.partition('class="cards"')[2].split('<section')[1:4]
  for card, field, sentences in zip(
    cards,
    ('worst_case', 'declared', 'observed'),
    (
      [
        'at most 3 (k) of 12 (n) rounds, any two at least 4 (b) apart',
        'reacts neither to data nor to released models',
      ],
      [
        'at most 4 participations, any two at least 3 rounds apart',
        'This is the only guarantee that holds even if participation reacts to released'
        ' models. It assumes that devices enforce the schema themselves.',
      ],
      [
        'This holds for the most exposed device, in the rounds that the log lists.',
        'promises nothing to any device in advance',
      ],
    ),
  ):
    assert f'data-field="{field}.epsilon"' in card
    for sentence in sentences:
      assert sentence in re.sub(r'\s+', ' ', card)


def test_without_a_declaration_says_what_is_missing():
  words = Page(privacy.report(one_changed(), setting())).text
  assert 'no guarantee here holds if participation reacts' in words


def test_changes_and_restarts_of_a_run():
  text = privacy.report(one_changed(), setting())
  words = section(text, 'The mechanism').replace('  ', ' ')
  assert re.search('clip norm +3 *, +2.75 +from round +5 ', words)
  assert re.search('noise restarts +at round +7 ', words)
  assert 'each part has all participations of a device' in words
  assert 'all participations of a device are at the smallest' in words
  shown = dict(Page(text).figures)
  assert shown['changes.0.1'] == '2.75'
  assert (shown['changes.0.0'], shown['restarts.0']) == ('5', '7')
  same = section(privacy.report(statement(), setting()), 'The mechanism')
  assert 'each part has all participations' not in same
  assert re.search('noise restarts +never', same)


def test_rounds_short_of_the_report_goal_and_cohort_sizes():
  stated = statement(CROWD, report_goal=50)
  page = Page(privacy.report(stated, setting()))
  shown = dict(page.figures)
  rounds = np.concatenate([t['round'].to_numpy() for t in CROWD.tables()])
  sizes = np.bincount(rounds, minlength=97)
  assert 0 < (sizes < 50).sum() < 97
  assert int(shown['rounds_short_of_report_goal']) == (sizes < 50).sum()
  assert 'rounds short of the report goal of 50' in page.text
  for field in ('least', 'mean', 'most'):
    field = f'cohort_sizes.{field}'
    assert float(shown[field]) == pages.look_up(stated.to_json(), field)
  without = Page(privacy.report(statement(), setting()))
  assert 'short of the report goal' not in without.text


@pytest.mark.slow
def test_several_runs_side_by_side():
  stated = together(report_goal=2)
  text = privacy.report(stated, setting())
  page = Page(text)
  shown = page.figures
  for field, value in shown:
    assert float(value) == pages.look_up(stated.to_json(), field)
  fields = {field for field, _ in shown}
  table = text.partition('<table class="runs">')[2].partition('</table>')[0]
  for index in range(2):
    for field in ('num_rounds', 'num_devices', 'max_participations', 'min_sep', 'noise_multiplier'):
      assert f'data-field="runs.{index}.{field}"' in table
    for field in ('cohort_sizes.mean', 'rounds_short_of_report_goal'):
      assert f'runs.{index}.{field}' in fields
  for field in ('changes.0.0', 'changes.1.1', 'restarts.0', 'restarts.1'):
    assert f'data-field="runs.1.{field}"' in table
  for words in ('log.parquet', 'crowd.parquet', 'blt', 'never'):
    assert words in table
  assert 'ρ adds up' in page.text
  assert 'in units of the first noise multiplier' in page.text
  assert 'The 2 training runs of this page' in page.text
  assert 'rounds of all runs with their noise' in page.text
  assert "device 'a' in rounds 0 and 4" in page.text
  assert page.tags.count('svg') == 6
  assert json.loads(page.scripts['statement']) == stated.to_json()
  assert page.text.count(document.strategy_digest(BLT)) == 2


@pytest.mark.slow
def test_several_runs_of_which_one_broke_its_word():
  schema = lambda b: schemas.MinSep(num_rounds=12, min_sep=b)
  stated = replay.replay(
    [runs.Run.of(LOG, BLT, noise_multiplier=3.0, declared_schema=schema(b)) for b in (2, 5)],
    deltas=1e-6,
  )
  words = Page(privacy.report(stated, setting())).text
  assert 'Not every run kept to its declared schema.' in words
  # The least of what was declared was kept to, which would puzzle.
  assert 'participations were declared; the log has' not in words


def test_published_runs_have_no_counts():
  stated = publication.publishable(together())
  page = Page(privacy.report(stated, setting()))
  fields = {field for field, _ in page.figures}
  assert {'runs.0.num_rounds', 'runs.1.min_sep'} <= fields
  assert not [f for f in fields if 'devices' in f or ('participations' in f and 'max_' not in f)]
  assert page.tags.count('svg') == 1  # The trade-off, which follows from μ.


def audit(lower_bound=0.5):
  which = auditing.Canaries(
    num_canaries=30, schema=schemas.MinSep(num_rounds=12, min_sep=4), size=64, clip_norm=1.0, seed=0
  )
  noise = np.random.default_rng(0).standard_normal([12, 60])
  noise[:, :30] += which.patterns().T
  found = auditing.audit_run(which, noise, BLT, noise_multiplier=3.0, delta=1e-6)
  return dataclasses.replace(found, epsilon=1.23456, lower_bound_epsilon=lower_bound)


@pytest.mark.slow
def test_empirical_figures_are_beside_the_proven_ones_and_below():
  for stated in (statement(), publication.publishable(statement())):
    text = privacy.report(stated, setting(audit=audit()))
    words = section(text, 'Empirical ε, from canaries of this run')
    assert 'evidence, no proof, and no guarantee' in words
    assert 'empirical ε at δ = 10 −6 1.234' in re.sub(r'\s+', ' ', words)
    assert '1.234' in words and '1.235' not in words  # An estimate from below is rounded down.
    assert 'above the proven ε' not in words
    assert 'Canaries of this run, above.' in Page(text).text
  text = privacy.report(statement(), setting(audit=audit(lower_bound=1e3)))
  assert 'The lower bound is above the proven ε.' in Page(text).text
  assert 'Empirical' not in privacy.report(statement(), setting())


def test_title_date_unit_and_clip_norm_are_those_given():
  given = setting(title='Words, season 3', date='2026-11-22', unit='a phone', clip_norm=0.7)
  for stated in (statement(), publication.publishable(statement())):
    text = privacy.report(stated, given)
    assert '<h1>Words, season 3</h1>' in text and '2026-11-22' in text
    words = section(text, 'Items of NIST SP 800-226')
    assert 'a phone' in words and 'Clip norm 0.7' in words
  plain = Page(privacy.report(statement(), setting())).text
  assert 'Privacy report: first' in plain and 'Clip norm not recorded' in plain


def test_mu_is_the_distance_of_two_gaussians():
  stated = statement()
  worst = stated.worst_case
  assert worst.mu == pytest.approx(worst.sensitivity / 3.0, rel=1e-12)
  assert worst.mu == pytest.approx(np.sqrt(2.0 * worst.rho))
  for part in stated.parts():
    assert stated.to_json()[part.name]['mu'] == part.loss.mu
  assert dict(Page(privacy.report(stated, setting())).figures)['worst_case.mu'] == repr(worst.mu)
  silent = statement(noise_multiplier=0.0)
  assert silent.worst_case.mu is None
  assert 'What an attacker can tell' not in privacy.report(silent, setting(noise_multiplier=0.0))
