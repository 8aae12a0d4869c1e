"""Strategy files: what goes in comes out, and what was changed is refused."""

import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import fl_dpftrl
from fl_dpftrl import workloads
from fl_dpftrl.families import banded, blt, identity, stamped, tree_online
from fl_dpftrl.participation import schemas
from fl_dpftrl.strategies import files
from tests import every_family

SCHEMA = schemas.MinSep(num_rounds=12, min_sep=3, max_participations=2)


def banded_example():
  coefficients = np.random.default_rng(0).normal(size=(12, 3))
  coefficients[:, 0] = 1.0 + np.abs(coefficients[:, 0])
  coefficients[:2, 2] = coefficients[0, 1] = 0.0
  return banded.Banded(coefficients)


@pytest.mark.parametrize('name', [*every_family.NAMES, 'stamped twice'])
@pytest.mark.parametrize(
  'schema, workload',
  [
    (SCHEMA, workloads.Workload()),
    (schemas.MinSep(num_rounds=7), workloads.Workload(0.9)),
    (schemas.FixedSeparation(num_rounds=12, min_sep=5), workloads.Workload()),
  ],
)
def test_round_trip(tmp_path, name, schema, workload):
  path = tmp_path / 'a.json'
  if name == 'stamped twice':
    strategy = stamped.Stamped(every_family.example('stamped', 12), 7)
  else:
    strategy = every_family.example(name, schema.num_rounds)
  saved = files.save_strategy(path, strategy, schema=schema, objective='rms', workload=workload)
  loaded = files.load(path)
  assert loaded.schema == saved.schema == schema
  assert type(loaded.schema) is type(schema)
  assert loaded.workload == workload
  assert loaded.objective == 'rms'
  assert loaded.version == fl_dpftrl.__version__
  assert loaded.figures == saved.figures
  again = files.load_strategy(str(path))
  assert type(again) is type(strategy)
  matrices = (s.strategy_matrix(schema.num_rounds) for s in (again, strategy))
  np.testing.assert_array_equal(*matrices)


def arrays_of(path):
  (npz,) = set(re.findall(r'"npz": "(.*)"', path.read_text()))
  return path.with_name(npz)


def test_nothing_else_is_left_in_the_folder(tmp_path):
  files.save_strategy(tmp_path / 'a.json', banded_example(), schema=SCHEMA, objective='max')
  arrays, path = sorted(p.name for p in tmp_path.iterdir())
  assert (arrays, path) == (arrays_of(tmp_path / 'a.json').name, 'a.json')


@pytest.fixture
def written(tmp_path):
  """A file, and how to write it again with something changed."""
  path = tmp_path / 'a.json'
  files.save_strategy(path, blt.BLT([0.9], [0.5]), schema=SCHEMA, objective='max')

  def rewrite(**changes):
    document = json.loads(path.read_text())
    document.update(changes)
    path.write_text(json.dumps(document))
    return path

  return rewrite


def refusal(path):
  with pytest.raises(ValueError) as caught:
    files.load(path)
  message = str(caught.value)
  assert str(path) in message
  assert '\n' not in message
  return message


@pytest.mark.parametrize('name', ['sensitivity', 'rms_error', 'max_error', 'rms_loss', 'max_loss'])
def test_refuses_figures_that_are_not_its_own(written, name):
  value = json.loads(written().read_text())[name]
  assert name in refusal(written(**{name: value * (1 - 1e-8)}))
  for wrong in (None, 'much', True, [value]):
    assert f'{name} must be a number' in refusal(written(**{name: wrong}))
  written(**{name: value * (1 + 1e-11)})
  files.load(written())


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'format': 'other'}, 'format'),
    ({'version': 2}, 'version must be 1, got 2'),
    ({'version': '1'}, 'version'),
    ({'family': 'full'}, "family.*got 'full'"),
    ({'family': None}, 'family'),
    ({'family': 'identity'}, 'parameters of identity must be none'),
    ({'parameters': {}}, 'buffer_decay'),
    ({'parameters': {'buffer_decay': [0.9]}}, 'output_scale'),
    ({'parameters': {'buffer_decay': 0.9, 'output_scale': [0.5]}}, 'parameters: '),
    ({'parameters': {'buffer_decay': ['x'], 'output_scale': [0.5]}}, 'parameters: '),
    ({'parameters': {'buffer_decay': [0.8], 'output_scale': [0.5]}}, 'sensitivity'),
    ({'objective': 'mean'}, 'objective'),
    ({'objective': None}, 'objective'),
    ({'workload': 'sum'}, 'workload'),
    ({'workload': 'momentum'}, 'momentum'),
    ({'workload': 'momentum', 'momentum': 1.0}, 'momentum'),
    ({'schema': None}, 'schema'),
    ({'schema': {'participation': 'any'}}, 'participation'),
    ({'schema': {'participation': 'min_sep', 'num_rounds': 12}}, 'min_sep'),
    (
      {
        'schema': {
          'participation': 'min_sep',
          'num_rounds': 0,
          'min_sep': 1,
          'max_participations': None,
        }
      },
      'num_rounds',
    ),
    ({'sensitivity_kind': 'upper_bound'}, 'sensitivity_kind'),
    ({'made_by': 3}, 'made_by'),
  ],
)
def test_refuses_fields_that_are_wrong(written, changes, message):
  with pytest.raises(ValueError, match=message):
    files.load(written(**changes))
  refusal(written())


@pytest.mark.parametrize(
  'text', ['', '[]', '3', '{', '{"format": "fl_dpftrl.strategy"}', '\xff', '{"sensitivity": NaN}']
)
def test_refuses_other_texts(tmp_path, text):
  path = tmp_path / 'a.json'
  path.write_text(text, encoding='latin-1')
  refusal(path)


def test_refuses_numbers_that_json_does_not_know(written):
  path = written()
  path.write_text(path.read_text().replace('0.9', 'Infinity', 1))
  assert 'Infinity' in refusal(path)


@pytest.fixture
def with_arrays(tmp_path):
  files.save_strategy(tmp_path / 'a.json', banded_example(), schema=SCHEMA, objective='max')
  return tmp_path / 'a.json'


def test_refuses_other_arrays(with_arrays):
  coefficients = np.array(banded_example().coefficients)
  coefficients[5, 1] *= 1 + 1e-6
  np.savez(arrays_of(with_arrays), coefficients=coefficients)
  assert 'parameters give' in refusal(with_arrays)


def test_refuses_missing_and_broken_arrays(with_arrays):
  arrays = arrays_of(with_arrays)
  np.savez(arrays, other=np.ones(3))
  assert 'coefficients' in refusal(with_arrays)
  arrays.write_bytes(b'PK\x03\x04 and no more')
  assert 'coefficients' in refusal(with_arrays)
  arrays.unlink()
  assert 'coefficients' in refusal(with_arrays)


def test_never_unpickles(with_arrays):
  class Trap:
    def __reduce__(self):
      return (pathlib.Path.touch, (with_arrays.with_name('trapped'),))

  trap = np.empty((1, 1), dtype=object)
  trap[0, 0] = Trap()
  np.savez(arrays_of(with_arrays), coefficients=trap)
  assert 'coefficients' in refusal(with_arrays)
  assert not with_arrays.with_name('trapped').exists()


@pytest.mark.parametrize('name', ['../a.npz', '/etc/passwd', ''])
def test_refuses_arrays_from_elsewhere(with_arrays, name):
  document = json.loads(with_arrays.read_text())
  document['parameters']['coefficients'] = {'npz': name}
  with_arrays.write_text(json.dumps(document))
  assert 'coefficients' in refusal(with_arrays)


def test_save_refuses_other_endings_and_objectives(tmp_path):
  with pytest.raises(ValueError, match='.json'):
    files.save_strategy(tmp_path / 'a.txt', identity.Identity(), schema=SCHEMA, objective='max')
  with pytest.raises(ValueError, match='objective'):
    files.save_strategy(tmp_path / 'a.json', identity.Identity(), schema=SCHEMA, objective='mean')
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('name', files.parameter_free())
def test_parameter_free_families_need_no_file(name):
  assert files.load_strategy(name).family == name


def test_the_shelf():
  assert set(files.parameter_free()) == {'identity', 'tree_full', 'tree_online'}
  assert {'blt-b100', 'blt-b100-published', 'blt-b400', 'blt-b1000'} <= set(files.names())


@pytest.mark.parametrize('name', files.names())
def test_every_named_strategy_loads(name):
  assert files.load(name).sensitivity.kind == 'exact'


def test_ours_is_better_than_the_published_one():
  ours = files.load('blt-b100')
  published = files.load('blt-b100-published')
  assert ours.schema == published.schema
  assert ours.figures['max_loss'] <= 17.404
  assert published.figures['max_loss'] == pytest.approx(18.847, abs=5e-4)


def test_an_unknown_name_is_told_the_known_ones():
  with pytest.raises(ValueError, match='identity.*blt-b400'):
    files.load_strategy('blt-b300')


def test_a_name_goes_before_a_file_of_that_name(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  pathlib.Path('identity').write_text('{}')
  pathlib.Path('blt-b400').write_text('{}')
  assert files.load_strategy('identity').family == 'identity'
  assert files.load_strategy('blt-b400').family == 'blt'


def test_top_level_names():
  assert fl_dpftrl.load_strategy('identity') == identity.Identity()
  assert fl_dpftrl.MinSep is schemas.MinSep
  assert fl_dpftrl.strategies.files is files
  assert 'CorrelatedNoiseFactory' in dir(fl_dpftrl)
  with pytest.raises(AttributeError, match='no attribute'):
    fl_dpftrl.nothing_of_the_kind  # noqa: B018


def test_a_parameter_with_a_default_may_be_missing(tmp_path):
  """Files from before a family got its parameter still load."""
  path = tmp_path / 'tree.json'
  schema = schemas.MinSep(num_rounds=5)
  files.save_strategy(path, tree_online.TreeOnline(), schema=schema, objective='max')
  assert json.loads(path.read_text())['parameters'] == {}
  assert files.load(path).strategy == tree_online.TreeOnline()


@pytest.mark.parametrize('content', [b'', b'hello', b'{"format": "fl_', b'\xff'])
def test_a_file_that_is_no_json_says_so(tmp_path, content):
  path = tmp_path / 'a.json'
  path.write_bytes(content)
  with pytest.raises(ValueError, match='a.json.*not JSON, or cut short'):
    files.load(path)


def test_an_npz_that_is_cut_short_says_so(tmp_path):
  for suffix in ('.json', '.npz'):
    source = files.matrices_folder() / f'banded-b16{suffix}'
    (tmp_path / f'a{suffix}').write_bytes(source.read_bytes())
  path = tmp_path / 'a.json'
  path.write_text(path.read_text().replace('banded-b16.npz', 'a.npz'))
  arrays = tmp_path / 'a.npz'
  arrays.write_bytes(arrays.read_bytes()[:300])
  with pytest.raises(ValueError, match="'a.npz': it is cut short or no .npz"):
    files.load(path)


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'family': ['blt']}, "family must be text, got \\['blt'\\]"),
    ({'schema': {'participation': ['min_sep']}}, 'participation must be text'),
    (
      {
        'schema': {
          'participation': 'min_sep',
          'num_rounds': 10**18,
          'min_sep': 1,
          'max_participations': None,
        }
      },
      'num_rounds must be at most',
    ),
    (
      {'parameters': {'buffer_decay': [0.5] * 5000, 'output_scale': [0.0] * 5000}},
      'at most 64 entries, got 5000',
    ),
    ({'parameters': [0.9]}, 'parameters must be an object'),
    ({'made_by': 'x' * 10**6, 'family': 'x' * 10**6}, 'family must be one of'),
    ({'sensitivity': 10**19}, 'sensitivity is 1e'),
  ],
)
def test_refuses_kinds_and_sizes(written, changes, message):
  with pytest.raises(ValueError, match=message) as caught:
    files.load(written(**changes))
  assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
  'content',
  [
    b'[' * 100_000,
    b'{"parameters":' * 100_000,
    b'{"version": 1, "version": 1}',
    b'{"version": 1e999}',
    b'{"version": ' + b'9' * 5000 + b'}',
    b' ' * (2**24 + 1),
  ],
  ids=lambda value: repr(value)[:30],
)
def test_refuses_documents_beyond_limits(tmp_path, content):
  path = tmp_path / 'a.json'
  path.write_bytes(content)
  refusal(path)


def test_strategies_within_each_other_without_end_are_refused(written):
  parameters = {'buffer_decay': [0.9], 'output_scale': [0.5]}
  described = {'family': 'blt', 'parameters': parameters}
  for _ in range(200):
    described = {'family': 'stamped', 'parameters': {'strategy': described, 'every': 5}}
  assert 'within each other' in refusal(written(**described))


def others(seed):
  coefficients = np.array(banded_example().coefficients)
  coefficients[:, 0] += seed
  return banded.Banded(coefficients)


def test_what_a_file_named_before_is_removed(tmp_path):
  path = tmp_path / 'a.json'
  for seed in range(3):
    files.save_strategy(path, others(seed), schema=SCHEMA, objective='max')
    assert {p.name for p in tmp_path.iterdir()} == {'a.json', arrays_of(path).name}
  copy = tmp_path / 'b.json'
  copy.write_bytes(path.read_bytes())
  kept = arrays_of(path)
  files.save_strategy(copy, others(7), schema=SCHEMA, objective='max')
  assert kept.exists()
  files.load(path)
  files.save_strategy(path, identity.Identity(), schema=SCHEMA, objective='max')
  assert not kept.exists()


def test_a_file_of_a_former_release_is_replaced_whole(tmp_path):
  path = tmp_path / 'a.json'
  files.save_strategy(path, others(0), schema=SCHEMA, objective='max')
  named = arrays_of(path)
  path.write_text(path.read_text().replace(named.name, 'a.npz'))
  named.rename(tmp_path / 'a.npz')
  files.load(path)
  files.save_strategy(path, others(1), schema=SCHEMA, objective='max')
  files.load(path)
  assert not (tmp_path / 'a.npz').exists()


_SAVES_OFTEN = """
import dataclasses, sys
from fl_dpftrl.strategies import files as catalogue
path, first = sys.argv[1], int(sys.argv[2])
file = catalogue.load(path)
for seed in range(first, first + 12):
  coefficients = file.strategy.coefficients.copy()
  coefficients[:, 0] += seed % 5
  strategy = dataclasses.replace(file.strategy, coefficients=coefficients)
  catalogue.save_strategy(path, strategy, schema=file.schema, objective='max')
"""


@pytest.mark.slow
def test_two_that_write_one_file_leave_one_of_their_strategies(tmp_path):
  path = tmp_path / 'a.json'
  files.save_strategy(path, others(0), schema=SCHEMA, objective='max')
  writers = [
    subprocess.Popen(
      [sys.executable, '-c', _SAVES_OFTEN, path, str(first)],
      env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
    )
    for first in (0, 3)
  ]
  while any(writer.poll() is None for writer in writers):
    files.load(path)
  assert [writer.wait() for writer in writers] == [0, 0]
  files.load(path)
  assert sorted(p.suffix for p in tmp_path.iterdir()) == ['.json', '.npz']
