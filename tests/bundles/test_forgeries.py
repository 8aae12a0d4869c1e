"""Forged bundles: every change is found, what was edited is named first, nothing can be added."""

import json
import pathlib
import shutil
import types

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.bundles import checks, private_checks, strategy_files, writing
from fl_dpftrl.bundles import manifest as manifest_lib
from fl_dpftrl.logs import keys, layout, noise_record
from fl_dpftrl.strategies import files
from tests import every_family
from tests.bundles.bundles import (
  NUM_ROUNDS,
  SALT,
  STRATEGY,
  edit,
  failed,
  forge,
  random_change,
  write_log,
)
from tests.commands import lines

CLAIM = 'ε = 0.1 holds for every device'


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['bundle', 'public'])
def test_each_of_60_random_changes_is_found(written, tmp_path, kind):
  rng = np.random.default_rng(0)
  refused = 0
  for number in range(60):
    folder = shutil.copytree(written.folder / kind, tmp_path / f'{number}')
    name = random_change(folder, rng)
    try:
      wrong = failed(folder)
    except ValueError as error:
      assert name == manifest_lib.NAME and manifest_lib.NAME in str(error)
      refused += 1
      continue
    own = name in (manifest_lib.NAME, manifest_lib.SEAL)
    assert name in wrong['manifest' if own else 'files'], (number, name)
    assert 'guarantee' in wrong
  assert refused < 20


SCHEMA = {
  'participation': 'min_sep',
  'num_rounds': NUM_ROUNDS,
  'min_sep': 5,
  'max_participations': 5,
}


@pytest.mark.parametrize(
  'place, name, value, beside_log, without',
  [
    ('guarantee', 'deltas', [1e-5, 1e-9], 'delta is', 'delta is'),
    ('guarantee', 'adjacency', 'replace_one', 'adjacency is', 'adjacency is'),
    ('guarantee', 'group_size', 2, 'group_size is', 'group_size is'),
    ('guarantee', 'report_goal', 4, "'report_goal' is", "'report_goal' is"),
    ('run', 'noise_multiplier', 2.5, 'noise_multiplier is 2.0', 'noise_multiplier is 2.0'),
    ('run', 'declared', None, "'declared' is", "'declared' is unknown"),
    ('run', 'declared', SCHEMA, 'declared.min_sep is', 'declared.min_sep is'),
    ('run', 'num_rounds', 25, None, 'num_rounds is 24, but the parameters give 25'),
  ],
)
def test_a_forged_argument_is_named_first(either, place, name, value, beside_log, without):
  def change(manifest):
    (manifest['runs'][0] if place == 'run' else manifest['guarantee'])[name] = value

  forge(either, change)
  expected = without if either.name == 'public' else beside_log
  if expected is not None:
    assert failed(either)['statement'].startswith(expected)


OTHER_SCHEMA = 'strategy-1.json has another schema, objective or workload than its run: min_sep'


@pytest.mark.parametrize(
  'name, value, without',
  [
    ('noise_multiplier', 2.5, 'noise_multiplier is 2.5, but the parameters give 2.0'),
    ('num_rounds', 25, 'num_rounds is 25, but the parameters give 24'),
    ('delta', 1e-5, 'delta is 1e-05, but the parameters give 1e-06'),
    ('min_sep', 7, OTHER_SCHEMA),
    ('max_participations', 3, 'strategy-1.json has another schema'),
  ],
)
def test_an_edited_number_of_the_statement_is_named_first(either, name, value, without):
  before = json.loads((either / manifest_lib.STATEMENT).read_text())[name]
  edit(either, lambda statement: statement.update({name: value}))
  wrong = failed(either)
  assert wrong.keys() == {'statement', 'guarantee'}
  if either.name == 'public':
    assert wrong['statement'].startswith(without)
    assert name in wrong['statement'].split('. ')[0]
  else:
    assert wrong['statement'] == f'{name} is {value}, but the log and the strategy give {before}'


@pytest.mark.parametrize('name', ['epsilon', 'sensitivity'])
def test_a_figure_is_compared_to_the_last_digit(either, name):
  edit(
    either,
    lambda statement: statement['worst_case'].update(
      {name: float(np.nextafter(statement['worst_case'][name], 0.0))}
    ),
  )
  assert failed(either)['statement'].startswith(f'worst_case.{name} is')


@pytest.mark.parametrize(
  'change, told',
  [
    (lambda s: s['declared'].update(holds=False), 'declared.holds'),
    (lambda s: s.update(num_rounds=24.0), 'num_rounds is 24.0, but the parameters give 24'),
    (lambda s: s.update(num_devices=30), "'num_devices' is unknown"),
    (lambda s: s.update(assumptions=3), 'assumptions must be'),
    (lambda s: s.update(void_reason='phone 3 left'), 'void_reason must be'),
    (lambda s: s.update(warnings=['phone 3 left']), 'warnings is'),
    (lambda s: s.update(schema_in_log=1), 'schema_in_log is malformed'),
    (lambda s: s.update(clip_norm='wide'), "'clip_norm' must not be 'wide'"),
    (lambda s: s.pop('commitment'), 'commitment must have'),
    (lambda s: s['commitment'].update(salt=SALT), "'commitment.salt' is unknown"),
    (lambda s: s.update(confidential=True), 'confidential'),
  ],
)
def test_a_forged_public_statement_is_found(public, change, told):
  edit(public, change)
  wrong = failed(public)
  assert told in wrong['statement'] and 'guarantee' in wrong


def changed_leaves(document):
  """Yields each copy with one leaf deleted, added or edited, and the place of the change."""
  if isinstance(document, dict):
    yield ('+',), {**document, 'note': CLAIM}
    for name, value in document.items():
      yield (name, '-'), {other: v for other, v in document.items() if other != name}
      for place, changed in changed_leaves(value):
        yield (name, *place), {**document, name: changed}
  elif isinstance(document, list):
    yield ('+',), [*document, CLAIM]
    for i, value in enumerate(document):
      yield (i, '-'), document[:i] + document[i + 1 :]
      for place, changed in changed_leaves(value):
        yield (i, *place), [*document[:i], changed, *document[i + 1 :]]
  else:
    for other in others(document):
      yield ('=', other), other


def others(value):
  if isinstance(value, bool) or value is None:
    return [not value, 'ε = 0.1']
  if isinstance(value, (int, float)):
    return [value + 1, value * 2, str(value)]
  digit = 'b' if value.startswith('a') else 'a'
  return [f'{value} ε = 0.1', digit + value[1:], '']


# Leaves that nothing in a public bundle gives; docs/public-bundles.md lists them as asserted.
FREE = {
  ('packages',): '`packages`',
  ('clip_norm',): '`clip_norm`',
  ('adaptive_clipping',): '`adaptive_clipping`',
  ('commitment', 'hmac_sha256'): '`commitment`',
}


def is_free(kind, place):
  free = FREE if kind == 'public' else [('packages',)]
  return any(place[: len(one)] == one for one in free)


@pytest.fixture(scope='module', name='rich')
def fixture_rich(tmp_path_factory):
  """A bundle of a run that has every kind of fact, and its public form."""
  folder = tmp_path_factory.mktemp('rich')
  metadata = noise_record.run_metadata(STRATEGY, 2.0, clip_norm=dpftrl.AdaptiveClipping(1.0))
  metadata |= keys.of_schema(dpftrl.MinSep(num_rounds=40, min_sep=6))
  run = dpftrl.open_run(write_log(folder / 'log.parquet', metadata=metadata), STRATEGY)
  dpftrl.write_bundle(folder / 'bundle', run, deltas=[1e-6, 1e-9], group_size=2, report_goal=3)
  dpftrl.write_public_bundle(folder / 'public', folder / 'bundle', salt=SALT)
  return folder


@pytest.mark.slow
@pytest.mark.parametrize('name', [manifest_lib.NAME, manifest_lib.STATEMENT])
@pytest.mark.parametrize('kind', ['bundle', 'public'])
def test_every_leaf_that_is_changed_is_found_or_listed_as_asserted(
  rich, kind, name, tmp_path, monkeypatch
):
  folder = shutil.copytree(rich / kind, tmp_path / kind)
  if name == manifest_lib.STATEMENT:  # Log and arguments stay as they are.
    computed = private_checks.examine(checks.opened(rich / 'bundle')).statement
    monkeypatch.setattr(writing, 'statement_of', lambda *given: computed)
    monkeypatch.setattr(private_checks, '_chain', lambda *given: ())
  assert not failed(folder)
  original = {path: path.read_bytes() for path in folder.iterdir()}
  document = json.loads((folder / name).read_text())
  passed = []
  changes = list(changed_leaves(document))
  if (kind, name) == ('bundle', manifest_lib.STATEMENT):
    changes = changes[::3]  # Each leaf has three or more, and such a bundle is slow to verify.
  for place, other in changes:
    if name == manifest_lib.NAME and place[0] == 'files':
      continue  # A forger corrects these; the bundle's other tests change them.
    if place[0] == 'per_device' and place[2:3] and place[2] in range(1, 99):
      continue  # The first quantile and the first bar stand for all.
    for path, content in original.items():
      path.write_bytes(content)
    if other == document:
      continue
    edit(folder, lambda stored, other=other: (stored.clear(), stored.update(other)), name)
    try:
      if not failed(folder):
        passed.append(place)
    except ValueError:
      pass
  assert not [place for place in passed if not is_free(kind, place)]
  assert not [place for place in passed if 'ε' in str(place[-1])]  # No words of a forger's own.
  page = (pathlib.Path(__file__).parents[2] / 'docs' / 'public-bundles.md').read_text()
  (row,) = [line for line in page.splitlines() if 'no figure follows from them' in line]
  assert all(free in row for free in FREE.values())


@pytest.mark.parametrize(
  'sentence, told',
  [
    ('the log is complete', 'assumptions lack'),
    ('neither participation nor the end of the run', 'assumptions lack'),
    (None, 'assumptions have'),
    ('twice', 'each there once'),
  ],
)
def test_assumptions_are_a_closed_list(either, sentence, told):
  def change(statement):
    own = statement['assumptions']
    if sentence is None:
      own.append(CLAIM)
    elif sentence == 'twice':
      own.append(own[0])
    else:
      statement['assumptions'] = [s for s in own if sentence not in s]
      assert len(statement['assumptions']) == len(own) - 1

  edit(either, change)
  wrong = failed(either)
  assert wrong.keys() == {'statement', 'guarantee'} and told in wrong['statement']


@pytest.mark.parametrize(
  'change',
  [
    lambda s: s.update(note=CLAIM),
    lambda s: s.update(made_by=CLAIM),
    lambda s: s.update(objective='rms'),
    lambda s: s['schema'].update(max_participations=None),
    lambda s: s.update(sensitivity=s['sensitivity'] * (1 + 1e-12)),
  ],
)
def test_nothing_is_added_to_the_strategy_files_of_bundles(either, change):
  edit(either, change, 'strategy-1.json')
  wrong = failed(either)
  assert 'guarantee' in wrong and 'strategy' in ' '.join([*wrong, *wrong.values()])


def test_a_manifest_that_is_written_otherwise_is_found(either):
  path = either / manifest_lib.NAME
  content = json.dumps(json.loads(path.read_text())).encode()
  path.write_bytes(content)
  (either / manifest_lib.SEAL).write_bytes(manifest_lib.seal(content))
  wrong = failed(either)
  assert wrong.keys() == {'manifest', 'guarantee'}
  assert 'is not written as write_bundle writes it' in wrong['manifest']


@pytest.mark.parametrize('name', ['epsilon-is-0.1', 'strategy-1.0123456789abcdef.npz'])
def test_files_that_nothing_names_are_refused(either, name):
  (either / name).write_text(CLAIM)
  forge(either, lambda manifest: manifest['files'].update({name: {}}))
  try:
    assert 'guarantee' in failed(either)
  except ValueError as error:
    assert name in str(error)


@pytest.mark.slow
@pytest.mark.parametrize('name', every_family.NAMES)
def test_strategy_files_of_every_family_hold_what_follows(name, tmp_path):
  strategy = every_family.example(name, 12)
  path = tmp_path / 'strategy-1.json'
  files.save_strategy(path, strategy, schema=dpftrl.MinSep(num_rounds=12, min_sep=3))
  listed = {p.name: None for p in tmp_path.iterdir()}
  manifest = types.SimpleNamespace(files=listed, made_by=dpftrl.__version__)
  bundle = types.SimpleNamespace(folder=tmp_path, manifest=manifest)
  check = lambda: strategy_files.check(bundle, 'strategy', path.name)[0]
  assert check().passed, check().found
  path.write_text(path.read_text().replace('"format"', '"note": 1, "format"', 1))
  assert check().found == ("'note' is unknown",)


def edited(text, replacement):
  return lambda content: content.replace(text.encode(), replacement.encode(), 1)


LAYOUT = layout.PLAIN._asdict()
HOSTILE = [
  ('bundle', edited('"log-1-1.parquet"', '"../log.parquet"'), 'plain name'),
  ('bundle', edited('"rounds-1.txt": {', '"../rounds-1.txt": {'), 'plain name'),
  ('bundle', edited('"rounds-1.txt": {', '"rounds-2.txt": {'), "must have 'rounds-1.txt'"),
  ('bundle', edited('"log-1-1.parquet": {', '"log-1-2.parquet": {'), "must have 'log-1-1.parquet'"),
  ('bundle', edited('"log-1-1.parquet": {', '"log-2-1.parquet": {'), "must have 'log-1-1'"),
  ('bundle', edited('"num_rounds": null', '"num_rounds": true'), 'num_rounds'),
  ('bundle', edited('"first_round": 0', '"first_round": -1'), 'first_round'),
  ('bundle', edited('"deltas": [', '"more": 1, "deltas": ['), 'unknown'),
  ('bundle', edited('"version": 2', '"version": 1'), 'version must be 2'),
  ('bundle', edited('"version": 2', '"version": 3'), 'version must be 2'),
  ('bundle', edited('"version": 2', f'"version": {"9" * 5000}'), 'digits'),
  ('bundle', lambda content: b'[' * 100_000, 'within each other'),
  ('bundle', lambda content: b'[]', 'format'),
  ('bundle', lambda content: content + b' ' * 2**24, 'more than'),
  ('public', edited('"commitments-1.txt"', '"../commitments-1.txt"'), 'plain name'),
  ('public', edited('"strategy-1.json"', '"strategy-1-3.json"'), "must have 'strategy-1.json'"),
  ('public', edited('"num_rounds": 24', '"num_rounds": null'), 'num_rounds'),
  ('public', edited('"layout": null', f'"layout": {json.dumps(LAYOUT)}'), 'layout must be null'),
  ('public', edited('"num_rounds": 24', '"phone": 1, "num_rounds": 24'), 'unknown'),
  (
    'public',
    edited('"participation": "min_sep"', '"participation": "fixed_separation"'),
    'min_sep',
  ),
  ('public', edited('"version": 2', '"version": 1'), 'version must be 2'),
]


@pytest.mark.parametrize('kind, change, told', HOSTILE)
def test_hostile_manifests_are_refused_in_one_line(request, kind, change, told):
  folder = request.getfixturevalue(kind)
  path = folder / manifest_lib.NAME
  path.write_bytes(change(path.read_bytes()))
  (folder / manifest_lib.SEAL).write_bytes(manifest_lib.seal(path.read_bytes()))
  done = lines.run(['verify', folder])
  assert done.returncode == 2 and not done.stdout
  (line,) = done.stderr.splitlines()
  assert told in line and len(line) <= 300
