"""Registry entries and model cards: what may be published, and what the operator says."""

import hashlib
import json
import pathlib

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.commands import dispatch
from fl_dpftrl.prove.replaying import certificates, opened_runs, replays
from fl_dpftrl.prove.reports import registry_entry
from tests import every_participation, made
from tests.prove.auditing import canary_runs
from tests.prove.replaying.in_memory import log_of

SCHEMA = pathlib.Path(__file__).parents[3] / 'docs' / 'registry-entry.schema.json'
ROWS = [(0, 'SECRET-a'), (4, 'SECRET-a'), (9, 'SECRET-a'), (1, 'b'), (6, 'b'), (3, 'c')]
FACTS = {name: f'text of {name}' for name in registry_entry.FACTS}


def checked(entry):
  """The entry, once it is what the schema says."""
  jsonschema = pytest.importorskip('jsonschema')
  schema = json.loads(SCHEMA.read_text())
  jsonschema.Draft202012Validator.check_schema(schema)
  jsonschema.Draft202012Validator(schema).validate(entry)
  return entry


def run_of(rows=ROWS, num_rounds=12, **claim):
  claim = {'noise_multiplier': 3.0, 'participation': dpftrl.MinSep(12, 3), **claim}
  return opened_runs.RecordedRun.of(log_of(rows, num_rounds), made.BLT, **claim)


def entry_of(tmp_path, runs=None, facts=FACTS, **options):
  statement = replays.replay(run_of() if runs is None else runs, delta=1e-6, **options)
  path = tmp_path / 'entry.json'
  entry = registry_entry.write_entry(path, statement, facts)
  assert json.loads(path.read_text()) == entry
  return checked(entry), statement


SECRET = ('poisson', 'fixed_size', 'bins')
CLAIMED = [  # No run claims exact separations; people need a table of what they own.
  name
  for name in every_participation.EXAMPLES
  if name not in (*SECRET, 'fixed_separation') and 'per_unit' not in name
]


@pytest.mark.parametrize('name', CLAIMED)
def test_entries_of_every_participation_are_as_the_schema_says(tmp_path, name):
  participation = every_participation.EXAMPLES[name].participation
  run = run_of([(0, 'a'), (1, 'b')], 6, participation=participation, noise_multiplier=9.0)
  entry, statement = entry_of(tmp_path, run)
  head = statement.planned if statement.planned.holds else statement.parts[0]
  assert entry['privacy']['figure'] == head.name
  assert entry['privacy']['epsilon'] == head.guarantee.epsilon()


@pytest.mark.parametrize('name', SECRET)
def test_nothing_is_published_of_secret_draws(tmp_path, name):
  participation = every_participation.EXAMPLES[name].participation
  with pytest.raises(ValueError, match='drawn in secret has no public report'):
    log = log_of([(0, 'a')], 6)
    claim = dict(noise_multiplier=3.0, participation=participation)
    entry_of(tmp_path, opened_runs.RecordedRun.of(log, dpftrl.Identity(), **claim))
  assert not list(tmp_path.iterdir())


def test_the_curve_is_that_of_runs_planned_to_end_there(tmp_path):
  entry, statement = entry_of(tmp_path)
  curve = entry['privacy']['epsilon_if_planned_for']
  assert [n for n, _ in curve] == [1, 2, 3, 4, 5, 6, 8, 10, 12]
  for n, epsilon in curve:
    planned = dpftrl.account(
      made.BLT, dpftrl.MinSep(n, min(3, n)), noise_multiplier=3.0, delta=1e-6
    )
    assert epsilon == pytest.approx(planned.epsilon(), rel=1e-9)
  epsilons = [epsilon for _, epsilon in curve]
  assert epsilons == sorted(epsilons) and epsilons[-1] == statement.declared.guarantee.epsilon()


@made.cases(
  'missing, tier',
  ((), 3),
  (('tuning',), 2),
  (('base_model', 'access'), 2),
  (('delta_reason',), 1),
  (('deployment_model', 'tuning'), 1),
  (('curator',), 0),
  (registry_entry.FACTS, 0),
)
def test_a_missing_fact_lowers_the_tier(tmp_path, missing, tier):
  facts = {name: text for name, text in FACTS.items() if name not in missing}
  entry, _ = entry_of(tmp_path, facts=facts)
  assert (entry['tier'], entry['missing']) == (tier, list(missing))


def test_what_the_operator_says_is_marked_and_nothing_else_is(tmp_path):
  entry, _ = entry_of(tmp_path)
  marked = {n for n, part in entry.items() if isinstance(part, dict) and 'said_by' in part}
  said = {name: text for part in marked for name, text in entry[part].items()}
  assert said == FACTS | {'said_by': 'operator'}
  others = json.dumps({name: part for name, part in entry.items() if name not in marked})
  assert 'text of' not in others


def test_nothing_of_single_devices_is_in_it(tmp_path):
  """Another log that is published alike has the same entry, but for n, b and k."""
  entry, statement = entry_of(tmp_path)
  other, _ = entry_of(tmp_path, run_of([(t, f'{i}') for i, (t, _) in enumerate(ROWS)]))
  assert entry == other  # The declared figure, which no log changes.
  text = json.dumps(entry)
  observed = statement.observed
  for secret in ('SECRET', 'observed":', repr(observed.epsilon()), repr(statement.worst_case.rho)):
    assert secret not in text, secret
  assert not any('observed' in s for group in entry['assumptions'].values() for s in group)


@pytest.mark.parametrize('kind', ['seed', 'noise'])
def test_a_void_run_has_no_figures_and_its_card_no_tag(tmp_path, kind):
  claim = {'seed': dict(void_reason='the SEED is known'), 'noise': dict(noise_multiplier=0.0)}
  entry, _ = entry_of(tmp_path, run_of(**claim[kind]))
  names = ('epsilon', 'rho', 'mu', 'epsilon_if_planned_for')
  assert [entry['privacy'][name] for name in names] == [None] * 4 and entry['claims']['void']
  assert 'SEED' not in json.dumps(entry)
  registry_entry.write_card(tmp_path / 'README.md', entry)
  card = (tmp_path / 'README.md').read_text()
  assert 'no privacy guarantee' in card
  assert not any(words in card for words in ('differential', 'Trained with', 'ε ='))


def test_a_schema_that_was_not_kept_leaves_the_worst_case(tmp_path):
  entry, statement = entry_of(tmp_path, run_of(participation=dpftrl.MinSep(12, 6)))
  assert entry['privacy']['figure'] == 'worst_case' and entry['claims']['schema_kept'] is False
  assert entry['privacy']['epsilon'] == statement.worst_case.epsilon()
  assert entry['privacy']['epsilon_if_planned_for'] is None
  assert entry['mechanisms'][0]['participation']['min_sep'] == 4  # Not what was declared.
  broken, kept = tmp_path / 'broken.md', tmp_path / 'kept.md'
  registry_entry.write_card(broken, entry)
  registry_entry.write_card(kept, entry_of(tmp_path)[0])
  counts = [p.read_text().count('declared before the run was not kept') for p in (broken, kept)]
  assert counts == [1, 0]
  without, _ = entry_of(tmp_path, run_of(participation=None))
  assert without['claims']['schema_kept'] is None
  assert without['privacy']['figure'] == 'worst_case'


def test_several_runs_and_a_population(tmp_path):
  entry, statement = entry_of(tmp_path, [run_of(), run_of()])
  assert len(entry['mechanisms']) == entry['claims']['runs'] == 2
  assert entry['privacy']['epsilon'] == statement.declared.guarantee.epsilon()
  assert entry['privacy']['epsilon_if_planned_for'] is None
  registry_entry.write_card(tmp_path / 'README.md', entry)
  assert 'the declared figure of its runs.' in (tmp_path / 'README.md').read_text()
  fleet = dpftrl.Population(tmp_path / 'fleet', epsilon=4.0, delta=1e-6)
  claim = dpftrl.Claim(
    strategy='identity', noise_multiplier=9.0, participation=dpftrl.MinSep(50, 1, 50)
  )
  with dpftrl.Run(tmp_path / 'run', claim, population=fleet) as run, run.round(['a']) as round_:
    round_.released()
  entry, _ = entry_of(tmp_path, tmp_path / 'fleet')
  assert entry['privacy']['epsilon'] == pytest.approx(4.0) and entry['privacy']['epsilon'] <= 4.0
  assert entry['privacy']['epsilon_if_planned_for'] is None  # Other runs add to that of this one.


def test_the_card_says_what_the_entry_does(tmp_path):
  yaml = pytest.importorskip('yaml')
  hostile = FACTS | {'name': 'A: "b" <script>\n---\n# c', 'licence': "it's: {x}"}
  entry, statement = entry_of(tmp_path, facts=hostile)
  registry_entry.write_card(tmp_path / 'README.md', entry, 'entry.json')
  card = (tmp_path / 'README.md').read_text()
  start, head, body = card.split('---\n', 2)
  head = yaml.safe_load(head)
  privacy = head['differential_privacy']
  epsilon = statement.declared.guarantee.epsilon()
  assert start == '' and epsilon <= privacy.pop('epsilon') <= epsilon * 1.001
  assert privacy == {
    'delta': 1e-6, 'unit': 'device', 'adjacency': 'zero_out', 'entry': 'entry.json'
  }  # fmt: skip
  assert (head['license'], head['base_model']) == ("it's: {x}", 'text of base_model')
  assert 'differential-privacy' in head['tags'] and '<script>' not in card
  assert all(f'text of {name}' in body for name in FACTS if name not in ('name', 'licence'))


def test_text_of_somebody_else_is_not_overwritten(tmp_path):
  entry, _ = entry_of(tmp_path)
  path = tmp_path / 'README.md'
  registry_entry.write_card(path, entry)
  registry_entry.write_card(path, entry | {'made_by': 'a later one'})  # Nobody has changed it.
  assert 'a later one' in path.read_text()
  for text in (path.read_text() + 'More.\n', path.read_text().replace('zeros', 'ones'), '# Mine\n'):
    path.write_text(text)
    with pytest.raises(ValueError, match='has text that is not of this program'):
      registry_entry.write_card(path, entry)
    assert path.read_text() == text


def command(tmp_path, capsys, *words):
  log = tmp_path / 'log.csv'
  log.write_text('round,device_id\n' + ''.join(f'{t},{d}\n' for t, d in ROWS))
  status, given = 0, [f'--log={log}', '--strategy=identity', '--noise_multiplier=3', '--delta=1e-6']
  try:
    dispatch.run(['replay', *given, '--num_rounds=12', *words])
  except SystemExit as ended:
    status = ended.code
  return status, *capsys.readouterr()


BAD = {
  'not JSON': '{"curator": ',
  'a list': '["curator"]',
  'is no fact': '{"curater": "me"}',
  'key': '{"curator": "a", "curator": "b"}',
  'text of up to': '{"curator": 3}',
  'curator must': '{"curator": " "}',
  'use must': json.dumps({'use': 'x' * 2001}),
}


@pytest.mark.parametrize('words', BAD)
def test_a_malformed_file_of_the_operator_ends_in_one_line_before_any_file(tmp_path, capsys, words):
  facts = tmp_path / 'facts.json'
  facts.write_text(BAD[words])
  before = {*tmp_path.iterdir(), tmp_path / 'log.csv'}
  outputs = [f'--registry={tmp_path}/entry.json', f'--model_card={tmp_path}/README.md']
  outputs.append(f'--report={tmp_path}/page.html')
  status, out, err = command(tmp_path, capsys, f'--operator={facts}', *outputs)
  assert (status, out) == (2, '') and err.count('\n') == 1 and len(err) <= 300
  assert 'facts.json' in err and (words == 'a list' or words in err)
  assert {*tmp_path.iterdir()} == before


def test_the_command_writes_both_files(tmp_path, capsys):
  facts, entry, card = (tmp_path / name for name in ('facts.json', 'entry.json', 'README.md'))
  facts.write_text(json.dumps({'curator': 'a lab'}))
  options = [f'--registry={entry}', f'--operator={facts}', f'--model_card={card}']
  assert command(tmp_path, capsys, *options)[0] == 0
  written = checked(json.loads(entry.read_text()))
  assert written['deployment'] == {'curator': 'a lab', 'said_by': 'operator'}
  assert 'entry: "entry.json"' in card.read_text()
  card.write_text('# Mine')
  entry.unlink()
  status, _, err = command(tmp_path, capsys, *options)
  assert status == 2 and f'model_card={card} has text' in err and not entry.exists()
  for alone in (f'--operator={facts}', f'--model_card={tmp_path}/other.md'):
    assert 'needs --registry' in command(tmp_path, capsys, alone)[2]


def test_the_released_weights_have_their_digest(tmp_path):
  (tmp_path / 'model.npz').write_bytes(b'weights')
  statement = replays.replay(run_of(), delta=1e-6)
  entry = registry_entry.write_entry(
    tmp_path / 'entry.json', statement, {}, model=tmp_path / 'model.npz'
  )
  (subject,) = checked(entry)['subjects']
  assert subject['name'] == 'model.npz' and subject['digest']['sha256'].startswith('9a129038')


def test_an_entry_cites_the_certificate_that_proves_its_figure(tmp_path, capsys):
  entry, folder = tmp_path / 'entry.json', tmp_path / 'evidence'
  options = [f'--registry={entry}', f'--evidence={folder}']
  assert command(tmp_path, capsys, *options)[0] == 0
  proof = checked(json.loads(entry.read_text()))['proof']
  digest = lambda path: hashlib.sha256(path.read_bytes()).hexdigest()
  assert proof == {
    'certificate_sha256': digest(folder / 'certificate.json'),
    'verdict': 'proved',
    'checker_sha256': digest(certificates.checker()),
  }
  # Of another figure, it proves nothing here.
  path = folder / 'certificate.json'
  path.write_text(
    path.read_text().replace('"worst case"', '"other"').replace('"declared"', '"other"')
  )
  statement = replays.replay(run_of(), delta=1e-6)
  assert registry_entry.write_entry(entry, statement, {}, evidence=folder)['proof'] is None


def test_an_entry_has_the_audit_of_a_run_with_canaries(tmp_path):
  audit = canary_runs.audited(tmp_path / 'run')
  entry = tmp_path / 'entry.json'
  arguments = [str(tmp_path / 'run'), f'--delta={canary_runs.DELTA}', f'--registry={entry}']
  dispatch.run(['replay', *arguments])
  assert checked(json.loads(entry.read_text()))['audit'] == {
    'canaries': canary_runs.SIZE,
    'confidence': 0.95,
    'delta': canary_runs.DELTA,
    'lower_epsilon': audit.lower_epsilon,
    'noise_limit': audit.noise_limit,
    'rounds': canary_runs.ROUNDS,
    'released': canary_runs.ROUNDS,
  }
  (tmp_path / 'run' / 'canaries' / 'secret.json').unlink()
  with pytest.warns(UserWarning, match='there is no audit by canaries: .* has the coins'):
    dispatch.run(['replay', *arguments])
  assert checked(json.loads(entry.read_text()))['audit'] is None
