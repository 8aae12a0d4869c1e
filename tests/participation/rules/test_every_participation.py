"""Laws that hold for every participation, against an oracle of what it allows."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.claims import run_claim
from fl_dpftrl.mechanisms.families import stamped
from fl_dpftrl.participation import registry
from fl_dpftrl.participation.accounting import guarantees
from fl_dpftrl.participation.counts import participation_counts
from fl_dpftrl.participation.rules import per_units, sampling
from tests import oracle
from tests.every_participation import EXAMPLES, NUM_ROUNDS, every_pattern, losses_of
from tests.participation.rules import adversaries

BLT = dpftrl.BLT([0.9, 0.4], [0.2, 0.3])
# Strategies with an X, and the kind of their sensitivity in a run without an end.
STRATEGIES = {
  'identity': (dpftrl.Identity(), 'exact'),
  'blt': (BLT, 'exact'),
  'lambda_cgd': (dpftrl.LambdaCGD(0.7), 'exact'),
  'falling': (dpftrl.BandedToeplitz(np.array([1.0, 0.5, 0.2])), 'exact'),
  'signs': (dpftrl.BandedToeplitz(np.array([1.0, -0.4, -0.2])), 'upper_bound'),
  'gaps': (dpftrl.BandedToeplitz(np.array([1.0, 0.0, 0.5])), 'upper_bound'),
  'banded_inverse': (dpftrl.BandedInverse(np.array([1.0, -0.5, 0.3])), 'upper_bound'),
  'stamped': (stamped.Stamped(BLT, 5), 'exact'),
}
PROMISED = [name for name, e in EXAMPLES.items() if not e.participation.is_drawn]
KEPT = [name for name in PROMISED if name != 'fixed_separation']
DELTA, SIGMA = 1e-3, 2.0
TERMS = guarantees.Terms(DELTA)


def wrong(participation, strategy, patterns) -> list[bool]:
  """Returns which of several devices, each with its rounds, violate a participation."""
  sizes = [len(pattern) for pattern in patterns]
  starts = np.repeat(np.cumsum([0, *sizes[:-1]]), sizes)
  found = participation.wrong(strategy, np.concatenate(patterns).astype(int), starts)
  return np.logical_or.reduceat(found, np.cumsum([0, *sizes[:-1]])).tolist()


def test_every_kind_has_an_example():
  kinds = {kind for kind, cls in registry.KINDS.items() if cls.__module__.startswith('fl_dpftrl.')}
  assert kinds <= {example.participation.kind for example in EXAMPLES.values()}


@pytest.mark.parametrize('strategy, kind', STRATEGIES.values(), ids=STRATEGIES)
@pytest.mark.parametrize('name', EXAMPLES)
def test_a_guarantee_is_never_below_brute_force(name, strategy, kind):
  example = EXAMPLES[name]
  participation, largest = example.participation, example.worst(strategy)
  worst = participation.worst_case(strategy)
  assert largest <= worst.value * (1 + 1e-9)
  if worst.kind == 'exact' and not participation.is_drawn:
    assert largest >= worst.value * (1 - 1e-9)
  assert name != 'min_sep without an end' or worst.kind == kind
  if not participation.is_secret:
    guarantee = participation.guarantee(strategy, SIGMA, TERMS)
    assert guarantee.sensitivity == worst.value
    assert oracle.exact_delta(largest / SIGMA, guarantee.epsilon()) <= DELTA * (1 + 1e-9)
    least = participation.least_noise(strategy, 1.0, None, TERMS)
    assert oracle.exact_delta(largest / least.noise_multiplier, 1.0) <= DELTA * (1 + 1e-9)


HALVES = [(0,), (1,)], [0.5, 0.5]
DRAWS = {
  'poisson': (sampling.CyclicPoisson, 2, ([(), (0,), (1,), (0, 1)], [0.25] * 4)),
  'fixed_size': (sampling.CyclicFixedSize, 2, ([(), (0,), (1,), (0, 1)], [0.25] * 4)),
  'shuffled': (sampling.Shuffled, 2, HALVES),
  'shuffled_once': (sampling.ShuffledOnce, 3, ([(0, 2), (1,)], [0.5, 0.5])),
  'bins': (dpftrl.SecretBins, 3, ([(0, 2), (1,)], [0.5, 0.5])),
}


@pytest.mark.parametrize('absent', [False, True])
@pytest.mark.parametrize('name', DRAWS)
def test_no_adversary_exceeds_the_guarantee_of_draws(name, absent):
  kind, num_rounds, (patterns, chances) = DRAWS[name]
  sizes = {'num_bins': 2} if name == 'bins' else {'num_examples': 4, 'batch_size': 2}
  participation = kind(num_rounds=num_rounds, **sizes)
  strategy = dpftrl.Identity() if name in ('poisson', 'fixed_size') else BLT
  matrix = strategy.strategy_matrix(num_rounds) / SIGMA
  epsilon = participation.guarantee(strategy, SIGMA, TERMS).epsilon()
  best = lambda e: float(adversaries.best(matrix, patterns, chances, e, absent=absent))
  assert best(epsilon) <= DELTA
  assert absent or best(0.25 * epsilon) > DELTA


@pytest.mark.parametrize('seed', range(6))
@pytest.mark.parametrize('name', EXAMPLES)
def test_a_gate_admits_what_is_allowed(name, seed):
  """Of a unit, any device may come; each row counts."""
  example, rng, losses = EXAMPLES[name], np.random.default_rng(seed), losses_of(BLT)
  if name == 'fixed_separation':
    with pytest.raises(ValueError, match='schema must be a MinSep'):
      example.participation.gate(BLT)
    return
  gate = example.participation.gate(BLT)
  if gate is None:
    assert example.participation.is_drawn
    return
  size = example.most_rows + 1 if isinstance(gate, per_units.UnitGate) else 1
  devices = np.arange(4 * size)
  if size > 1:
    gate.owners = lambda ids, t: (np.arange(len(ids)), np.asarray(ids) // size)
  rounds: dict[int, tuple[int, ...]] = dict.fromkeys(range(4), ())
  for t in range(NUM_ROUNDS):
    candidates = np.sort(rng.permutation(devices)[: rng.integers(1, devices.size + 1)])
    expected = []
    for device in candidates.tolist():
      if example.allowed((*rounds[device // size], t), losses):
        rounds[device // size] += (t,)
        expected.append(device)
    reasons = gate.reasons(candidates)
    assert candidates[reasons == ''].tolist() == expected
    for reason in set(reasons.tolist()) - {''}:
      assert 'may not take part' not in gate.sentence(reason, 0, 1)  # Follows the device.
    gate.record(np.array(expected, np.int64))


@pytest.mark.parametrize('name', PROMISED)
def test_what_is_wrong_is_not_allowed(name):
  """A fixed separation may be broken unseen: a log shows its least one."""
  example, losses = EXAMPLES[name], losses_of(BLT)
  patterns = list(every_pattern(NUM_ROUNDS, example.most_rows + (example.most_rows > 1)))
  expected = [not example.allowed(pattern, losses) for pattern in patterns]
  found = wrong(example.participation, BLT, patterns)
  if name in KEPT:
    assert found == expected
  else:
    assert all(e for f, e in zip(found, expected) if f)


@pytest.mark.parametrize('name', ['poisson', 'bins'])
def test_a_log_contradicts_draws_that_did_not_take_turns(name):
  """Those of batches of one size need a whole log; see test_log_checks."""
  example, losses = EXAMPLES[name], losses_of(BLT)
  for pattern in every_pattern(NUM_ROUNDS):
    rounds = np.array(pattern)
    counts = participation_counts.DeviceCounts.of_rows(rounds, np.zeros_like(rounds), lambda _: 1)
    counts = participation_counts.RunCounts(num_rounds=NUM_ROUNDS, **vars(counts))
    reasons = example.participation.contradictions(counts, None, 0)
    assert bool(reasons) is not example.allowed(pattern, losses)


@pytest.mark.parametrize('name', EXAMPLES)
def test_it_is_read_from_json_as_it_was_written(name):
  participation = EXAMPLES[name].participation
  document = json.loads(json.dumps(registry.to_json(participation), allow_nan=False))
  assert registry.from_json(document) == participation
  assert type(registry.from_json(document)) is type(participation)
  assert hash(registry.from_json(document)) == hash(participation)
  if name != 'fixed_separation':
    claim = dpftrl.Claim(strategy=BLT, noise_multiplier=2.0, participation=participation)
    assert dpftrl.Claim.from_json(json.loads(json.dumps(claim.to_json())), BLT) == claim


@pytest.mark.parametrize('name', EXAMPLES)
def test_within_is_the_participation_of_a_shorter_run(name):
  """It allows the same rounds of its own, and any stretch of a longer run that keeps to it."""
  example, losses = EXAMPLES[name], losses_of(BLT)
  whole = example.participation
  assert whole.within(NUM_ROUNDS) == whole
  for n in range(1, NUM_ROUNDS):
    part = whole.within(n)
    assert part.num_rounds in (None, n) or whole.kind == 'bins'
    assert example.worst(BLT, n) <= part.worst_case(BLT).value * (1 + 1e-9)
    if whole.is_drawn:
      continue
    patterns = list(every_pattern(n, example.most_rows))
    if name in KEPT:
      assert wrong(part, BLT, patterns) == [not example.allowed(p, losses) for p in patterns]
    for pattern, first in itertools.product(example.patterns(BLT), range(NUM_ROUNDS - n + 1)):
      stretch = [t - first for t in pattern if first <= t < first + n]
      assert not stretch or wrong(part, BLT, [stretch]) == [False]


@pytest.mark.parametrize('first, second', itertools.product(PROMISED, repeat=2))
def test_together_is_never_below_each_one(first, second):
  """A device may do its worst in both runs, or in one."""
  examples, noise = [EXAMPLES[first], EXAMPLES[second]], [2.0, 3.0]
  participations = [example.participation for example in examples]
  claims = [dpftrl.Claim(strategy=BLT, noise_multiplier=n) for n in noise]
  together = run_claim.compose(claims, participations, TERMS)
  every = [run_claim.compose([c], [p], TERMS) for c, p in zip(claims, participations)]
  assert together.mu >= max(guarantee.mu for guarantee in every)
  reached = math.hypot(*(example.worst(BLT) / n for example, n in zip(examples, noise)))
  assert together.mu >= reached * (1 - 1e-9)
  try:
    whole = participations[0].together(participations[1:])
  except ValueError as error:
    assert 'not composed' in str(error)
    return
  if isinstance(whole, dpftrl.MinSep):  # One schema stands for both.
    assert whole.num_rows >= sum(p.num_rows for p in participations) or not whole.num_rounds
    for example in examples:
      assert not any(wrong(whole, BLT, list(example.patterns(BLT))))
  if isinstance(whole, dpftrl.PerUnit):
    more = dataclasses.replace(participations[1], max_rows=5)
    assert participations[0].together([more]).max_rows == 5


@pytest.mark.parametrize('first, second', itertools.product(EXAMPLES, repeat=2))
def test_what_covers_another_allows_all_of_it(first, second):
  """Of a log that recorded the second, the first is then no understatement."""
  whole, part, losses = EXAMPLES[first], EXAMPLES[second], losses_of(BLT)
  if whole.participation.covers(part.participation):
    assert all(whole.allowed(pattern, losses) for pattern in part.patterns(BLT))


@pytest.mark.parametrize('name', [n for n in EXAMPLES if n not in PROMISED])
def test_draws_are_not_composed(name):
  with pytest.raises(ValueError, match='are not composed over several runs'):
    EXAMPLES[name].participation.together([EXAMPLES['min_sep'].participation])
