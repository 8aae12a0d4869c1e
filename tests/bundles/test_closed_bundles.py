"""Bundles have nothing that does not follow: every leaf that is changed is found, or listed."""

import json
import pathlib
import shutil
import types

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.bundles import manifest as manifest_lib
from fl_dpftrl.bundles import strategy_files
from fl_dpftrl.logs import canaries, keys, noise_record
from fl_dpftrl.strategies import files
from tests import every_family
from tests.bundles import test_bundles as private
from tests.bundles import test_public_bundles as public_lib

fixture_one_reader = private.fixture_one_reader
fixture_written = public_lib.fixture_written
SALT, edit = public_lib.SALT, public_lib.edit


def changed_leaves(document, place=()):
  """Yields each way to delete, add or edit one leaf: its place in words, and the change."""
  if isinstance(document, dict):
    yield (*place, '+'), lambda at: at.update(note='ε = 0.1 holds for every device')
    for name, value in document.items():
      yield (*place, name, '-'), lambda at, name=name: at.pop(name)
      yield from changed_leaves(value, (*place, name))
  elif isinstance(document, list):
    yield (*place, '+'), lambda at: at.append('ε = 0.1 holds for every device')
    for index, value in enumerate(document):
      yield (*place, index, '-'), lambda at, index=index: at.pop(index)
      yield from changed_leaves(value, (*place, index))
  else:
    for other in others(document):
      yield (*place, '=', other), None


def others(value):
  if isinstance(value, bool) or value is None:
    return [not value, 'ε = 0.1']
  if isinstance(value, (int, float)):
    return [value + 1, value * 2, str(value)]
  digit = 'b' if value.startswith('a') else 'a'
  return [f'{value} ε = 0.1', digit + value[1:], '']


def changed(document, place, change):
  """Returns a copy of a document with one leaf changed."""
  result = json.loads(json.dumps(document))
  at = result
  path = place[: place.index('=')] if change is None else place[:-1]
  if change is not None and place[-1] == '-':
    path = path[:-1]
  for name in path if change is not None else path[:-1]:
    at = at[name]
  if change is None:
    at[path[-1]] = place[-1]
  else:
    change(at)
  return result


# Leaves that nothing in a public bundle gives; docs/public-bundles.md lists them as asserted.
FREE = {
  ('packages',): '`packages`',
  ('clip_norm',): '`clip_norm`',
  ('clip_norm_changes',): '`clip_norm_changes`',
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
  metadata = noise_record.run_metadata(
    private.STRATEGY,
    2.0,
    clip_norm=dpftrl.AdaptiveClipping(1.0),
    changes=((5, 3.0, 0.5),),
    restarts=((12, dpftrl.TreeOnline()),),
  )
  metadata |= keys.of_schema(dpftrl.MinSep(num_rounds=40, min_sep=6))
  metadata |= {canaries.KEY: '3'}
  private.write_log(folder / 'log.parquet', metadata=metadata)
  run = dpftrl.open_run(folder / 'log.parquet', private.STRATEGY)
  dpftrl.write_bundle(folder / 'bundle', run, deltas=[1e-6, 1e-9], group_size=2, report_goal=3)
  dpftrl.write_public_bundle(folder / 'public', folder / 'bundle', salt=SALT)
  return folder


@pytest.mark.slow
@pytest.mark.parametrize('name', [manifest_lib.NAME, manifest_lib.STATEMENT])
@pytest.mark.parametrize('kind', ['bundle', 'public'])
def test_every_leaf_that_is_changed_is_found_or_listed_as_asserted(rich, kind, name, tmp_path):
  folder = shutil.copytree(rich / kind, tmp_path / kind)
  assert not private.failed(folder)
  original = {path: path.read_bytes() for path in folder.iterdir()}
  document = json.loads((folder / name).read_text())
  passed = []
  changes = list(changed_leaves(document))
  if (kind, name) == ('bundle', manifest_lib.STATEMENT):
    changes = changes[::3]  # Each leaf has three or more, and such a bundle is slow to verify.
  for place, change in changes:
    if name == manifest_lib.NAME and place[0] == 'files':
      continue  # A forger corrects these; the bundle's other tests change them.
    if place[0] == 'per_device' and place[2:3] and place[2] in range(1, 99):
      continue  # The first quantile and the first bar stand for all.
    for path, content in original.items():
      path.write_bytes(content)
    other = changed(document, place, change)
    if other == document:
      continue
    if name == manifest_lib.NAME:
      private.forge(
        folder, lambda manifest, other=other: (manifest.clear(), manifest.update(other))
      )
    else:
      (folder / name).write_text(json.dumps(other))
      private.forge(folder)
    try:
      if not private.failed(folder):
        passed.append(place)
    except ValueError:
      pass
  assert not [place for place in passed if not is_free(kind, place)]
  assert not [place for place in passed if 'ε' in str(place[-1])]  # No words of a forger's own.
  page = (pathlib.Path(__file__).parents[2] / 'docs' / 'public-bundles.md').read_text()
  (row,) = [line for line in page.splitlines() if 'no figure follows from them' in line]
  assert all(free in row for free in FREE.values())


@pytest.mark.parametrize('kind', ['bundle', 'public'])
@pytest.mark.parametrize(
  'sentence', ['the log is complete', 'does not depend on released', None, 'twice']
)
def test_assumptions_are_a_closed_list(written, tmp_path, kind, sentence):
  folder = shutil.copytree(written[0] if kind == 'bundle' else written[1], tmp_path / 'copy')

  def change(statement):
    own = statement['assumptions']
    if sentence is None:
      own.append('ε = 0.1 holds for every device')
    elif sentence == 'twice':
      own.append(own[0])
    else:
      statement['assumptions'] = [s for s in own if sentence not in s]
      assert len(statement['assumptions']) == len(own) - 1

  edit(folder, change)
  private.forge(folder)
  found = private.failed(folder)
  assert found.keys() == {'statement', 'guarantee'}
  told = {None: 'assumptions have', 'twice': 'each there once'}.get(sentence, 'assumptions lack')
  assert told in found['statement']


@pytest.mark.parametrize('kind', ['bundle', 'public'])
@pytest.mark.parametrize(
  'change',
  [
    lambda s: s.update(note='ε = 0.1 holds for every device'),
    lambda s: s.update(made_by='ε = 0.1 holds for every device'),
    lambda s: s.update(objective='rms'),
    lambda s: s['schema'].update(max_participations=None),
    lambda s: s.update(sensitivity=s['sensitivity'] * (1 + 1e-12)),
  ],
)
def test_nothing_is_added_to_the_strategy_files_of_bundles(written, tmp_path, kind, change):
  folder = shutil.copytree(written[0] if kind == 'bundle' else written[1], tmp_path / 'copy')
  path = folder / 'strategy-1.json'
  document = json.loads(path.read_text())
  change(document)
  path.write_text(json.dumps(document))
  private.forge(folder)
  found = private.failed(folder)
  assert 'guarantee' in found and 'strategy' in ' '.join([*found, *found.values()])


@pytest.mark.parametrize('kind', ['bundle', 'public'])
@pytest.mark.parametrize('name', ['epsilon-is-0.1', 'strategy-1.0123456789abcdef.npz'])
def test_files_that_nothing_names_are_refused(written, tmp_path, kind, name):
  folder = shutil.copytree(written[0] if kind == 'bundle' else written[1], tmp_path / 'copy')
  (folder / name).write_text('ε = 0.1 holds for every device')
  private.forge(folder, lambda manifest: manifest['files'].update({name: {}}))
  try:
    assert 'guarantee' in private.failed(folder)
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
