"""Observed guarantees, against brute force, and never above the worst case."""

import contextlib
import json
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import fl_dpftrl as dpftrl
from fl_dpftrl.claims import run_claim
from fl_dpftrl.commands import main
from fl_dpftrl.logs import ledgers
from fl_dpftrl.mechanisms import sensitivities
from fl_dpftrl.mechanisms.families import banded, blt, identity
from fl_dpftrl.mechanisms.families import tree_online as tree
from fl_dpftrl.participation.counts import participation_counts
from fl_dpftrl.prove.replaying import device_tallies, observed_losses, opened_runs, replays
from tests import made
from tests.prove.replaying.in_memory import log_of

BLT = blt.BLT([0.99, 0.7], [0.1, 0.3])


@st.composite
def drawn_runs(draw):
  """A run of a few rounds, its rows, and what noise it had."""
  num_rounds = draw(st.integers(1, 9))
  rows = draw(st.sets(st.tuples(st.integers(0, num_rounds - 1), st.integers(0, 3)), min_size=1))
  strategy = draw(
    st.sampled_from(
      [
        identity.Identity(),
        tree.TreeOnline(),
        BLT,
        banded.Banded(np.array([[1.0, 0.0, 0.0], [1.0, 0.5, 0.0], *[[1.0, -0.6, 0.3]] * 7])),
      ]
    )
  )
  run = opened_runs.RecordedRun.of(
    log_of(sorted(rows), num_rounds), strategy, noise_multiplier=draw(st.floats(0.5, 8.0))
  )
  return run, rows


def gram_of(run):
  """CᵀC over the squared noise multiplier."""
  c = run.claim.strategy.strategy_matrix(run.log.num_rounds) / run.claim.noise_multiplier
  return c.T @ c


def worst_square(entries):
  """The largest ‖C u‖² over updates ±1 of one dimension: a lower bound."""
  size = len(entries)
  signs = np.array(np.meshgrid(*[[1.0, -1.0]] * size)).reshape(size, -1)
  return np.einsum('is,ij,js->s', signs, entries, signs).max()


@pytest.mark.slow
@hypothesis.given(st.lists(drawn_runs(), min_size=1, max_size=3), st.integers(1, 3))
def test_what_occurred_equals_brute_force(drawn, group_size):
  given = [run for run, _ in drawn]
  statement = replays.replay(given, delta=1e-6, group_size=group_size)
  squares, absolute = {}, {}
  negative = False
  for run, rows in drawn:
    gram = gram_of(run)
    for device in {d for _, d in rows}:
      rounds = sorted(r for r, d in rows if d == device)
      entries = gram[np.ix_(rounds, rounds)]
      negative |= bool((entries < -1e-12).any())
      squares[device] = squares.get(device, 0.0) + worst_square(entries)
      absolute[device] = absolute.get(device, 0.0) + np.abs(entries).sum()
  sums = lambda of: sum(sorted((math.sqrt(s) for s in of.values()), reverse=True)[:group_size])
  found = 1.0 / statement.observed.effective_noise_multiplier
  assert found >= sums(squares) * (1 - 1e-9)
  assert found <= sums(absolute) * (1 + 1e-9)
  if not negative:  # With mixed signs, updates in a plane may reach more than signs do.
    assert (statement.observed.sensitivity_kind == 'exact') == (group_size == 1)
    assert found == pytest.approx(sums(squares), rel=1e-9)
  assert statement.observed.rho == pytest.approx(found**2 / 2)
  worst = statement.worst_case.effective_noise_multiplier
  assert statement.observed.effective_noise_multiplier >= worst * (1 - 1e-9)
  # In their bins, all devices are there, at no less than they had.
  shares = statement.per_device.quantiles
  exact = sorted(math.sqrt(s) for s in absolute.values())
  for share, loss in shares:
    place = math.ceil(share * len(exact)) - 1
    mu = 1.0 / loss.effective_noise_multiplier
    assert mu <= exact[place] * 1.0015
    if not negative:
      assert mu >= exact[place] * (1 - 1e-9)
  bars = statement.per_device.rho_histogram
  assert sum(count for *_, count in bars) == len(squares)


def test_runs_compose():
  rows = [(0, 'a'), (4, 'a'), (1, 'b')]
  one = opened_runs.RecordedRun.of(log_of(rows, 6), BLT, noise_multiplier=2.0)
  other = opened_runs.RecordedRun.of(log_of(rows, 6), BLT, noise_multiplier=5.0)
  alone = [replays.replay(run, delta=1e-6) for run in (one, other)]
  both = replays.replay([one, other], delta=1e-6)
  parts = [(s.worst_case, s.observed) for s in alone]
  for whole, *single in zip((both.worst_case, both.observed), *parts):
    assert whole.rho == pytest.approx(sum(loss.rho for loss in single))
    assert whole.sensitivity_kind == 'exact'
  assert (both.num_rounds, both.num_devices) == (12, 2)
  assert both.num_participations == 6
  assert [run.claim.noise_multiplier for run in both.runs] == [2.0, 5.0]
  assert any('independent of that of the others' in s for s in both.assumptions)


@pytest.mark.parametrize('multipliers', [[0.0], [2.0, 0.0]])
def test_without_noise_even_in_one_run_nothing_is_guaranteed(multipliers):
  log = log_of([(0, 'a')], 3)
  given = [
    opened_runs.RecordedRun.of(log, BLT, noise_multiplier=multiplier) for multiplier in multipliers
  ]
  statement = replays.replay(given, delta=[1e-6, 1e-9])
  for part in statement.parts:
    assert part.guarantee.rho == part.guarantee.epsilon() == math.inf
  assert 'NOTHING IS GUARANTEED: no noise was added' in statement.assumptions
  json.dumps(statement.to_json(), allow_nan=False)


def test_quantiles_are_of_devices():
  exposures = participation_counts.Counts.of(np.array([0, 1 << 14, 1 << 14, (1 << 14) + 256]))
  whole = device_tallies.Tally((), 4, exposures, (device_tallies.Exposed(2.0, 'a', (0,)),))
  # Bins of squares 2⁻⁶⁴, 1 and 2.
  assert observed_losses.quantiles(whole, [0.25, 0.5, 0.75, 0.76, 1.0]) == [
    (0.25, 2.0**-64),
    (0.5, 1.0),
    (0.75, 1.0),
    (0.76, 2.0),
    (1.0, 2.0),
  ]


CLAIM = run_claim.Claim(
  strategy='tree_online', noise_multiplier=3.5, participation=dpftrl.MinSep(7, 3, 2)
)


@pytest.fixture(name='folder')
def fixture_folder(tmp_path):
  (tmp_path / 'participation.csv').write_text('round,device_id\n0,x\n3,x\n')
  CLAIM.save(tmp_path)
  return tmp_path


def test_a_run_under_way_is_read_from_its_folder(folder):
  """Its ledger has a write-ahead log beside it."""
  (folder / 'participation.csv').unlink()
  with ledgers.LogWriter(folder / 'participation.parquet', CLAIM) as log:
    log.append(0, ['x'], 0)
    assert (folder / 'participation.ledger-wal').exists()
    assert opened_runs.open_run(folder).log.num_rounds == 1
  assert opened_runs.open_run(folder).claim == CLAIM
  with pytest.raises(ValueError, match='strategy is needed with a log'):
    opened_runs.open_run(folder, noise_multiplier=2.0)
  stated = replays.replay(folder, delta=1e-6)
  assert stated.to_json() == replays.replay([opened_runs.open_run(folder)], delta=1e-6).to_json()
  (folder / 'claim.json').write_text(json.dumps(CLAIM.to_json() | {'noise_multiplier': 4.0}))
  message = 'claim.json: the run has the noise_multiplier 3.5, not 4.0: put its claim back'
  for read in (lambda: opened_runs.open_run(folder), lambda: CLAIM.save(folder)):
    with pytest.raises(ValueError, match=message):
      read()


@made.cases(
  'name, content, message',
  ('claim.json', None, 'claim.json is missing, and the log does not state its claim'),
  ('claim.json', '{}', '^[^:]*claim.json: a claim must have'),
  ('claim.json', json.dumps({'run': '0', **CLAIM.to_json()}), 'states no run, and .* is of one: '),
  ('strategy.json', None, 'strategy'),
  ('participation.csv', None, 'must hold one log'),
)
def test_refuses_a_folder_that_is_no_run(folder, name, content, message):
  (folder / name).unlink() if content is None else (folder / name).write_text(content)
  with pytest.raises(ValueError, match=message) as raised:
    opened_runs.open_run(folder)
  assert '\n' not in str(raised.value)


@pytest.mark.parametrize('group_size', [1, 2])
def test_a_lower_bound_is_no_guarantee_for_a_group_either(monkeypatch, group_size):
  log = log_of([(0, 'a'), (4, 'a')], 8)
  bound = sensitivities.Sensitivity(1e-3, sensitivities.LOWER_BOUND)
  monkeypatch.setattr(identity.Identity, 'sensitivity', lambda self, schema: bound)
  run = opened_runs.RecordedRun.of(log, identity.Identity(), noise_multiplier=1.0)
  with pytest.raises(ValueError, match='lower_bound'):
    replays.replay(run, delta=1e-6, group_size=group_size)


@made.cases(
  'flags, wanted',
  ([], 'give num_rounds'),
  (['--num_rounds=7'], None),
  (['--num_rounds=6', '--first_round=0'], None),
  (['--num_rounds=7', '--columns=round=device_id,device_id=round'], 'round must be a whole number'),
  (['--strategy=identity'], '--strategy does not go with'),
)
def test_a_folder_takes_what_its_csv_log_does_not_say(folder, capsys, flags, wanted):
  with contextlib.suppress(SystemExit):
    main.main(['replay', str(folder), *flags, '--delta=1e-6', '--json'])
  out, errors = capsys.readouterr()
  assert wanted in errors if wanted else f'"num_rounds": {flags[0][13:]}' in out
  assert wanted or 'num_rounds' not in errors


def shown(log, capsys, *flags):
  """Everything that replay shows of a log."""
  with contextlib.suppress(SystemExit):
    arguments = [f'--log={log}', '--strategy=identity', '--noise_multiplier=2', '--delta=1e-6']
    main.main(['replay', *arguments, '--num_rounds=6', *flags])
  return '\n'.join(capsys.readouterr())


@pytest.mark.parametrize('rounds, flags, wanted', [
  ((0, 2, 3), (), "device 'x', rounds {2} and {3}"),
  ((0, 2, 3), ('--json',), '"first_round": {2},\n    "second_round": {3}'),
  ((0, 1, 5), (), 'first of them {2} to {4}'),
  ((0, 0), (), 'is twice in round {0}'),
  ((0, 7), (), 'round {7} is beyond the 6 rounds'),
  ((0, 2, 3), ('--declared_num_rounds=6', '--declared_min_sep=2'), 'in 1 rounds ({3})'),
  ((0, 4), ('--sampling=fixed_size', '--num_examples=9', '--batch_size=1', '--num_parts=1'),
   'no examples, the first of them round {1}'),
  ((0, 1, 1.5, 2), ('--sampling=fixed_size', '--num_examples=9', '--batch_size=1', '--num_parts=1'),
   'first of them round {1} with 2'),
])  # fmt: skip
def test_rounds_are_shown_as_the_log_numbers_them(tmp_path, capsys, rounds, flags, wanted):
  for first_round in (0, 1, 40):
    log, place = tmp_path / 'l.csv', [f'{first_round + t}' for t in range(8)]
    # A half is another device in the round.
    rows = [f'{first_round + int(t)},{"x" if t == int(t) else "y"}\n' for t in rounds]
    log.write_text('round,device_id\n' + ''.join(rows))
    text = shown(log, capsys, f'--first_round={first_round}', *flags)
    assert wanted.format(*place) in text
