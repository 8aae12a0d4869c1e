"""The claim of a run: what it refuses, what a log holds of it, and how runs compose."""

import dataclasses
import hashlib
import json
import math

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.claims import run_claim
from fl_dpftrl.commands import replay_text
from fl_dpftrl.logs import claim_json, keys, participation_log, refusals
from fl_dpftrl.mechanisms import sensitivities
from fl_dpftrl.participation.accounting import arithmetics, guarantees
from fl_dpftrl.participation.rules import sampling
from fl_dpftrl.prove.replaying import opened_runs
from fl_dpftrl.prove.reports import privacy
from tests import made

SCHEMA = dpftrl.MinSep(num_rounds=12, min_sep=3, max_participations=2)
TREE, BLT = dpftrl.TreeOnline(), dpftrl.BLT([0.99, 0.7], [0.1, 0.3])
FULL = dpftrl.Claim(
  strategy=BLT,
  noise_multiplier=8.0,
  clip_norm=dpftrl.AdaptiveClipping(0.5),
  report_goal=3,
  participation=SCHEMA,
  arithmetic=arithmetics.Arithmetic.covered(7),
  void_reason='the seed is known',
  not_private_metrics=('client_work.train.loss', 'aggregator.<clipped>'),
  trusted_operations=('PyFunc',),
)
PLAIN = dpftrl.Claim(strategy=BLT, noise_multiplier=8.0)
DRAWN = dpftrl.Claim(
  strategy=TREE,
  noise_multiplier=0.0,
  clip_norm=2,
  participation=sampling.CyclicPoisson(num_rounds=9, num_examples=100, batch_size=2.5, num_parts=3),
)


def claim(strategy, multiplier):
  return dpftrl.Claim(strategy=strategy, noise_multiplier=multiplier)


def test_whole_numbers_are_not_covered_where_draws_are_secret(tmp_path):
  covered = dataclasses.replace(FULL, void_reason=None, participation=None)
  made.ledger(tmp_path / 'log.parquet', [[3 * i] for i in range(9)], covered)
  run = dpftrl.open_run(tmp_path / 'log.parquet', BLT)
  draws = dpftrl.SecretBins(9, 2)
  drawn = dataclasses.replace(run, claim=dataclasses.replace(covered, participation=draws))
  statement = dpftrl.replay(drawn, delta=1e-6)
  assert statement.planned.holds and statement.void_reason is None
  assert run.claim.arithmetic.kind == 'covered' and statement.arithmetic.kind == 'lattice'


@pytest.mark.parametrize('own', [FULL, PLAIN, DRAWN])
def test_a_claim_is_read_as_it_was_written(own, tmp_path):
  stored = own.to_metadata()
  assert claim_json.read(stored) == own.to_json() and claim_json.read({}) is None
  own.save(tmp_path)
  document = json.loads((tmp_path / 'claim.json').read_text())
  assert dpftrl.Claim.from_json(document, own.strategy) == own
  assert (tmp_path / 'claim.json').stat().st_mode & 0o777 == 0o600
  (tmp_path / 'claim.json').write_text(json.dumps(document, sort_keys=True))
  own.save(tmp_path)  # The order of names says nothing.
  metadata = [each.to_metadata() for each in (FULL, PLAIN, DRAWN)]
  assert len({each[keys.CLAIM_DIGEST_KEY] for each in metadata}) == 3


def changed(document):
  """Yields copies with one leaf of another type or value, one left out, or one too many."""
  for name, value in document.items():
    yield {key: kept for key, kept in document.items() if key != name}
    if isinstance(value, dict):
      yield from ({**document, name: inner} for inner in changed(value))
      yield {**document, name: {**value, 'more': 1}}
    else:
      yield {**document, name: {'a': 1}}
      yield {**document, name: [1]}
      yield {**document, name: True}


@pytest.mark.parametrize('own', [FULL, DRAWN])
def test_whatever_is_no_claim_is_refused_in_one_line(own):
  needed = ('strategy', 'noise_multiplier', 'arithmetic', 'trusted_operations')
  without = [{**own.to_json(), name: None} for name in needed]
  for document in [*changed(own.to_json()), *without, [], None, 3, {**own.to_json(), 'more': 1}]:
    text = json.dumps(document)
    metadata = {
      keys.CLAIM_KEY: text,
      keys.CLAIM_DIGEST_KEY: hashlib.sha256(text.encode()).hexdigest(),
    }
    with pytest.raises((refusals.LogError, ValueError)) as error:
      dpftrl.Claim.from_json(claim_json.read(metadata), own.strategy)
    assert '\n' not in str(error.value)
  other = {**own.to_metadata(), keys.CLAIM_DIGEST_KEY: '0' * 64}
  with pytest.raises(refusals.LogError, match='is not of fl_dpftrl.claim_sha256'):
    claim_json.read(other)
  with pytest.raises(ValueError, match='strategy'):
    dpftrl.Claim.from_json(own.to_json(), dpftrl.Identity())


@made.cases(
  'arguments, message',
  (dict(strategy=dpftrl.TreeFull()), 'tree_full depends on the number of rounds'),
  (
    dict(strategy=dpftrl.Banded(np.ones((4, 1))), participation=SCHEMA),
    'declared_num_rounds=12: .* beyond the 4',
  ),
  (dict(noise_multiplier=math.inf), 'noise_multiplier must be finite'),
  (dict(noise_multiplier=math.nan), 'noise_multiplier must be finite'),
  (dict(noise_multiplier='3'), 'noise_multiplier must be finite'),
  (dict(noise_multiplier=True), 'noise_multiplier must be finite'),
  (dict(noise_multiplier=-1.0), 'noise_multiplier must be finite'),
  (dict(clip_norm=0.0), 'clip_norm must be positive'),
  (dict(clip_norm=math.inf), 'clip_norm must be positive'),
  (dict(report_goal=0), 'report_goal must be at least 1'),
  (dict(participation=dpftrl.FixedSeparation(12, 3)), 'participation must be a MinSep'),
  (dict(participation=3), 'participation must be one of'),
  (dict(void_reason=3), 'void_reason must be text'),
  (dict(trusted_operations='PyFunc'), 'trusted_operations must be'),
  (dict(not_private_metrics=['a' * 201]), 'not_private_metrics must be'),
)
def test_refuses_what_is_no_claim(arguments, message):
  with pytest.raises(ValueError, match=message):
    dpftrl.Claim(**(dict(strategy=TREE, noise_multiplier=1.0) | arguments))


def test_a_single_run_has_the_sensitivity_of_its_strategy_to_the_last_bit():
  found = run_claim.worst_case([claim(TREE, 1.7)], [SCHEMA])
  assert found == sensitivities.sensitivity(TREE, SCHEMA)
  own = claim(TREE, 1.7).guarantee(SCHEMA, 1e-6)
  assert own.epsilon() == dpftrl.account(TREE, SCHEMA, noise_multiplier=1.7, delta=1e-6).epsilon()


def test_rho_of_independent_runs_adds_up():
  """ρ is (sensitivity / noise multiplier)² / 2, in units of the largest multiplier."""
  runs = [(TREE, 1.5), (dpftrl.BLT([0.9], [0.2]), 3.0), (dpftrl.Identity(), 0.7)]
  squares = [(sensitivities.sensitivity(s, SCHEMA).value / m) ** 2 for s, m in runs]
  for order in (runs, runs[::-1]):
    found = run_claim.worst_case([claim(*run) for run in order], [SCHEMA] * 3)
    assert found.value / 3.0 == pytest.approx(math.sqrt(math.fsum(squares)), rel=1e-14)
    assert found.kind == sensitivities.EXACT


def test_a_joint_epsilon_is_that_of_any_order_of_the_runs():
  rng = np.random.default_rng(0)
  strategies = [TREE, dpftrl.BLT([0.9], [0.2]), dpftrl.Identity(), dpftrl.BLT([0.7], [0.1])]
  runs = [claim(strategies[i % 4], float(rng.uniform(0.5, 9.0))) for i in range(9)]
  figures = set()
  for _ in range(20):
    order = [runs[i] for i in rng.permutation(9)]
    figures.add(run_claim.compose(order, [SCHEMA] * 9, guarantees.Terms(1e-6)).epsilon())
  assert len(figures) == 1


def test_without_noise_the_unit_is_left_out_and_nothing_is_guaranteed():
  alone = sensitivities.sensitivity(TREE, SCHEMA).value
  both = [claim(TREE, 0.0), claim(TREE, 2.0)]
  found = run_claim.worst_case(both, [SCHEMA] * 2)
  assert found.value == pytest.approx(math.sqrt(2.0) * alone, rel=1e-14)
  terms = guarantees.Terms(1e-6)
  assert run_claim.compose(both, [SCHEMA] * 2, terms).epsilon() == math.inf


def write(path, own):
  with dpftrl.LogWriter(path, own) as log:
    for t in range(2):
      log.append(t, ['ab'[t]], 86400)
  return participation_log.read_log(path)


def test_other_noise_is_another_run(tmp_path, path):
  log = write(path, PLAIN)
  assert dpftrl.replay(opened_runs.RecordedRun.of(log, BLT), delta=1e-6).void_reason is None
  with pytest.raises(refusals.LogError, match='noise_multiplier 8.0, not 4.0'):
    dpftrl.LogWriter(path, claim(BLT, 4.0))
  unstated = write(tmp_path / 'other.parquet', None)
  with pytest.raises(ValueError, match='noise_multiplier is needed'):
    opened_runs.RecordedRun.of(unstated, BLT)


def test_a_statement_and_its_report_name_what_is_not_covered(tmp_path):
  statement = dpftrl.replay(
    opened_runs.RecordedRun.of(write(tmp_path / 'a.parquet', FULL), BLT), delta=1e-6
  )
  assert statement.void_reason == 'the seed is known'
  assert statement.not_private_metrics == FULL.not_private_metrics
  assert statement.to_json()['not_private_metrics'] == list(FULL.not_private_metrics)
  assert 'client_work.train.loss, aggregator.<clipped>' in replay_text.text(statement)
  page = privacy.report(statement, privacy.Setting(run='r', command='c'))
  assert '<code>client_work.train.loss</code>' in page
  assert '<code>aggregator.&lt;clipped&gt;</code>' in page
  (sentence,) = [one for one in statement.assumptions if 'PyFunc' in one]
  assert 'whoever trained stated it' in sentence
  public = statement.publishable()
  assert sentence in public.assumptions and public.not_private_metrics == ()
  without = dpftrl.replay(
    opened_runs.RecordedRun.of(write(tmp_path / 'b.parquet', PLAIN), BLT), delta=1e-6
  )
  assert without.not_private_metrics == ()
  assert 'metrics without the noise' not in replay_text.text(without)


def test_a_log_knows_the_attributes_of_a_claim():
  assert {field.name for field in dataclasses.fields(run_claim.Claim)} == claim_json.FIELDS
