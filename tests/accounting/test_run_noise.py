import itertools
import math

import hypothesis
import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl.accounting import run_noise
from fl_dpftrl.participation import schemas
from tests import drawn, oracle

SCHEMA = dpftrl.MinSep(num_rounds=12, min_sep=3, max_participations=2)
TREE = dpftrl.TreeOnline()


def constant(strategy, multiplier):
  return run_noise.RunNoise.of(12, strategy, multiplier)


def test_a_single_stream_has_the_sensitivity_of_its_strategy_to_the_last_bit():
  found = run_noise.worst_case([constant(TREE, 1.7)], [SCHEMA])
  assert found == sensitivity_lib.sensitivity(TREE, SCHEMA)


def test_rho_of_independent_runs_adds_up():
  """ρ is (sensitivity / noise multiplier)² / 2, in units of the first multiplier."""
  runs = [(TREE, 1.5), (dpftrl.BLT([0.9], [0.2]), 3.0), (dpftrl.Identity(), 0.7)]
  squares = [(sensitivity_lib.sensitivity(s, SCHEMA).value / m) ** 2 for s, m in runs]
  for order in (runs, runs[::-1]):
    found = run_noise.worst_case([constant(*run) for run in order], [SCHEMA] * 3)
    assert found.value / order[0][1] == pytest.approx(math.sqrt(math.fsum(squares)), rel=1e-14)
    assert found.kind == sensitivity_lib.EXACT


def test_without_noise_the_unit_is_left_out():
  alone = sensitivity_lib.sensitivity(TREE, SCHEMA).value
  found = run_noise.worst_case([constant(TREE, 0.0), constant(TREE, 2.0)], [SCHEMA] * 2)
  assert found.value == pytest.approx(math.sqrt(2.0) * alone, rel=1e-14)


def by_round(history):
  """Multiplier, clip norm, strategy and first round of the stream of each round, by hand."""
  changes, norms = dict(history['changes']), dict(history['clip_norm_changes'])
  restarts = dict(history['restarts'])
  multiplier, norm, strategy, start = (
    *(history[name] for name in ('noise_multiplier', 'clip_norm', 'strategy')),
    0,
  )
  for t in range(history['num_rounds']):
    multiplier, norm = changes.get(t, multiplier), norms.get(t, norm)
    if t in restarts:
      strategy, start = restarts[t] or strategy, t
    yield multiplier, norm, strategy, start


@hypothesis.given(drawn.histories())
def test_a_history_is_that_of_each_of_its_rounds(history):
  noise, rounds = run_noise.RunNoise.of(**history), list(by_round(history))
  of_rounds = [(*noise.at(t)[1:4], noise.stream_start(t)) for t in range(noise.num_rounds)]
  assert of_rounds == rounds
  starts = sorted({start for *_, start in rounds})
  assert noise.restarts == tuple(starts[1:])
  assert noise.changes == tuple(history['changes'])
  for place, changes in ((0, noise.multiplier_changes), (1, noise.clip_norm_changes)):
    pairs = enumerate(itertools.pairwise(r[place] for r in rounds), 1)
    assert changes == tuple((t, now) for t, (before, now) in pairs if now != before)
  for stream, first in zip(noise.streams(), starts, strict=True):
    inside = [r for r in rounds if r[3] == first]
    assert stream == (first, len(inside), inside[0][2], min(r[0] for r in inside))
  for n in range(1, noise.num_rounds):
    early = {
      name: [entry for entry in value if entry[0] < n] if isinstance(value, list) else value
      for name, value in history.items()
    }
    assert noise.until(n) == run_noise.RunNoise.of(**(early | {'num_rounds': n}))


@hypothesis.given(drawn.histories())
def test_a_history_grows_by_one_change_at_a_time(history):
  first = {name: [] if isinstance(value, list) else value for name, value in history.items()}
  noise = run_noise.RunNoise.of(**first)
  for t in range(1, noise.num_rounds):
    change = {
      name: dict(history[entries])[t]
      for name, entries in (('noise_multiplier', 'changes'), ('clip_norm', 'clip_norm_changes'))
      if t in dict(history[entries])
    }
    if t in dict(history['restarts']):
      change |= {'restart': True, 'strategy': dict(history['restarts'])[t]}
    if change:
      noise = noise.changed(t, **change)
      with pytest.raises(ValueError, match='ascending rounds'):
        noise.changed(t, **change)
  assert noise == run_noise.RunNoise.of(**history)


def test_a_change_or_a_restart_makes_the_worst_case_an_upper_bound():
  for history in ({'changes': [(2, 3.0)]}, {'restarts': [(5, None)]}):
    noise = run_noise.RunNoise.of(12, TREE, 2.0, **history)
    assert run_noise.worst_case([noise], [SCHEMA]).kind == sensitivity_lib.UPPER_BOUND


@pytest.mark.parametrize('seed', range(8))
def test_no_history_is_below_what_a_device_can_reach(seed):
  rng = np.random.default_rng(seed)
  schema = schemas.MinSep(num_rounds=7, min_sep=int(rng.integers(1, 4)))
  at = lambda: sorted(rng.choice(np.arange(1, 7), rng.integers(0, 4), replace=False).tolist())
  changes = [(t, float(rng.uniform(0.5, 2.0))) for t in at()]
  others = (None, dpftrl.Identity(), dpftrl.BLT([0.8], [0.3]))
  restarts = [(t, others[rng.integers(3)]) for t in at()]
  noise = run_noise.RunNoise.of(
    7, dpftrl.BLT([0.9], [0.2]), 1.3, changes=changes, restarts=restarts
  )
  # C of all rounds: a block for each stream, columns over their round's noise multiplier.
  whole = np.zeros((7, 7))
  for first, rounds, strategy, _ in noise.streams():
    whole[first : first + rounds, first : first + rounds] = strategy.strategy_matrix(rounds)
  multipliers = [noise.at(t).noise_multiplier for t in range(7)]
  reached = oracle.worst(whole / multipliers, schema)
  assert run_noise.worst_case([noise], [schema]).value / 1.3 >= reached * (1.0 - 1e-12)


@pytest.mark.parametrize(
  'arguments, message',
  [
    (dict(changes=((0, 1.0),)), 'changes must be at ascending rounds from 1 to 5, got 0'),
    (dict(changes=((6, 1.0),)), 'got 6'),
    (dict(clip_norm_changes=((2, 1.0), (2, 3.0))), 'clip_norm_changes must be .* got 2'),
    (dict(restarts=((3, None), (1, None))), 'restarts must be at ascending'),
    (dict(restarts=((1.5, None),)), 'at rounds'),
    (dict(restarts=((3, dpftrl.TreeFull()),)), 'tree_full depends on the number of rounds'),
    (dict(changes=((2, -1.0),)), 'noise_multiplier must be finite'),
    (dict(noise_multiplier=math.inf), 'noise_multiplier must be finite'),
    (dict(noise_multiplier=math.nan), 'noise_multiplier must be finite'),
    (dict(clip_norm=0.0), 'clip_norm must be positive'),
    (dict(clip_norm_changes=((2, math.inf),)), 'clip_norm must be positive'),
  ],
)
def test_refuses_what_is_no_history(arguments, message):
  with pytest.raises(ValueError, match=message):
    run_noise.RunNoise.of(**(dict(num_rounds=6, strategy=TREE, noise_multiplier=1.0) | arguments))


def test_refuses_parts_that_are_no_history():
  part = run_noise.Part(0, 1.0, strategy=TREE)
  other = run_noise.Part(3, 1.0, strategy=dpftrl.Identity())
  for parts in ((), (other,), (part, part), (part, part._replace(first_round=12))):
    with pytest.raises(ValueError, match='parts must begin'):
      run_noise.RunNoise(12, parts)
  with pytest.raises(ValueError, match='no restart'):
    run_noise.RunNoise(12, (part, other))


def test_what_is_not_known_of_round_0_gives_no_stream():
  for arguments in ((None, 1.0), (TREE, None)):
    noise = run_noise.RunNoise.of(6, *arguments, restarts=[(3, TREE)])
    with pytest.raises(ValueError, match='that of round 0 is not known'):
      noise.streams()


def test_a_stream_has_no_more_rounds_than_its_strategy():
  short = dpftrl.Banded(np.ones((4, 1)))
  with pytest.raises(ValueError, match='num_rounds=6 is beyond the 4'):
    run_noise.RunNoise.of(6, short, 1.0).streams()
  assert len(run_noise.RunNoise.of(6, short, 1.0, restarts=[(3, None)]).streams()) == 2


@pytest.mark.parametrize(
  'change, message', [(dict(), 'nothing changes'), (dict(strategy=TREE), 'give restart=True')]
)
def test_a_change_that_says_nothing_or_too_little_is_refused(change, message):
  with pytest.raises(ValueError, match=message):
    constant(TREE, 1.0).changed(3, **change)
