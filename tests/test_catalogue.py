"""Strategy files: what goes in comes out, and what was changed is refused."""

import json
import pathlib
import re

import numpy as np
import pytest

import fl_dpftrl
import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import workloads
from fl_dpftrl.mechanisms.families import banded, blt, identity, stamped
from fl_dpftrl.mechanisms.files import files
from tests import every_family, made

SCHEMA = dpftrl.MinSep(num_rounds=12, min_sep=3, max_participations=2)


def banded_example(more=0.0):
  coefficients = np.random.default_rng(0).normal(size=(12, 3))
  coefficients[:, 0] = 1.0 + np.abs(coefficients[:, 0]) + more
  coefficients[:2, 2] = coefficients[0, 1] = 0.0
  return banded.Banded(coefficients)


@pytest.mark.parametrize('name', [*every_family.NAMES, 'stamped twice'])
@made.cases(
  'schema, workload',
  (SCHEMA, workloads.Workload()),
  (dpftrl.MinSep(num_rounds=7), workloads.Workload(0.9)),
  (dpftrl.FixedSeparation(num_rounds=12, min_sep=5), workloads.Workload()),
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
  assert loaded.schema.separation == schema.separation
  assert (loaded.workload, loaded.objective) == (workload, 'rms')
  assert loaded.version == fl_dpftrl.__version__
  assert loaded.figures == saved.figures
  again = files.load_strategy(str(path))
  assert type(again) is type(strategy)
  matrices = (s.strategy_matrix(schema.num_rounds) for s in (again, strategy))
  np.testing.assert_array_equal(*matrices)


@pytest.fixture
def written(tmp_path):
  """Writes a file of a BLT again with something changed."""
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
  assert '\n' not in message and len(message) < 600
  return message


@pytest.mark.parametrize('name', ['sensitivity', 'rms_error', 'max_error', 'rms_loss', 'max_loss'])
def test_refuses_figures_that_are_not_its_own(written, name):
  value = json.loads(written().read_text())[name]
  assert name in refusal(written(**{name: value * (1 - 1e-8)}))
  for wrong in (None, 'much', True, [value]):
    assert f'{name} must be a number' in refusal(written(**{name: wrong}))
  written(**{name: value * (1 + 1e-11)})
  files.load(written())


SCALED = {'family': 'identity', 'parameters': {}, 'scale': 2}


def described(**changes):
  schema = {'participation': 'min_sep', 'num_rounds': 9, 'min_sep': 1, 'max_participations': None}
  return {'schema': {**schema, **changes}}


def parameters(decay, scale):
  return {'parameters': {'buffer_decay': decay, 'output_scale': scale}}


@made.cases(
  'changes, message',
  ({'format': 'other'}, 'format'),
  ({'version': 2}, 'version must be 1, got 2'),
  ({'family': 'full'}, "family.*got 'full'"),
  ({'family': ['blt']}, r"family must be text, got \['blt'\]"),
  ({'family': 'identity'}, 'parameters of identity must be none'),
  ({'made_by': 'x' * 10**6, 'family': 'x' * 10**6}, 'family must be one of'),
  ({'parameters': {'buffer_decay': [0.9]}}, 'output_scale'),
  ({'parameters': [0.9]}, 'parameters must be an object'),
  (parameters(0.9, [0.5]), 'parameters: '),
  (parameters([0.8], [0.5]), 'sensitivity'),
  (parameters([0.5] * 5000, [0.0] * 5000), 'at most 64 entries, got 5000'),
  ({'objective': 'mean'}, 'objective'),
  ({'workload': 'sum'}, 'workload'),
  ({'workload': 'momentum'}, 'momentum'),
  ({'schema': {'participation': 'any'}}, 'participation'),
  ({'schema': {'participation': 'min_sep', 'num_rounds': 12}}, 'min_sep'),
  (described(num_rounds=0), 'num_rounds'),
  (described(num_rounds=10**18), 'num_rounds must be at most'),
  ({'sensitivity_kind': 'upper_bound'}, 'sensitivity_kind'),
  ({'sensitivity': 10**19}, 'sensitivity is 1e'),
  ({'made_by': 3}, 'made_by'),
  ({'clip_norm': 2.0}, "it has the key 'clip_norm', which is not known"),
  (parameters({'npz': 'a.npz', 'scale': 2}, [0.5]), "has the key 'scale'"),
  ({'family': 'stamped', 'parameters': {'strategy': SCALED, 'block_rounds': 3}}, "key 'scale'"),
)
def test_refuses_fields_that_are_wrong(written, changes, message):
  assert re.search(message, refusal(written(**changes)))


@made.cases(
  'text, words',
  ('', 'not JSON, or cut short'),
  ('{"format": "fl_', 'not JSON, or cut short'),
  ('\xff', 'not JSON, or cut short'),
  ('[]', 'it must hold a JSON object'),
  ('{"format": "fl_dpftrl.strategy"}', 'version'),
  ('{"sensitivity": NaN}', 'NaN'),
)
def test_refuses_other_texts(tmp_path, text, words):
  path = tmp_path / 'a.json'
  path.write_text(text, encoding='latin-1')
  assert words in refusal(path)


def test_strategies_within_each_other_without_end_are_refused(written):
  inner = {'family': 'blt', **parameters([0.9], [0.5])}
  for _ in range(200):
    inner = {'family': 'stamped', 'parameters': {'strategy': inner, 'every': 5}}
  assert 'within each other' in refusal(written(**inner))


@pytest.fixture
def with_arrays(tmp_path):
  files.save_strategy(tmp_path / 'a.json', banded_example(), schema=SCHEMA, objective='max')
  return tmp_path / 'a.json'


def arrays_of(path):
  (npz,) = set(re.findall(r'"npz": "(.*)"', path.read_text()))
  return path.with_name(npz)


def test_refuses_changed_missing_and_broken_arrays(with_arrays):
  arrays, coefficients = arrays_of(with_arrays), np.array(banded_example().coefficients)
  whole = arrays.read_bytes()
  coefficients[5, 1] *= 1 + 1e-6
  np.savez(arrays, coefficients=coefficients)
  assert 'parameters give' in refusal(with_arrays)
  np.savez(arrays, other=np.ones(3))
  assert 'coefficients' in refusal(with_arrays)
  for content in (b'PK\x03\x04 and no more', whole[:300]):
    arrays.write_bytes(content)
    assert f"coefficients cannot be read from '{arrays.name}'" in refusal(with_arrays)
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


@made.cases(
  'name, words',
  ('../a.npz', 'must name an .npz beside the file'),
  ('/etc/passwd', 'must name an .npz beside the file'),
  ('', 'cannot be read'),
)
def test_refuses_arrays_from_elsewhere(with_arrays, name, words):
  document = json.loads(with_arrays.read_text())
  document['parameters']['coefficients'] = {'npz': name}
  with_arrays.write_text(json.dumps(document))
  assert words in refusal(with_arrays)


@pytest.mark.parametrize('name, objective, word', [('a.txt', 'max', '.json'), ('a.json', 'x', 'x')])
def test_save_refuses_other_endings_and_objectives(tmp_path, name, objective, word):
  with pytest.raises(ValueError, match=word):
    files.save_strategy(tmp_path / name, identity.Identity(), schema=SCHEMA, objective=objective)
  assert not list(tmp_path.iterdir())


def test_losses_of_the_published_blts():
  """McMahan, Xu, Zhang 2024, accuracy table, its two headings put right; ours is better."""
  ours, published, other = map(files.load, ('blt-b100', 'blt-b100-published', 'blt-b400'))
  assert ours.schema == published.schema
  assert ours.max_loss <= 17.404
  assert published.max_loss == pytest.approx(18.847, abs=5e-4)
  assert (other.rms_loss, other.max_loss) == (
    pytest.approx(9.7402, abs=5e-5),
    pytest.approx(10.6722, abs=5e-5),
  )


def test_what_a_file_named_before_is_removed(tmp_path):
  path, copy = tmp_path / 'a.json', tmp_path / 'b.json'
  for seed in range(3):
    files.save_strategy(path, banded_example(seed), schema=SCHEMA)
    assert {p.name for p in tmp_path.iterdir()} == {'a.json', arrays_of(path).name}
  copy.write_bytes(path.read_bytes())
  kept = arrays_of(path)
  files.save_strategy(copy, banded_example(7), schema=SCHEMA)
  assert kept.exists()
  files.load(path)
  files.save_strategy(path, identity.Identity(), schema=SCHEMA)
  assert not kept.exists()
