"""The privacy report: every figure is the statement's, and sentences stand where they belong."""

import dataclasses
import html
import html.parser
import json
import re

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.commands import replay_text
from fl_dpftrl.mechanisms.families import blt
from fl_dpftrl.mechanisms.files import documents
from fl_dpftrl.prove.replaying import assumption_sentences, opened_runs, replays, verdicts
from fl_dpftrl.prove.reports import privacy
from fl_dpftrl.support.text import roundings
from tests import made, pages
from tests.prove.replaying.in_memory import log_of

BLT = blt.BLT([0.99, 0.7], [0.1, 0.3])
COMMAND = "fl-dpftrl replay --log='a b.parquet' --strategy=s.json"
SEED = 'the noise seed was given'


class Page(html.parser.HTMLParser):
  """The words, figures, scripts and references of a page whose tags are nested."""

  def __init__(self, source):
    super().__init__()
    self.source, self.figures = source, pages.figures(source)
    self.scripts = dict(re.findall(r'<script[^>]* id="(\w+)">(.*?)</script>', source, re.DOTALL))
    self.open, self.words, self.tags, self.references = [], [], [], []
    self.feed(source)
    self.close()
    assert not self.open

  def handle_starttag(self, tag, attrs):
    self.open.append(tag)
    self.tags.append(tag)
    refer = ('src', 'href', 'srcset', 'data', 'action')
    self.references += [value for name, value in attrs if name in refer]

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def handle_data(self, data):
    if self.open[-1:] not in (['script'], ['style']):
      self.words.append(data)

  @property
  def text(self):
    return re.sub(r'\s+', ' ', ''.join(self.words))

  @property
  def fields(self):
    return {field for field, _ in self.figures}

  def section(self, heading):
    """Returns the words from a heading of second order to the next."""
    _, _, after = self.source.partition(f'<h2>{heading}</h2>')
    assert after, heading
    inside = after.partition('<h2>')[0]
    return re.sub(r'\s+', ' ', html.unescape(re.sub(r'<[^>]+>', ' ', inside)))

  def check(self, stated, **others):
    """Asserts that each figure is that of the statement, which the page embeds."""
    assert json.loads(self.scripts['statement']) == stated.to_json()
    pages.check(self.source, {**stated.to_json(), **others})


LOG = log_of([(0, 'a'), (4, 'a'), (9, 'a'), (1, 'b'), (6, 'b'), (3, 'c')], 12)
ONCE = log_of([(0, 'a')], 3)
FILE = {'name': 'log.parquet', 'sha256': 'ab' * 32}


def filed(stated, *files):
  """A statement as if its logs were these files, one for each run."""
  facts = zip(stated.runs, files, strict=True)
  return dataclasses.replace(
    stated, runs=tuple(dataclasses.replace(run, log=(file,)) for run, file in facts)
  )


def statement(log=LOG, min_sep=3, noise_multiplier=3.0, deltas=1e-6, noise=(), **kwargs):
  declared = min_sep and dpftrl.MinSep(num_rounds=log.num_rounds, min_sep=min_sep)
  run = opened_runs.RecordedRun.of(
    log, BLT, noise_multiplier=noise_multiplier, participation=declared, **dict(noise)
  )
  return filed(replays.replay(run, delta=deltas, **kwargs), FILE)


def setting(**kwargs):
  return privacy.Setting(run='first', command=COMMAND, **kwargs)


def report(stated=None, **given):
  """Returns the page of a statement, by default of the small log."""
  stated = stated or statement()
  return Page(privacy.report(stated, setting(**given)))


def public(stated=None, **given):
  return report((stated or statement()).publishable(), **given)


@pytest.fixture(name='plain', scope='module')
def fixture_plain():
  return report(clipped_count=31, zeroed_count=2, rejected_count=1)


@pytest.mark.parametrize('deltas', [1e-6, [1e-6, 1e-9]])
def test_figures_are_the_statements(tmp_path, deltas):
  stated, path = statement(deltas=deltas), tmp_path / 'privacy.html'
  privacy.write_report(path, stated, setting=setting())
  page = Page(path.read_text())
  page.check(stated)
  expected = {
    f'{part}.{field}'
    for part in ('worst_case', 'observed', 'declared')
    for field in ('sensitivity', 'rho', 'epsilon')
  }
  assert expected | {'num_rounds', 'min_sep', 'max_participations', 'delta'} <= page.fields
  assert ('worst_case.curve.1.epsilon' in page.fields) is isinstance(deltas, list)
  assert [field for field, _ in page.figures[:2]] == ['worst_case.epsilon', 'delta']
  assert 'No guarantee' not in page.text


@pytest.mark.parametrize('published', [False, True])
def test_the_headline_of_an_unfinished_run_is_what_was_declared(published):
  """Rounds that follow add to the worst case, so that it promises nothing while they may."""
  log = log_of([(0, 'a'), (2, 'b')], 3)
  run = opened_runs.RecordedRun.of(
    log, BLT, noise_multiplier=3.0, participation=dpftrl.MinSep(200, 2)
  )
  stated = filed(replays.replay(run, delta=1e-6), FILE)
  assert stated.declared.guarantee.epsilon() > 3 * stated.worst_case.epsilon()
  page = (public if published else report)(stated)
  assert [f for f, _ in page.figures[:4]] == [
    'declared.epsilon',
    'delta',
    'declared.num_rounds',
    'num_rounds',
  ]
  spent, declared = (
    roundings.up(g.guarantee.epsilon()) for g in (stated.parts[0], stated.declared)
  )
  assert f'The 3 rounds so far have spent ε = {spent}.' in page.text
  assert 'The sums of all 200 declared rounds' in page.text
  assert f'ε = {declared} at δ = 1e-06, with ρ, μ' in page.text
  assert {name for name, _ in page.figures if name.endswith('.mu')} >= {'declared.mu'}
  page.check(stated.publishable() if published else stated)
  words = f'ε = {declared} at δ = 1e-06, of 200 declared rounds; so far ε = {spent}, 3 rounds'
  assert stated.quoted == words and words in repr(stated) and words in replay_text.text(stated)


@pytest.mark.parametrize('min_sep, rounds', [(2, 12), (9, 200), (None, None)])
def test_the_headline_is_the_worst_case_where_no_round_may_follow_or_nothing_else_holds(
  min_sep, rounds
):
  schema = min_sep and dpftrl.MinSep(rounds, min_sep)
  stated = replays.replay(
    opened_runs.RecordedRun.of(LOG, BLT, noise_multiplier=3.0, participation=schema), delta=1e-6
  )
  assert stated.headline is stated.parts[0]
  assert report(filed(stated, FILE)).figures[0][0] == 'worst_case.epsilon'
  assert 'so far' not in stated.quoted + repr(stated)
  assert ('of the rounds so far' in replay_text.text(stated)) == (rounds == 200)


def test_stands_alone(plain):
  assert not plain.references
  assert not {'link', 'img', 'iframe', 'object', 'embed'} & set(plain.tags)
  assert not re.search(r'https?:|url\(|@import|//', plain.source)
  assert plain.tags.count('script') == 1 and plain.tags.count('svg') == 4


@made.cases(
  'words',
  'is taken as trusted to do so',
  'Unit of privacy',
  'Adjacency',
  'Assumptions',
  'Outside the guarantee',
  '31 clipped, 2 dropped for their size, 1 dropped as not finite',
  'Tuning of hyperparameters',
  COMMAND,
  'ab' * 32,
  documents.strategy_digest(BLT),
  "device 'a' in rounds 0 and 4",
  'whether a device sent updates of its own or zeros',
)
def test_says(plain, words):
  assert words in plain.text
  assert 'two data sets' not in plain.text and 'violated' not in plain.text


def test_a_void_run_says_so_before_any_figure():
  by_log = dataclasses.replace(statement(ONCE), void_reason=SEED)
  by_claim = statement(noise={'void_reason': SEED})
  without_noise = statement(noise_multiplier=0.0)
  for page, reason in (
    (report(by_claim), SEED),
    (report(by_log), SEED),
    (report(without_noise), 'no noise was added'),
  ):
    before = page.source.partition('<data')[0]
    assert 'No guarantee' in before and f'This run guarantees nothing: {reason}.' in before
    assert f'None: {reason}.' in page.text
    assert page.source.count('class="card void"') == 3
  void = report(by_claim).source
  assert '<table class="void">' in void and 'worst case: void' in void
  words = report(without_noise).section('Privacy loss of actual devices')
  assert 'Without noise no device was protected' in words


def test_a_violated_declaration_is_loud():
  stated = statement(min_sep=5)
  page = report(stated)
  assert 'The declared participation does not hold' in page.text
  assert 'A min-sep of 5 and at most' in page.text
  assert page.source.count('card bad void') == 1
  assert 'This would have been the only guarantee that holds even if' in page.text
  groups = assumption_sentences.grouped(stated)
  assert 'DOES NOT HOLD in this log' in groups[assumption_sentences.LOG][-1]
  words = public(stated).text
  assert 'The declared participation does not hold' in words
  assert 'The worst-case guarantee rests on the log and stands.' in words
  for shown in (page.text, words):
    assert 'or the end of the run, no figure may be quoted.' in shown
  assert any('no figure holds if what was released decided' in s for s in stated.assumptions)
  assert 'What was observed' in page.text and 'What was observed' not in words


def test_the_first_box_is_the_verdict_on_a_claim():
  epsilon = statement().planned.guarantee.epsilon()
  for most, is_held in ((epsilon * 1.1, True), (epsilon, True), (epsilon * 0.9, False)):
    claimed = verdicts.ClaimedEpsilon(most, 1e-6)
    for page in (report(claimed=claimed), public(claimed=claimed)):
      box = page.source.partition('<section')[2].partition('</section>')[0]
      assert f'The claim is {"held" if is_held else "not held"}: ε ≤ ' in box
      assert ('headline bad' in box) != is_held
      assert 'The figure called <strong>declared</strong> decides it' in box
      for heading in ('What the log shows', 'What only the operator can say', 'would void it'):
        assert heading in box
      assert box.count('contenteditable="true"') == 13  # Twelve answers and who gave them.
  broken = report(statement(min_sep=5), claimed=verdicts.ClaimedEpsilon(9.0, 1e-6))
  assert 'No figure decides it: the declared schema was not kept' in broken.text
  assert 'The claim is not held' in broken.text
  assert 'The claim is' not in report().text
  assert report().source.count('contenteditable="true"') == 13


def test_a_log_of_another_system_says_nothing_of_this_package(tmp_path):
  path = tmp_path / 'other.csv'
  path.write_text('step,phone\n1,a\n4,b\n6,a\n11,b\n')
  run = opened_runs.open_run(
    *(path, 'tree_online'),
    noise_multiplier=3.0,
    columns='round=step,device_id=phone',
    first_round=1,
  )
  for page in (report(replays.replay(run, delta=1e-6)), public(replays.replay(run, delta=1e-6))):
    words = page.section('Items of NIST SP 800-226')
    for item in ('Bound on a contribution', 'Correctness checks', 'Trust model', 'Who sees what'):
      assert re.search(f'{item} +this page Not known: ask the operator.', words), item
    for said in ('cryptographic', 'Central', 'central', 'only their owner', 'None in this run'):
      assert said not in page.text, said
    assert 'by which generator noise was drawn, is not known' in words


def test_a_page_numbers_rounds_as_the_log_does(tmp_path):
  path = tmp_path / 'other.csv'
  path.write_text('round,device_id\n1,a\n4,b\n6,a\n11,b\n')
  declared = dict(declared_num_rounds=20, declared_min_sep=6)
  run = opened_runs.open_run(path, 'tree_online', noise_multiplier=3.0, first_round=1, **declared)
  words = report(replays.replay(run, delta=1e-6)).text
  assert "device 'a' in rounds 1 and 6" in words
  assert 'in 1 rounds, the first of them 6.' in words


def test_hostile_names_stay_text():
  hostile = '</script><img src=x onerror=alert(1)>'
  log = log_of([(0, hostile), (2, hostile)], 3)
  page = report(statement(log, min_sep=1), dataset=hostile, unit=hostile)
  assert 'img' not in page.tags and page.text.count(hostile) >= 3
  assert json.loads(page.scripts['statement'])['witness']['device_id'] == hostile


@pytest.mark.slow
@pytest.mark.parametrize('several', [False, True])
def test_publication_tells_nothing_of_single_devices(several):
  # One to four participations each; some rounds have nobody.
  rows = [(d % 20 + 23 * again, f'SECRET{d:05}') for d in range(1009) for again in range(1 + d % 4)]
  log = log_of(rows, 97, warnings=('rows <may> be missing',))
  declared = dpftrl.MinSep(num_rounds=97, min_sep=30)
  run = opened_runs.RecordedRun.of(
    log, BLT, noise_multiplier=3.0, report_goal=50, participation=declared
  )
  whole = replays.replay([run, run] if several else run, delta=[1e-6, 1e-9])
  whole = filed(whole, *[{'name': 'crowd.parquet', 'sha256': 'cd' * 32}] * len(whole.runs))
  given = dict(population=765_432, clipped_count=54_321, zeroed_count=65_431, rejected_count=76_541)
  confidential, published = report(whole, **given).source, public(whole, **given).source
  counts = {1009, 765_432, 54_321, 65_431, 76_541, whole.num_participations}
  secret = ['SECRET', 'cd' * 32, 'crowd.parquet', 'rows &lt;may&gt; be missing']
  for text in (*secret, *(f'{count:,}' for count in counts)):
    assert text in confidential
    assert text not in published
  hidden = 'per_device histogram num_devices num_participations cohort_sizes separations witness'
  hidden += ' most_exposed "observed" observed.'
  for text in (*map(str, counts), *hidden.split()):
    assert text not in published
  assert published.count('<svg') == published.count('<figure') == 1
  assert 'Least share of false negatives' in published


def test_each_page_says_first_for_whom_it_is(plain):
  confidential = 'Confidential: this page has figures of single devices from the private log;'
  assert confidential in plain.text and 'For publication' not in plain.text
  assert 'Confidential' in plain.source.partition('<data')[0]
  stated = statement().publishable()
  page = report(stated)
  page.check(stated)
  assert confidential not in page.text
  assert 'For publication. This page leaves out what was counted from single' in page.text
  assert 'For publication' in page.source.partition('<data')[0]
  assert 'Two figures and their assumptions' in page.text
  assert 'Privacy loss of actual devices' not in page.text
  assert {'worst_case.epsilon', 'declared.epsilon'} <= page.fields


def test_each_guarantee_is_beside_its_assumptions(plain):
  cards = plain.source.partition('class="cards"')[2].split('<section')[1:4]
  for card, field, sentences in zip(
    cards,
    ('worst_case', 'declared', 'observed'),
    (
      [
        'at most 3 (k) of 12 (n) rounds, any two at least 4 (b) apart',
        'neither to data nor to released models, and that the end of the run did not depend on',
      ],
      [
        'at most 4 participations in 12 rounds, any two at least 3 rounds apart',
        'This is the only guarantee that holds even if participation, or the end of the run,'
        ' depended on what was released: it is that of all <data value="12"',
        'It assumes that devices enforce the schema themselves.',
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


@pytest.mark.slow
def test_several_runs_of_which_one_broke_its_word():
  schema = lambda b: dpftrl.MinSep(num_rounds=12, min_sep=b)
  stated = replays.replay(
    [
      opened_runs.RecordedRun.of(LOG, BLT, noise_multiplier=3.0, participation=schema(b))
      for b in (2, 5)
    ],
    delta=1e-6,
  )
  words = report(stated).text
  assert 'Not every run kept to its declared schema.' in words
  # The least of what was declared was kept to, which would puzzle.
  assert 'participations were declared; the log has' not in words


def test_a_run_without_a_declaration():
  stated = statement(min_sep=None)
  page = report(stated)
  page.check(stated)
  assert 'no guarantee here holds if participation, or the end of the run,' in page.text
