"""Certificates of every family are proved, up to the last digits, and S² is never too small."""

import ast
import io
import json
import pathlib
import sys
import tokenize

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import family_registry, sensitivities
from fl_dpftrl.mechanisms.families import dense, stamped
from fl_dpftrl.mechanisms.files import documents, files
from fl_dpftrl.participation.accounting import gaussian
from fl_dpftrl.participation.rules import sampling
from fl_dpftrl.prove.replaying import certificates
from tests import every_family, made
from tests.checker import certified

prove, M = certified.prove, certified.M


def less(document, factor):
  """The certificate with every ε multiplied."""
  for figure in document['figures']:
    for guarantee in figure['guarantees']:
      guarantee['epsilon'] = (float.fromhex(guarantee['epsilon']) * factor).hex()
  return document


@pytest.mark.parametrize('name', certified.FAMILIES)
def test_the_declared_figure_is_proved_and_no_smaller_one(name):
  document = certified.family(name)
  assert certified.figure(document) and all(certified.answers(document))
  assert not any(certified.answers(less(document, 1 - 1e-10)))


TERMS = {
  'replace one': dict(adjacency='replace_one'),
  'groups': dict(group_size=3),
  'several δ': dict(delta=[1e-6, 1e-9, 1e-30]),
}


@pytest.mark.parametrize('name', TERMS)
def test_terms_of_a_statement(name):
  document = certified.certificate(certified.claim(*certified.FAMILIES['blt']), **TERMS[name])
  assert certified.answers(document) == [True, True]
  assert certified.answers(less(document, 1 - 1e-10)) == [False, False]


@pytest.mark.slow
@pytest.mark.parametrize('disjoint', [False, True])
def test_several_runs(disjoint):
  claims = [
    certified.claim(*certified.FAMILIES[name], noise, 500)
    for name, noise in (('blt', 9.0), ('tree full', 30.0), ('identity', 8.0))
  ]
  options = dict(disjoint=True, local_ids=True) if disjoint else {}
  document = certified.certificate(*claims, **options)
  assert certified.answers(document)[-1] and document['disjoint'] == disjoint
  assert not any(certified.answers(less(document, 1 - 1e-10)))


@pytest.mark.parametrize('is_alike', [False, True])
def test_disjoint_runs_of_different_sizes_are_not_proved_for_that_reason(is_alike):
  short, long = dpftrl.MinSep(10, 5, 2), dpftrl.MinSep(900, 300, 3)
  claims = [
    certified.claim('identity', short, 9.0, 10**9),
    certified.claim('identity', long, 8.0, 10**9 if is_alike else 500),
  ]
  found = certificates.certified(certified.statement(*claims, disjoint=True, local_ids=True))
  reasons = {line.partition(': ')[2] for line in found.not_proved if line.startswith('declared')}
  words = 'disjoint runs differ in coordinates, of which the checker takes the most for each'
  assert reasons == (set() if is_alike else {words})


@pytest.mark.slow
@pytest.mark.parametrize('name', ['identity', 'blt', 'tree online', 'lambda cgd', 'loss budget'])
def test_what_whole_numbers_add_is_part_of_it(name):
  document = certified.certificate(certified.claim(*certified.FAMILIES[name], 4.0, 10**8))
  assert all(certified.answers(document))
  assert not certified.answers(less(document, 1 - 1e-10))[-1]
  document = certified.certificate(certified.claim(*certified.FAMILIES[name], 4.0, 10**8))
  certified.figure(document)['participations'][0]['rounding'] = (1.0).hex()
  assert not certified.answers(document)[-1]


@pytest.mark.slow
def test_people(tmp_path):
  units = tmp_path / 'units.csv'
  units.write_text('device_id,unit_id,from_round\na,ann,0\nb,ben,0\n')
  claim = certified.claim(made.BLT, dpftrl.PerUnit(M(60, 6, 5), max_rows=2))
  with dpftrl.Run(tmp_path / 'run', claim, units=units) as run, run.round(['a', 'b']) as round_:
    round_.released()
  opened = dpftrl.open_run(tmp_path / 'run', units=units)
  document = certificates.certified(dpftrl.replay(opened, delta=1e-6)).document
  figure = certified.figure(document)
  assert all(certified.answers(document)) and figure['participations'][0]['max_rows'] == 2
  dpftrl.write_evidence(tmp_path / 'evidence', opened, delta=1e-6)
  assert prove.main([str(tmp_path / 'evidence')]) == 0
  figure['participations'][0]['max_rows'] = 3
  assert not certified.answers(document)[-1]


@pytest.mark.slow
def test_a_population(tmp_path):
  fleet = dpftrl.Population(tmp_path / 'fleet', epsilon=4.0, delta=1e-6)
  for name in ('one', 'two'):
    with dpftrl.Run(tmp_path / name, certified.claim('identity', M(9), 6.0), population=fleet) as r:
      with r.round(['a', 'b']) as round_:
        round_.released()
  dpftrl.write_evidence(tmp_path / 'evidence', tmp_path / 'fleet', delta=1e-6)
  result = dpftrl.verify(tmp_path / 'evidence')
  assert result.passed, result.checks
  document = json.loads((tmp_path / 'evidence' / certificates.NAME).read_text())
  assert [f['name'] for f in document['figures']] == ['declared']
  assert certified.answers(document) == [True]
  assert certified.answers(less(document, 1 - 1e-10)) == [False]
  assert prove.main([str(tmp_path / 'evidence')]) == 0


@pytest.mark.slow
@pytest.mark.parametrize('name', files.names())
def test_every_included_strategy(name):
  schema = files.load(name).schema
  participation = M(schema.num_rounds, schema.min_sep, schema.max_participations)
  document = certified.certificate(certified.claim(name, participation, 9.0))
  assert all(certified.answers(document)) and certified.figure(document)
  assert not certified.answers(less(document, 1 - 1e-8))[-1]


NOT_PROVED = {
  'dense': (
    certified.claim(dense.Dense(np.eye(20) + 0.1 * np.tri(20, k=-1)), M(20, 4)),
    'no proof is known for dense',
  ),
  'bands that overlap': (certified.claim(certified.BANDED, M(24, 2)), 'columns of banded'),
  'a column that rises': (
    certified.claim(dpftrl.BandedToeplitz([1.0, 0.2, 0.6]), M(24, 2)),
    'by a bound that the checker does not know',
  ),
  'sampled batches': (
    certified.claim(
      'identity', sampling.CyclicPoisson(num_rounds=50, num_examples=1000, batch_size=10)
    ),
    'draws',
  ),
  'no noise': (certified.claim('identity', M(24), 0.0), 'void'),
  'a long run': (certified.claim(made.BLT, M(10**8, 1, 5)), 'steps'),
}


@pytest.mark.parametrize('name', NOT_PROVED)
def test_a_statement_says_what_is_not_proved_and_why(name):
  claim, why = NOT_PROVED[name]
  result = certificates.certified(certified.statement(claim))
  reasons = {line.split(':')[0]: line for line in result.not_proved}
  planned = next(iter(reasons.keys() - {'worst_case', 'observed'}))
  assert why in reasons[planned], reasons
  assert all(
    figure['name'] != planned for figure in (result.document or {'figures': []})['figures']
  )


def squared(strategy, schema):
  prove.steps[0] = 0
  claim = certified.claim(strategy, schema)
  document = certificates.strategy_json(claim.strategy)
  return prove.squared_sensitivity(json.loads(json.dumps(document)), schema.numbers) / prove.ONE**2


def brute_force(strategy, schema):
  """The largest Σ |X[s, t]| over all allowed patterns."""
  gram = np.abs(strategy.gram_matrix(schema.num_rounds))

  def largest(pattern, start):
    found = gram[np.ix_(pattern, pattern)].sum() if pattern else 0.0
    if len(pattern) == schema.participations:
      return found
    later = range(start, schema.num_rounds)
    return max([found, *(largest([*pattern, t], t + schema.min_sep) for t in later)])

  return largest([], 0)


def drawn_schema(rng, n):
  return M(n, int(rng.integers(1, n + 1)), int(rng.integers(1, 6)))


KNOWN = [n for n in every_family.NAMES if n not in ('dense', 'low_rank', 'tree_full')]


@pytest.mark.parametrize('name', KNOWN)
def test_no_pattern_costs_more(name):
  rng, exact = np.random.default_rng(7), 0
  for n in rng.integers(1, 13, 25).tolist():
    strategy, schema = every_family.drawn(name, n, rng), drawn_schema(rng, n)
    try:
      bound = squared(strategy, schema)
    except (prove.Refused, certificates.UnknownProof):
      continue
    largest = brute_force(strategy, schema)
    assert bound >= largest * (1.0 - 1e-12), (strategy, schema)
    exact += bound <= largest * (1.0 + 1e-9)
  assert exact >= 4


@pytest.mark.parametrize('block', [None, 3, 5, 8])
def test_trees_of_random_schemas_are_exact(block):
  rng = np.random.default_rng(11)
  tree = dpftrl.load_strategy('tree_online')
  for n in rng.integers(1, 17, 40).tolist():
    strategy = stamped.Stamped(tree, min(block, n)) if block else tree
    schema = drawn_schema(rng, n)
    assert squared(strategy, schema) == round(brute_force(strategy, schema)), (n, schema)


@pytest.mark.slow
def test_large_trees_are_those_of_the_library():
  rng = np.random.default_rng(3)
  tree = dpftrl.load_strategy('tree_online')
  for n in rng.integers(100, 3000, 20).tolist():
    schema = M(n, int(rng.integers(20, 400)), int(rng.integers(1, 12)))
    value, kind = sensitivities.sensitivity(tree, schema)
    assert kind == 'exact' and squared(tree, schema) == round(value**2)


@pytest.mark.parametrize('mu', [0.01, 0.3, 1.0, 4.0, 12.0])
@pytest.mark.parametrize('delta', [0.3, 1e-3, 1e-9, 1e-40])
def test_delta_is_that_of_the_library(mu, delta):
  from fractions import Fraction

  epsilon = Fraction(gaussian.epsilon(1.0 / mu, delta))
  exactly = prove.up(1 / Fraction(1.0 / mu))
  assert prove.largest_delta(epsilon * prove.SLACK, exactly) <= prove.up(Fraction(delta))
  smaller = epsilon * (1 - Fraction(1, 10**11))
  assert not epsilon or prove.largest_delta(smaller, exactly) > prove.up(Fraction(delta))


@pytest.mark.parametrize('name', KNOWN)
def test_a_strategy_has_the_digest_that_claims_have(name):
  strategy = every_family.example(name, 12)
  try:
    document = json.loads(json.dumps(certificates.strategy_json(strategy)))
  except certificates.UnknownProof:
    return
  assert prove.digest(document)['sha256'] == documents.strategy_digest(strategy)


def test_every_family_is_known_or_refused():
  refused = family_registry.FAMILIES.keys() - prove.FAMILIES.keys()
  assert (
    refused == {'dense', 'low_rank'} and prove.FAMILIES.keys() <= family_registry.FAMILIES.keys()
  )


def imports(path):
  nodes = ast.walk(ast.parse(path.read_text('utf-8')))
  for node in nodes:
    if isinstance(node, ast.Import):
      yield from (alias.name.split('.')[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield (node.module or '').split('.')[0]


def test_checker_and_package_import_nothing_of_each_other():
  assert set(imports(certified.PATH)) <= set(sys.stdlib_module_names)
  package = pathlib.Path(dpftrl.__file__).parent
  for path in package.rglob('*.py'):
    assert not {'checker', 'prove'} & set(imports(path)), path
    assert 'spec_from_file' not in path.read_text('utf-8'), path


def test_the_checker_can_be_read_in_half_an_hour():
  text = certified.PATH.read_text('utf-8')
  documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
  nodes = [
    n for n in ast.walk(ast.parse(text)) if isinstance(n, documented) and ast.get_docstring(n)
  ]
  docstrings = {t for n in nodes for t in range(n.body[0].lineno, n.body[0].end_lineno + 1)}
  lines = set()
  for token in tokenize.generate_tokens(io.StringIO(text).readline):
    if token.string.strip() and token.type != tokenize.COMMENT:
      lines |= set(range(token.start[0], token.end[0] + 1))
  assert len(lines - docstrings) <= 360
