"""Which strategy is chosen, and that comparisons are fair."""

import dataclasses

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import sensitivities
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.participation import accountant
from fl_dpftrl.planning import candidate_sets as compared
from fl_dpftrl.planning import forecasts, planner, search
from fl_dpftrl.planning import recommendation as lib
from fl_dpftrl.planning.simulation import scenarios


def outcome(schema):
  return forecasts.Outcome(
    seed=0,
    report_goal=50,
    num_rounds=schema.num_rounds,
    min_sep=schema.min_sep,
    max_participations=schema.participations,
    days=3.0,
  )


PLANNED = dpftrl.MinSep(num_rounds=60, min_sep=9, max_participations=4)
SCHEMAS = (
  PLANNED,
  dpftrl.MinSep(num_rounds=60, min_sep=10, max_participations=3),
  dpftrl.MinSep(num_rounds=60, min_sep=14, max_participations=3),
)
NAMES = ['blt:2', 'banded', 'banded_toeplitz', 'tree_full', 'identity', 'blt-b100']
DELTA = 1e-6


def find(names, schemas=SCHEMAS):
  return search.find(compared.named(names), schemas, PLANNED, objective='max')


@pytest.fixture(scope='module')
def found():
  return find(NAMES)


def recommend(found, **kwargs):
  given = {'max_copies': 5, 'delta': DELTA, 'noise_multiplier': 9.0, **kwargs}
  return lib.recommend(found, SCHEMAS, PLANNED, SCHEMAS[1:], **given)


def by_label(found):
  return {candidate.label: candidate for candidate in found}


@pytest.mark.slow
def test_candidates_are_what_the_catalogue_says(found):
  assert [candidate.label for candidate in found] == NAMES
  for candidate in found:
    for schema in SCHEMAS:
      file = files.describe(candidate.strategy, schema=schema)
      assert candidate.loss(schema) == file.figures['max_loss']
      assert candidate.error(schema) == file.figures['max_error']
  named = by_label(found)
  assert named['banded'].strategy.num_bands == PLANNED.min_sep
  assert named['banded'].memory_copies == PLANNED.min_sep - 1


def test_skipped_with_a_reason():
  long = dataclasses.replace(PLANNED, num_rounds=300)
  (skipped,) = search.find(compared.named(['banded-b16']), [long], long, objective='rms')
  assert (skipped.label, '256 rounds' in skipped.reason) == ('banded-b16', True)


def test_a_lower_bound_of_the_sensitivity_is_no_candidate(monkeypatch):
  describe = files.describe

  def bounded(strategy, schema):
    file = describe(strategy, schema=schema)
    value = file.sensitivity._replace(kind=sensitivities.LOWER_BOUND)
    return dataclasses.replace(file, sensitivity=value)

  monkeypatch.setattr(files, 'describe', bounded)
  (skipped,) = find(['identity'])
  assert skipped.reason == 'only a lower bound of its sensitivity is known'


def test_default_names_leave_out_what_takes_long():
  chosen, skipped = search.named(None, PLANNED)
  labels = [origin.label for origin in chosen]
  assert {'blt', 'banded', 'identity', 'blt-b400'} <= set(labels)
  assert not skipped
  long = dpftrl.MinSep(num_rounds=20000, min_sep=4000)
  chosen, (skip,) = search.named(None, long)
  assert skip.label == 'banded' and 'in strategies' in skip.reason
  assert 'banded' not in [origin.label for origin in chosen]
  chosen, skipped = search.named(['banded'], long)
  assert [c.label for c in chosen] == ['banded'] and not skipped


@pytest.mark.slow
def test_memory_decides(found):
  named = by_label(found)
  assert lib.choose(found, SCHEMAS, 5).label == 'blt:2'
  assert lib.choose(found, SCHEMAS, 0) is named['identity']
  assert lib.choose(found, SCHEMAS, 8).label in ('banded', 'banded_toeplitz')
  fitting = [c for c in found if c.memory_copies <= 8]
  regrets = {c.label: search.regret(c, SCHEMAS, fitting) for c in fitting}
  assert min(regrets.values()) == regrets[lib.choose(found, SCHEMAS, 8).label] >= 0.0
  with pytest.raises(ValueError, match='max_copies=2 is below the 3'):
    lib.choose([c for c in found if c.memory_copies > 2], SCHEMAS, 2)


def test_epsilon_is_that_of_the_accountant(found):
  best = recommend(found)
  account = accountant.account(best.candidate.strategy, PLANNED, noise_multiplier=9.0, delta=DELTA)
  assert best.guarantee.to_json() == account.to_json()
  for schema, epsilon in zip(SCHEMAS[1:], best.epsilons, strict=True):
    assert (
      epsilon
      == accountant.account(
        best.candidate.strategy, schema, noise_multiplier=9.0, delta=DELTA
      ).epsilon()
    )
    assert epsilon <= best.guarantee.epsilon()


def test_noise_for_an_epsilon(found):
  best = recommend(found, noise_multiplier=None, epsilon=0.7)
  assert 0.6999 < best.guarantee.epsilon() <= 0.7
  again = recommend(found, noise_multiplier=best.guarantee.noise_multiplier)
  assert again.guarantee.epsilon() == best.guarantee.epsilon()
  for kwargs in ({}, {'epsilon': 0.7, 'noise_multiplier': 9.0}):
    with pytest.raises(ValueError, match='and not both'):
      recommend(found, **{'noise_multiplier': None, **kwargs})


@pytest.mark.slow
def test_options_are_compared_at_the_same_epsilon_and_at_the_same_noise(found):
  best = recommend(found)
  assert len(best.options) == len(found)
  losses = [option.candidate.loss(PLANNED) for option in best.options]
  assert losses == sorted(losses)
  assert best.noise_in_model == 9.0 * best.candidate.error(PLANNED)
  for option in best.options:
    own = option.candidate
    account = lambda noise, own=own: accountant.account(
      own.strategy, PLANNED, noise_multiplier=noise, delta=DELTA
    ).epsilon()
    assert account(option.guarantee.noise_multiplier) == pytest.approx(
      best.guarantee.epsilon(), rel=1e-6
    )
    noise = option.guarantee.noise_multiplier * own.error(PLANNED)
    assert noise / best.noise_in_model == pytest.approx(option.loss_ratio)
    same = best.noise_in_model / own.error(PLANNED)
    assert account(same) == pytest.approx(option.same_noise_epsilon, rel=1e-6)
    assert option.fits == (own.memory_copies <= 5)
    if own is best.candidate:
      assert option.loss_ratio == 1.0 and option.regret >= 0.0


def test_nothing_will_do():
  with pytest.raises(ValueError, match='none of the strategies.*banded-b16'):
    planner.plan(
      scenarios.Scenario(
        population=100, report_goal=2, clients_per_round=2, timer_rounds=5, availability='always'
      ),
      num_rounds=300,
      seeds=[0],
      delta=DELTA,
      noise_multiplier=9.0,
      strategies=['banded-b16'],
    )


def test_stated_margins_are_those_of_the_planned_schema(found):
  best = recommend(found)
  planned = best.planned
  # No more participations than planned for fit, so there is no margin on k.
  seen = outcome(
    dataclasses.replace(
      planned, min_sep=planned.min_sep + 1, max_participations=planned.participations
    )
  )
  plan = planner.Plan(
    scenario=scenarios.Scenario(population=100, report_goal=50),
    forecast=forecasts.Forecast(outcomes=(seen,)),
    best=best,
    skipped=(),
    max_copies=16,
    objective='max',
  )
  words = ' '.join(plan.assumptions)
  assert len(plan.assumptions) == 4 + 3 + 1
  assert 'with a margin of 1 rounds on b and 0 on k' in words
