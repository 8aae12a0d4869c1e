"""Families that users define outside of the package."""

import dataclasses
import pathlib
import re
import runpy

import numpy as np
import pytest

import fl_dpftrl
import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import base, family_registry, sensitivities, workload_error
from fl_dpftrl.mechanisms.families import dense, stamped
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.mechanisms.search import search_problem
from tests import oracle

EXAMPLES = pathlib.Path(__file__).parents[3] / 'examples'
SCHEMA = dpftrl.MinSep(num_rounds=24, min_sep=5)


@pytest.fixture(autouse=True)
def registry_as_before():
  before = dict(family_registry._families.data)
  yield
  family_registry._families.clear()
  family_registry._families.update(before)


@pytest.fixture
def geometric():
  return runpy.run_path(str(EXAMPLES / 'own_family.py'))['Geometric']


@pytest.fixture
def chained():
  return runpy.run_path(str(EXAMPLES / 'own_noise.py'))['Chained']


def plain(name='plain'):
  """A class that inherits from nothing and has C and N alone."""

  @dataclasses.dataclass(frozen=True)
  class Plain:
    weight: float
    family = name

    def strategy_matrix(self, num_rounds):
      return np.eye(num_rounds) + self.weight * np.eye(num_rounds, k=-1)

    def noising_matrix(self, num_rounds):
      return np.linalg.inv(self.strategy_matrix(num_rounds))

  return Plain


def ending():
  """A class with a field for its last round, whose methods check nothing."""

  @family_registry.register
  @dataclasses.dataclass(frozen=True)
  class Ending(plain('ending'), base.Strategy):
    max_rounds: int

    def sensitivity(self, schema):
      return sensitivities.Sensitivity(9.0, sensitivities.UPPER_BOUND)

    def error(self, num_rounds, workload):
      return workload_error.Error(9.0, 9.0)

  return Ending


def test_a_last_round_has_no_default_and_holds_everywhere():
  with pytest.raises(TypeError, match='max_rounds'):
    ending()(weight=0.5)
  strategy = ending()(weight=0.5, max_rounds=20)
  assert sensitivities.sensitivity(strategy, dpftrl.MinSep(num_rounds=20, min_sep=5)).value == 9
  for refused in (
    lambda: sensitivities.sensitivity(strategy, SCHEMA),
    lambda: strategy.gram_matrix(24),
    lambda: workload_error.error(strategy, 24),
    lambda: workload_error.per_query_error(strategy, 24),
    lambda: files.describe(strategy, SCHEMA),
    lambda: fl_dpftrl.account(strategy, SCHEMA, noise_multiplier=1.0, delta=1e-6),
  ):
    with pytest.raises(ValueError, match='num_rounds=24 is beyond the 20 rounds'):
      refused()


@pytest.mark.parametrize(
  'name, output', [('own_family', '(.*ε = .*\n){3}'), ('own_noise', '1 buffer(.|\n)*')]
)
def test_the_examples_are_short_and_run(name, output, capsys, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  path = EXAMPLES / f'{name}.py'
  assert len(path.read_text().splitlines()) < 40
  runpy.run_path(str(path), run_name='__main__')
  assert re.fullmatch(output, capsys.readouterr().out)


def test_the_example_is_searched_by_its_name(geometric):
  losses = [search_problem.Problem(SCHEMA).loss(geometric(d)) for d in (0.0, 0.5, 0.75, 0.875)]
  best = search_problem.Problem(SCHEMA).loss(fl_dpftrl.optimize('geometric', SCHEMA))
  assert best <= min(losses)


@pytest.mark.parametrize('own', ['inherits', 'with noise', 'plain'])
def test_all_figures_are_those_of_its_matrix(own, geometric, chained):
  if own == 'inherits':
    strategy = geometric(0.7)
  elif own == 'with noise':
    strategy = chained(0.7)
  else:
    strategy = fl_dpftrl.register(plain())(0.4)
  assert isinstance(strategy, base.Strategy)
  matrix = dense.Dense(strategy.strategy_matrix(24))

  def figures(strategy):
    values, kind = oracle.pattern_sensitivity(strategy, 24, [(0, 5, 17)])
    blocks = sensitivities.sensitivity(stamped.Stamped(strategy, 7), SCHEMA)
    own = sensitivities.sensitivity(strategy, SCHEMA)
    return [own.value, blocks.value, *values, *workload_error.error(strategy, 24)], kind

  assert figures(strategy) == (pytest.approx(figures(matrix)[0]), figures(matrix)[1])


def test_a_lower_bound_of_its_own_never_becomes_a_guarantee(geometric):
  class Understated(geometric):
    family = 'understated'

    def sensitivity(self, schema):
      return sensitivities.Sensitivity(0.1, sensitivities.LOWER_BOUND)

  for strategy in (Understated(0.7), stamped.Stamped(Understated(0.7), 24)):
    with pytest.raises(ValueError, match='lower'):
      fl_dpftrl.account(strategy, SCHEMA, noise_multiplier=1.0, delta=1e-6)
  repeated = stamped.Stamped(Understated(0.7), 12)
  truth = sensitivities.sensitivity(stamped.Stamped(geometric(0.7), 12), SCHEMA)
  found = sensitivities.sensitivity(repeated, SCHEMA)
  assert found.value >= truth.value * (1 - 1e-12)


@pytest.mark.parametrize(
  'value, kind', [(np.nan, 'exact'), (np.inf, 'exact'), (-1.0, 'exact'), (1.0, 'exactly')]
)
def test_an_answer_that_is_no_sensitivity_is_refused(geometric, value, kind):
  class Wrong(geometric):
    def sensitivity(self, schema):
      return sensitivities.Sensitivity(value, kind)

  with pytest.raises(ValueError, match='sensitivity of Wrong'):
    fl_dpftrl.account(Wrong(0.5), SCHEMA, noise_multiplier=1.0, delta=1e-6)


def test_refuses_what_is_no_family():
  @dataclasses.dataclass(frozen=True)
  class WithoutN(base.Strategy):
    family = 'without_n'

    def strategy_matrix(self, num_rounds):
      return np.eye(num_rounds)

  class NoDataclass(base.Strategy):
    family = 'no_dataclass'
    strategy_matrix = noising_matrix = lambda self, num_rounds: np.eye(num_rounds)

  for cls, words in (
    (WithoutN, 'noising_matrix'),
    (NoDataclass, 'frozen dataclass'),
    (plain('identity'), 'identity'),
    (plain(''), 'family of Plain'),
    (plain('../a'), 'family of Plain'),
    (int, 'family of int'),
  ):
    with pytest.raises(ValueError, match=words):
      fl_dpftrl.register(cls)
  assert 'without_n' not in family_registry.FAMILIES
