"""Mechanisms of a user's own that are none: refused wherever a strategy enters."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.linalg

import fl_dpftrl as dpftrl
from fl_dpftrl.commands import main
from fl_dpftrl.mechanisms import family_registry, sensitivities
from fl_dpftrl.mechanisms.families import stamped
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.participation.accountant import account, calibrate
from tests import made

ROUNDS = 60
SCHEMA = dpftrl.MinSep(num_rounds=ROUNDS, min_sep=20)
NOISE = {'noise_multiplier': 2.0, 'delta': 1e-6}


@pytest.fixture(autouse=True)
def registry_as_before(monkeypatch):
  monkeypatch.setattr(family_registry._families, 'data', dict(family_registry._families.data))


def right(**default):
  """C[t, j] = decay^(t − j), a family with a parameter; the same name each time."""

  @dataclasses.dataclass(frozen=True)
  class Own(dpftrl.Strategy):
    decay: float = dataclasses.field(**default)
    max_rounds: int = ROUNDS
    family = 'own'

    def strategy_matrix(self, num_rounds):
      lags = np.subtract.outer(np.arange(num_rounds), np.arange(num_rounds))
      return np.tril(self.decay ** np.maximum(lags, 0))

    def noising_matrix(self, num_rounds):
      return np.eye(num_rounds) - self.decay * np.eye(num_rounds, k=-1)

  return Own


def changed(methods, **default):
  """The family with other methods, which change what those of the right one return."""
  own = right(**default)

  def method(name, change):
    original = getattr(own, name)
    return lambda self, *arguments: change(original(self, *arguments))

  for name, change in methods.items():
    setattr(own, name, method(name, change))
  return own


def inverse_root(noise):
  """C = I with the noise of the inverse square root of prefix sums."""
  ratios = (np.arange(1, len(noise)) - 1.5) / np.arange(1, len(noise))
  return np.tril(scipy.linalg.toeplitz(np.cumprod([1.0, *ratios])))


def right_at_first(noise):
  return np.where(np.arange(len(noise))[:, None] < 50, noise, 0.5 * noise)


def bounded(value):
  return lambda right: sensitivities.Sensitivity(value * right.value, right.kind)


WRONG = {
  'inverse root': dict(strategy_matrix=lambda c: np.eye(len(c)), noising_matrix=inverse_root),
  'scaled': dict(noising_matrix=lambda n: 0.1 * n),
  'transposed': dict(noising_matrix=np.transpose),
  'right at first': dict(noising_matrix=right_at_first),
  'shifted columns': dict(strategy_matrix=lambda c: np.roll(c, 1, axis=1)),
  'other shape': dict(strategy_matrix=lambda c: np.pad(c, (0, 1))),
  'infinite': dict(strategy_matrix=lambda c: c * math.inf),
  'no sensitivity': dict(sensitivity=bounded(math.nan)),
  'infinite sensitivity': dict(sensitivity=bounded(math.inf)),
  'small sensitivity': dict(sensitivity=bounded(0.5)),
  'small entries': dict(gram_matrix=lambda x: 0.25 * x),
  'small mean error': dict(error=lambda error: error._replace(rms=0.1)),
  'losses without an end': dict(endless_gram=lambda gram: gram),
  'small error': dict(per_query_error=lambda error: 0.5 * error),
}


def enter_register(family, tmp_path):
  family_registry.register(changed(family.changes, default=0.5))


def enter_load(family, tmp_path):
  path = write(tmp_path)
  family_registry.register(family)
  files.load_strategy(path)


def enter_compare(family, tmp_path):
  path = write(tmp_path)
  family_registry.register(family)
  dpftrl.compare([str(path)], SCHEMA)


def enter_command(family, tmp_path):
  path = write(tmp_path)
  family_registry.register(family)
  numbers = '--num_rounds=60 --min_sep=20 --noise_multiplier=2 --delta=1e-6'
  try:
    main.main(['account', f'--strategy={path}', *numbers.split()])
  except SystemExit as e:
    raise ValueError(f'status {e.code}') from None


def enter_replay(family, tmp_path):
  path = tmp_path / 'log.parquet'
  made.log(path, [['a'], ['b']])
  dpftrl.open_run(path, family(0.5), noise_multiplier=2.0)


def write(tmp_path):
  """A strategy file that the right family wrote."""
  family_registry.register(right())
  path = tmp_path / 'own.json'
  dpftrl.save_strategy(path, family_registry.FAMILIES['own'](0.5), schema=SCHEMA)
  return path


ENTRIES = {
  'register': enter_register,
  'load': enter_load,
  'compare': enter_compare,
  'command': enter_command,
  'replay': enter_replay,
  'account': lambda family, tmp_path: account(family(0.5), SCHEMA, **NOISE),
  'stamped': lambda family, tmp_path: account(
    stamped.Stamped(family(0.5), 60), dataclasses.replace(SCHEMA, num_rounds=120), **NOISE
  ),
  'calibrate': lambda family, tmp_path: calibrate(family(0.5), SCHEMA, epsilon=2.0, delta=1e-6),
  'compare strategies': lambda family, tmp_path: dpftrl.compare([family(0.5)], SCHEMA),
  'save': lambda family, tmp_path: dpftrl.save_strategy(
    tmp_path / 'saved.json', family(0.5), schema=SCHEMA
  ),
  'describe': lambda family, tmp_path: dpftrl.describe(family(0.5), SCHEMA),
  'claim': lambda family, tmp_path: dpftrl.Claim(strategy=family(0.5), noise_multiplier=2.0),
  'aggregator': lambda family, tmp_path: made.aggregator(tmp_path, family(0.5)),
  'rows': lambda family, tmp_path: dpftrl.NoiseRows(family(0.5), 4, folder=tmp_path),
  'audit': lambda family, tmp_path: dpftrl.audit(
    family(0.5), schema=SCHEMA, clip_norm=1.0, **NOISE
  ),
}


@pytest.mark.parametrize('entry', ENTRIES)
def test_a_mechanism_whose_noise_or_figures_are_others_is_refused_where_it_enters(entry, tmp_path):
  for name, methods in WRONG.items():
    folder = tmp_path / name
    folder.mkdir()
    family = changed(methods)
    family.changes = methods
    with pytest.raises(ValueError, match='[Oo]wn|status 2') as e:
      ENTRIES[entry](family, folder)
      pytest.fail(name)
    assert len(str(e.value)) < 400, name


@pytest.mark.parametrize('entry', sorted(ENTRIES.keys() - {'audit'}))
def test_a_right_one_enters(entry, tmp_path):
  family = right()
  family.changes = {}
  ENTRIES[entry](family, tmp_path)


def test_a_strategy_is_checked_once_for_as_many_rounds(monkeypatch):
  family, calls = right(), []
  monkeypatch.setattr(family, 'noising_matrix', lambda self, n: calls.append(n) or np.eye(n))
  monkeypatch.setattr(family, 'strategy_matrix', lambda self, n: np.eye(n))
  strategy = family(0.5)
  account(strategy, SCHEMA, **NOISE)
  first = len(calls)
  account(strategy, SCHEMA, **NOISE)
  assert max(calls) == ROUNDS and len(calls) == first
  account(dpftrl.load_strategy('identity'), SCHEMA, **NOISE)
  assert len(calls) == first


@pytest.mark.parametrize('name', ['endless_gram', 'sensitivity'])
def test_an_attribute_of_one_object_hides_no_method(name):
  """It is right up to seven rounds, beyond which methods of the class by default need no check."""
  strategy = right(default=0.5)()
  method = getattr(strategy, name)

  def smaller(*arguments):
    result = method(*arguments)
    return bounded(0.5)(result) if arguments[0].num_rounds > 7 else result

  object.__setattr__(strategy, name, smaller)
  with pytest.raises(ValueError, match=f'{name} of own'):
    account(strategy, SCHEMA, **NOISE)
