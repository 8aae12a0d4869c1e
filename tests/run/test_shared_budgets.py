"""Runs side by side that draw on one budget of each device."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import ledgers, population_ledger, refusals, unit_tables
from fl_dpftrl.participation.accounting import arithmetics
from fl_dpftrl.run import shared_budgets
from fl_dpftrl.support.files import mark
from tests import every_participation, made, pages

_IDS = [f'd{i}' for i in range(6)]
_BLT = dpftrl.load_strategy('blt-b100')


def _claim(strategy='identity', noise_multiplier=5.0, **more) -> dpftrl.Claim:
  more = dict(participation=dpftrl.MinSep(50, 1, 50)) | more
  return made.claim(strategy, noise_multiplier=noise_multiplier, **more)


@pytest.fixture
def fleet(tmp_path):
  return dpftrl.Population(tmp_path / 'fleet', epsilon=4.0, delta=1e-6)


def _rounds(run, num_rounds=1, ids=_IDS):
  cohorts = []
  for _ in range(num_rounds):
    with run.round(ids) as round_:
      round_.released()
    cohorts.append(list(round_.device_ids))
  return cohorts


def _sums(folder, fleet, strategy=_BLT, **more) -> dpftrl.PrivateAggregator:
  options = dict(noise_multiplier=40.0, participation=dpftrl.MinSep(50, 1, 50), population=fleet)
  return made.aggregator(folder / 'run1', strategy, **options | more)


def _losses(folder: pathlib.Path) -> dict[str, float]:
  """Returns μ² of each device, counted anew from the logs of runs of identity."""
  losses = dict[str, float]()
  for path in sorted(folder.glob('run*')):
    run = dpftrl.open_run(path)
    for table in run.log.tables():
      for device_id in table.column('device_id').to_pylist():
        losses[device_id] = losses.get(device_id, 0.0) + run.claim.noise_multiplier**-2
  return losses


def test_two_runs_spend_one_budget(tmp_path, fleet):
  mu_square = fleet.claim.mu('everybody') ** 2
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as one:
    with dpftrl.Run(tmp_path / 'run2', _claim(noise_multiplier=8.0), population=fleet) as two:
      while one.admissible(_IDS).size:
        _rounds(one)
        _rounds(two)
      while two.admissible(_IDS).size:
        _rounds(two)
      for run in (one, two):
        with pytest.warns(UserWarning, match='admits no device'), run.round(_IDS) as round_:
          assert round_.turned_away[0].reason == 'population_life'
          assert 'of any run' in round_.turned_away[0].sentence
  losses = _losses(tmp_path)
  assert max(losses.values()) <= mu_square
  assert max(losses.values()) + 8.0**-2 > mu_square  # No further round fits.
  assert fleet.status()['charged_share'] == pytest.approx(
    (max(losses.values()) / mu_square) ** 0.5, rel=1e-9
  )


def test_another_object_of_the_population_sees_the_charges(tmp_path, fleet):
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    _rounds(run, 3)
  again = dpftrl.Population(tmp_path / 'fleet')
  assert again.status() == fleet.status()
  assert again.status()['num_rounds'] == 3


def test_a_run_goes_on_only_with_its_population(tmp_path, fleet):
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    _rounds(run)
  with pytest.raises(refusals.LogError, match='is of another run: population'):
    dpftrl.Run(tmp_path / 'run1', _claim())
  other = dpftrl.Population(tmp_path / 'other', epsilon=4.0, delta=1e-6)
  with pytest.raises(refusals.LogError, match='is of another run: population'):
    dpftrl.Run(tmp_path / 'run1', _claim(), population=other)
  with pytest.raises(ValueError, match='population: the claim names one'):
    dpftrl.Run(tmp_path / 'run2', _claim(population='0' * 32))
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    assert run.next_round == 1


def test_a_run_that_began_without_a_population_is_refused(tmp_path, fleet):
  with dpftrl.Run(tmp_path / 'run1', _claim()) as run:
    _rounds(run)
  with pytest.raises(refusals.LogError, match='is of another run: population'):
    dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet)


@pytest.mark.parametrize('epsilon, delta', [(4.0, 1e-300), (700.0, 1e-6)])
def test_a_budget_that_whole_numbers_do_not_prove_is_refused(epsilon, delta, tmp_path):
  """`status` would say an ε that no statement has."""
  fleet = dpftrl.Population(tmp_path / 'fleet', epsilon=epsilon, delta=delta)
  with pytest.raises(ValueError, match='not proven for releases in whole numbers'):
    _sums(tmp_path, fleet)


@pytest.mark.parametrize(
  'claim, message',
  [
    (lambda: _claim(participation=None), 'must have a participation'),
    (lambda: _claim(noise_multiplier=0.0, participation=dpftrl.MinSep(5)), 'without noise'),
    (lambda: _claim(void_reason='a test'), 'a test'),
    (lambda: _claim(participation=dpftrl.SecretBins(50, 10)), 'draws amplify only their own run'),
  ],
)
def test_claims_that_no_budget_can_be_charged_for(tmp_path, fleet, claim, message):
  with pytest.raises(ValueError, match=message):
    dpftrl.Run(tmp_path / 'run1', claim(), population=fleet)
  assert fleet.status()['num_runs'] == 0


def test_budgets_are_those_of_before(tmp_path, fleet):
  with pytest.raises(ValueError, match='must be those of before'):
    dpftrl.Population(tmp_path / 'fleet', epsilon=5.0, delta=1e-6)
  assert dpftrl.Population(tmp_path / 'fleet', epsilon=4.0, delta=1e-6).claim == fleet.claim
  with pytest.raises(ValueError, match='give epsilon and delta'):
    dpftrl.Population(tmp_path / 'new')
  with pytest.raises(ValueError, match='together'):
    dpftrl.Population(tmp_path / 'new', epsilon=1.0)
  assert not (tmp_path / 'new').exists()


def test_classes(tmp_path):
  fleet = dpftrl.Population(
    tmp_path / 'fleet', epsilon={'adult': 4.0, 'minor': 2.0}, delta=1e-6, default=None
  )
  fleet.classify(['d0', 'd1'], 'adult')
  fleet.classify(['d2'], 'minor')
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    with run.round(_IDS) as round_:
      assert list(round_.device_ids) == ['d0', 'd1', 'd2']
      assert round_.turned_away[0].reason == 'class'
    for _ in range(20):
      with run.round(['d0', 'd2'] if run.next_round < 19 else ['d0', 'd1']) as round_:
        pass
  times = _losses(tmp_path)
  mu = {name: fleet.claim.mu(name) for name in ('adult', 'minor')}
  assert times['d0'] <= mu['adult'] ** 2 < times['d0'] + 1 / 25
  assert times['d2'] <= mu['minor'] ** 2 < times['d2'] + 1 / 25
  with pytest.raises(ValueError, match='name must be a class'):
    fleet.classify(['d9'], 'elder')


def test_a_participation_of_a_users_own_draws_on_the_population(tmp_path, fleet):
  claim = made.claim('identity', noise_multiplier=8.0, participation=every_participation.Once(5))
  with dpftrl.Run(tmp_path / 'run', claim, population=fleet) as run:
    for t in range(3):
      with run.round(['a', str(t)]) as round_:
        assert round_.device_ids.tolist() == (['a', '0'] if t == 0 else [str(t)])
    assert run.status().devices_with_budget is None
  assert fleet.status()['charged_share'] == pytest.approx(1.0 / 8.0 / fleet.claim.mu('everybody'))


def test_who_withdraws_is_turned_away_in_every_run(tmp_path, fleet):
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    _rounds(run)
    fleet.withdraw(['d1', 'never seen'])
    (cohort,) = _rounds(run)
    assert cohort == ['d0', 'd2', 'd3', 'd4', 'd5']
  with dpftrl.Run(tmp_path / 'run2', _claim(), population=fleet) as run:
    with run.round([*_IDS, 'never seen']) as round_:
      assert [each.device_id for each in round_.turned_away] == ['d1', 'never seen']
      assert round_.turned_away[0].sentence == "device 'd1' withdrew from the population"
  fleet.withdraw(['d1'])  # Again, as a client that repeats its request.
  assert fleet.status()['num_withdrawn'] == 2


def test_ids_have_one_type_and_one_spelling_in_all_runs(tmp_path, fleet):
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    _rounds(run, ids=['7', '8'])
  with dpftrl.Run(tmp_path / 'run2', _claim(), population=fleet) as run:
    with pytest.raises(ValueError, match='one type in all runs'):
      _rounds(run, ids=[7, 9])
    with run.round(['+7', '9']) as round_:
      assert list(round_.device_ids) == ['9']
      assert round_.turned_away[0].reason == 'spelling'
    assert _rounds(run, ids=['7', '9']) == [['7', '9']]
  assert fleet.status()['num_rounds'] == 3
  # 1e5 is a number where all ids are: of those that are left out, and of other runs, none counts.
  for name, ids, at_most in (('run1', ['1e5', '8', 'abc'], 1), ('run3', ['8', '1e5'], None)):
    with dpftrl.Run(tmp_path / name, _claim(), population=fleet) as run:
      with run.round(ids, at_most=at_most) as round_:
        assert list(round_.device_ids) == ['8'] and len(round_.turned_away) == 1
    assert dpftrl.replay(tmp_path / name, delta=1e-6).num_devices


def test_people_with_several_devices(tmp_path):
  fleet = dpftrl.Population(tmp_path / 'fleet', epsilon=4.0, delta=1e-6, unit='person')
  schema = dpftrl.PerUnit(dpftrl.MinSep(40, 1, 40), max_rows=2)
  units = tmp_path / 'units.csv'
  units.write_text('device_id,unit_id,from_round\na1,a,0\na2,a,0\nb1,b,0\n')
  with dpftrl.Run(
    tmp_path / 'run1', _claim(participation=schema), population=fleet, units=units
  ) as run:
    while _rounds(run, ids=['a1', 'a2', 'b1'])[0][:2] == ['a1', 'a2']:
      pass
    rounds = run.next_round - 1
  mu = fleet.claim.mu('everybody')
  # Two rows in a round cost the square of two.
  assert rounds == int(mu**2 * 25 / 4)
  again = dpftrl.Population(tmp_path / 'fleet')
  assert again.status() == fleet.status()


def test_ids_of_people_have_one_type_and_one_spelling_in_all_runs(tmp_path):
  fleet = dpftrl.Population(tmp_path / 'fleet', epsilon=4.0, delta=1e-6, unit='person')
  claim = _claim(participation=dpftrl.PerUnit(dpftrl.MinSep(40)))
  for owner, message in (('7', None), (7, 'of one type'), ('07', 'zeros')):
    units = unit_tables.UnitTable('u', pa.array(['a1']), pa.array([owner]), np.zeros(1, int))
    with dpftrl.Run(tmp_path / f'run{message}', claim, population=fleet, units=units) as run:
      with pytest.raises(ValueError, match=message) if message else contextlib.nullcontext():
        _rounds(run, ids=['a1'])


def test_a_run_that_has_ended_takes_no_round(tmp_path, fleet):
  with dpftrl.Run(tmp_path / 'run1', _claim(_BLT, 6.0), population=fleet) as run:
    _rounds(run, 2)
    with pytest.raises(ValueError, match='held by another process'):
      fleet.end(tmp_path / 'run1', noise_is_deleted=True)
  before = fleet.status()['charged_share']
  with pytest.raises(ValueError, match='the noise of this run is elsewhere'):
    fleet.end(tmp_path / 'run1')
  fleet.end(tmp_path / 'run1', noise_is_deleted=True)
  assert 0.0 < fleet.status()['charged_share'] < before
  with dpftrl.Run(tmp_path / 'run1', _claim(_BLT, 6.0), population=fleet) as run:
    with pytest.raises(ValueError, match='over for ever'):
      _rounds(run)
  fleet.end(tmp_path / 'run1', noise_is_deleted=True)  # Again.
  assert dpftrl.Population(tmp_path / 'fleet').status() == fleet.status()
  with pytest.raises(ValueError, match='is no folder'):
    fleet.end(tmp_path / 'run9')


def test_a_private_aggregator_draws_on_the_population(tmp_path, fleet):
  with _sums(tmp_path, fleet, 'identity', noise_multiplier=5.0) as aggregator:
    for round_ in aggregator.rounds([['a', 'b', 'c'], ['a', 'b', 'd']]):
      with round_:
        for _ in range(3):
          round_.add(np.ones(3))
    made.release(aggregator, 'abc')
  assert fleet.status()['num_rounds'] == 3
  assert _losses(tmp_path) == pytest.approx({'a': 0.12, 'b': 0.12, 'c': 0.08, 'd': 0.04})


# Crashes: a reservation without its round in the log, and ledgers of an earlier moment.


class _Interrupted(Exception):
  pass


def _full_once(monkeypatch):
  """Makes the next write of a log fail, whose round is reserved then."""
  begin = ledgers.LogWriter.begin

  def fails(*args, **kwargs):
    monkeypatch.setattr(ledgers.LogWriter, 'begin', begin)
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(ledgers.LogWriter, 'begin', fails)


def test_a_reservation_without_its_round_is_a_round_that_was_begun(tmp_path, fleet, monkeypatch):
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    _rounds(run)
    _full_once(monkeypatch)
    with pytest.raises(OSError, match='No space'):
      _rounds(run)
    assert run.next_round == 1
    _rounds(run)
    assert run.next_round == 3
  assert fleet.status()['num_rounds'] == 3
  assert len(list(dpftrl.open_run(tmp_path / 'run1').log.tables())) >= 1
  assert _losses(tmp_path)['d0'] == pytest.approx(3 / 25)


def test_a_reservation_that_fails_changes_nothing(tmp_path, fleet, monkeypatch):
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    _rounds(run)

    def fails(*args, **kwargs):
      raise OSError(28, 'No space left on device')

    with monkeypatch.context() as patched:
      patched.setattr(population_ledger.PopulationLedger, 'append', fails)
      with pytest.raises(OSError, match='No space'):
        _rounds(run)
    share = fleet.status()['charged_share']
    assert fleet.status()['num_rounds'] == 1
    _rounds(run)
    assert fleet.status()['charged_share'] == pytest.approx(share * 2**0.5)


def _copy(folder: pathlib.Path) -> pathlib.Path:
  copy = folder.with_name(f'{folder.name} of before')
  shutil.copytree(folder, copy)
  return copy


@pytest.mark.parametrize('names', [['population.ledger'], ['population.ledger', 'population.mark']])
def test_a_ledger_of_an_earlier_moment_is_refused(tmp_path, fleet, names):
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    _rounds(run, 2)
    copy = _copy(tmp_path / 'fleet')
    _rounds(run, 2)
  for name in names:
    shutil.copyfile(copy / name, tmp_path / 'fleet' / name)
  earlier = (refusals.LogError, mark.LostStateError)
  with pytest.raises(earlier):
    fleet.status()
  with pytest.raises(earlier, match='earlier moment|put the newest|was put back'):
    fresh = dpftrl.Population(tmp_path / 'fleet')
    dpftrl.Run(tmp_path / 'run1', _claim(), population=fresh)
  with pytest.raises(earlier, match='earlier moment|put the newest'):  # Its own log tells.
    fresh = dpftrl.Population(tmp_path / 'fleet', moved=True)
    dpftrl.Run(tmp_path / 'run1', _claim(), population=fresh)


def test_a_log_of_an_earlier_moment_is_refused(tmp_path, fleet):
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    _rounds(run, 2)
  copy = _copy(tmp_path / 'run1')
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    _rounds(run, 2)
  shutil.rmtree(tmp_path / 'run1')
  copy.rename(tmp_path / 'run1')
  # Rounds that it lacks are taken over from the population, as after a crash.
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    assert run.next_round == 4


@pytest.mark.parametrize('name', ['population.ledger', 'population.mark'])
def test_files_that_are_gone(tmp_path, fleet, name):
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    _rounds(run)
  (tmp_path / 'fleet' / name).unlink()
  with pytest.raises((refusals.LogError, mark.LostStateError, ValueError), match=name):
    dpftrl.Population(tmp_path / 'fleet')


def test_flipped_bytes_are_noticed(tmp_path, fleet):
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    _rounds(run, 3)
  path = tmp_path / 'fleet' / 'population.ledger'
  content = path.read_bytes()
  place = content.index(b'"ids":"') if b'"ids":"' in content else content.index(b'd0\\nd1')
  path.write_bytes(content[:place] + b'X' + content[place + 1 :])
  with pytest.raises(refusals.LogError, match='damaged'):
    dpftrl.Population(tmp_path / 'fleet')


# Processes side by side.

_WORKER = """
import sys
import numpy as np
import fl_dpftrl as dpftrl
folder, name, seed, sigma = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
import warnings
warnings.simplefilter('ignore')
fleet = dpftrl.Population(f'{folder}/fleet')
claim = dpftrl.Claim(
  strategy='identity', noise_multiplier=sigma, participation=dpftrl.MinSep(10_000, 1, 10_000)
)
rng = np.random.default_rng(seed)
print('ready', flush=True)
with dpftrl.Run(f'{folder}/{name}', claim, population=fleet) as run:
  while run.next_round < run.max_rounds:
    ids = [f'd{i}' for i in sorted(rng.choice(40, 12, replace=False))]
    with run.round(ids) as round_:
      print(run.next_round - 1, *round_.device_ids, flush=True)
      round_.released()
"""


def _start(folder: pathlib.Path, name: str, seed: int, sigma: float) -> subprocess.Popen:
  return subprocess.Popen(
    [sys.executable, '-c', textwrap.dedent(_WORKER), str(folder), name, str(seed), str(sigma)],
    stdout=subprocess.PIPE,
    text=True,
  )


@pytest.mark.slow
def test_processes_that_are_killed_at_any_moment(tmp_path):
  rng = np.random.default_rng(5)
  dpftrl.Population(tmp_path / 'fleet', epsilon=20.0, delta=1e-6)
  released = dict[tuple[str, int], list[str]]()
  sigmas = {'run1': 20.0, 'run2': 30.0, 'run3': 15.0}
  workers = dict[str, subprocess.Popen]()
  try:
    for kill in range(7):
      for name in sigmas:
        if name not in workers or workers[name].poll() is not None:
          workers[name] = _start(tmp_path, name, kill, sigmas[name])
          assert workers[name].stdout.readline() == 'ready\n'
      with contextlib.suppress(subprocess.TimeoutExpired):
        workers['run1'].wait(rng.uniform(0.0, 0.3))
      name = list(sigmas)[int(rng.integers(3))]
      workers[name].send_signal(signal.SIGKILL)
      _note(released, name, workers.pop(name).communicate()[0])
  finally:
    for name, worker in workers.items():
      worker.kill()
      _note(released, name, worker.communicate()[0])
  fleet = dpftrl.Population(tmp_path / 'fleet')
  for name, sigma in sigmas.items():
    claim = _claim(noise_multiplier=sigma, participation=dpftrl.MinSep(10_000, 1, 10_000))
    with dpftrl.Run(tmp_path / name, claim, population=fleet) as run:
      assert run.next_round > 0
  losses = _losses(tmp_path)
  share = max(losses.values()) ** 0.5 / fleet.claim.mu('everybody')
  assert share <= 1.0
  assert fleet.status()['charged_share'] == pytest.approx(share, rel=1e-9)
  logs = {name: _cohorts(tmp_path / name) for name in sigmas}
  for (name, t), ids in released.items():  # What was handed out is in the log.
    assert logs[name][t] == sorted(ids)


def _cohorts(folder: pathlib.Path) -> dict[int, list[str]]:
  cohorts = dict[int, list[str]]()
  for table in dpftrl.open_run(folder).log.tables():
    for t, device_id in zip(*(table.column(i).to_pylist() for i in range(2))):
      cohorts.setdefault(t, []).append(device_id)
  return cohorts


def _note(released: dict[tuple[str, int], list[str]], name: str, output: str) -> None:
  for line in output.splitlines():
    t, *ids = line.split()
    if not line.startswith('ready'):
      assert (name, int(t)) not in released  # No row twice.
      released[name, int(t)] = ids


# A loss of power between any two writes.


def _snapshots(tmp_path, patched):
  """Copies all files before and after each durable step; returns the list that grows."""
  from fl_dpftrl.logs import ledgers

  copies = []

  def copy():
    target = tmp_path.with_name(f'{tmp_path.name} at {len(copies)}')
    shutil.copytree(tmp_path, target)
    copies.append(target)

  def around(owner, name):
    step = getattr(owner, name)

    def stepped(self, *args, **kwargs):
      copy()
      result = step(self, *args, **kwargs)
      copy()
      return result

    patched.setattr(owner, name, stepped)

  around(population_ledger.PopulationLedger, 'append')
  around(mark.MarkFile, 'write')
  around(ledgers.LogWriter, '_commit')
  return copies


def test_a_loss_of_power_between_any_two_writes(tmp_path, monkeypatch):
  base = tmp_path / 'all'
  base.mkdir()
  dpftrl.Population(base / 'fleet', epsilon=4.0, delta=1e-6)
  with monkeypatch.context() as patched:
    copies = _snapshots(base, patched)
    fleet = dpftrl.Population(base / 'fleet')
    with dpftrl.Run(base / 'run1', _claim(), population=fleet) as run:
      _rounds(run, 2)
  assert len(copies) > 20
  for copy in copies:
    fleet = dpftrl.Population(copy / 'fleet', moved=True)
    reserved = fleet.status()['num_rounds']
    with dpftrl.Run(copy / 'run1', _claim(), population=fleet) as run:
      assert run.next_round == reserved  # Whatever was reserved was begun.
      _rounds(run)
    losses = _losses(copy)
    assert losses['d0'] == pytest.approx((reserved + 1) / 25)
    share = losses['d0'] ** 0.5 / fleet.claim.mu('everybody')
    assert fleet.status()['charged_share'] == pytest.approx(share, rel=1e-9)


def test_a_round_of_sums_after_a_reservation_without_its_round(tmp_path, fleet, monkeypatch):
  with _sums(tmp_path, fleet) as aggregator:
    assert made.release(aggregator, 'abc').index == 0
    _full_once(monkeypatch)
    with pytest.raises(OSError, match='No space'):
      made.release(aggregator, 'abc')
    assert made.release(aggregator, 'abc').index == 2
  with _sums(tmp_path, fleet) as aggregator:
    assert made.release(aggregator, 'abc').index == 3


def test_the_programs_of_the_page(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  names = {}
  for program in pages.programs('population-budget.md'):
    exec(compile(program, 'population-budget.md', 'exec'), names)
  printed = capsys.readouterr().out
  assert 'ε = 4 at δ = 1e-06, of any number of runs and rounds' in printed
  assert names['fleet'].status()['num_rounds'] == 8
  assert names['school'].claim.default is None


def test_a_round_of_too_few_is_refused_before_it_is_charged(tmp_path, fleet):
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    assert run.delta == fleet.claim.delta  # As none was given.
    fleet.withdraw(_IDS[:3])
    with pytest.raises(ValueError, match='at_least=4: only 3 may .* round 0 .3 by withdrawn.'):
      with run.round(_IDS, at_least=4):
        pass
    assert run.next_round == 0 == fleet.status()['num_rounds']
    with run.round(_IDS, at_least=3) as round_:
      assert repr(round_.turned_away[0]) == "TurnedAway(device 'd0' withdrew from the population)"
    assert fleet.status()['num_rounds'] == 1


def test_the_noise_of_a_run_that_ended_is_gone(tmp_path, fleet, monkeypatch):
  with _sums(tmp_path, fleet, max_epsilon=2.0) as aggregator:
    made.release(aggregator, 'abc')
  assert aggregator.delta == fleet.claim.delta and (tmp_path / 'run1' / 'noise').exists()
  with monkeypatch.context() as patched:  # Killed once it is deleted.
    patched.setattr(shared_budgets.durable, 'sync_folder', lambda folder: 1 / 0)
    with pytest.raises(ZeroDivisionError):
      fleet.end(tmp_path / 'run1')
  assert not (tmp_path / 'run1' / 'noise').exists()
  fleet.end(tmp_path / 'run1')
  statement = dpftrl.replay(tmp_path / 'fleet', delta=1e-6)
  assert any('of each run that ended (1)' in sentence for sentence in statement.assumptions)


# What an attack found.


def test_who_is_named_before_the_first_round_is_found_in_it(tmp_path):
  fleet = dpftrl.Population(
    tmp_path / 'fleet', epsilon={'a': 4.0, 'b': 0.3}, delta=1e-6, default='a'
  )
  fleet.withdraw(['7'])
  fleet.classify(['8'], 'b')
  for ids, message in (([7], 'of one type'), (['07'], 'zeros')):
    with pytest.raises(ValueError, match=message):
      fleet.withdraw(ids)
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    with pytest.raises(ValueError, match='one type'):
      run.round([7, 8]).__enter__()
    with run.round(['7', '8', '9', '08']) as round_:
      assert list(round_.device_ids) == ['9']


def test_people_who_withdraw_before_the_first_round(tmp_path):
  fleet = dpftrl.Population(tmp_path / 'fleet', epsilon=4.0, delta=1e-6, unit='person')
  fleet.withdraw(['b'])
  units = tmp_path / 'units.csv'
  units.write_text('device_id,unit_id,from_round\na1,a,0\nb1,b,0\n')
  schema = dpftrl.PerUnit(dpftrl.MinSep(40, 1, 40))
  with dpftrl.Run(
    tmp_path / 'run1', _claim(participation=schema), population=fleet, units=units
  ) as run:
    with run.round(['a1', 'b1']) as round_:
      assert list(round_.device_ids) == ['a1']


@pytest.mark.parametrize('step', ['end', 'withdraw', 'classify'])
def test_a_record_whose_mark_fails_is_taken_all_the_same(tmp_path, monkeypatch, step):
  fleet = dpftrl.Population(
    tmp_path / 'fleet', epsilon={'a': 4.0, 'b': 0.3}, delta=1e-6, default='a'
  )
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    _rounds(run)
  steps = {
    'end': lambda: fleet.end(tmp_path / 'run1', noise_is_deleted=True),
    'withdraw': lambda: fleet.withdraw(['d0']),
    'classify': lambda: fleet.classify(['d0'], 'b'),
  }

  def fails(self, **changes):
    raise OSError(5, 'Input/output error')

  with monkeypatch.context() as patched:
    patched.setattr(mark.MarkFile, 'write', fails)
    with pytest.raises(OSError, match='Input/output'):
      steps[step]()
  steps[step]()  # Again, as one would.
  again = dpftrl.Population(tmp_path / 'fleet')
  assert again.status()['num_rounds'] == 1
  with dpftrl.Run(tmp_path / 'run2', _claim(), population=fleet) as run:
    with run.round(_IDS) as round_:
      assert ('d0' in round_.device_ids) == (step == 'end')


def test_a_ledger_of_as_many_other_records_is_refused(tmp_path, fleet):
  shutil.copytree(tmp_path / 'fleet', tmp_path / 'other')
  dpftrl.Population(tmp_path / 'other', moved=True).withdraw(['b'])
  fleet.withdraw(['a'])
  shutil.copyfile(*(tmp_path / name / population_ledger.NAME for name in ('other', 'fleet')))
  for read in (dpftrl.Population, population_ledger.read):
    with pytest.raises(refusals.LogError, match='other records than population.mark says'):
      read(tmp_path / 'fleet')


def test_a_run_that_nobody_could_read_is_not_opened(tmp_path, fleet):
  signed = dpftrl.BandedToeplitz([1.0, 0.5, -0.8])
  covered = dict(arithmetic=arithmetics.Arithmetic.covered(10))
  claim = _claim(signed, participation=dpftrl.MinSep(None, 1, 5), **covered)
  with pytest.raises(ValueError):
    dpftrl.Run(tmp_path / 'run1', claim, population=fleet)
  with dpftrl.Run(tmp_path / 'run2', _claim(), population=fleet) as run:
    _rounds(run)
  assert dpftrl.Population(tmp_path / 'fleet').status()['num_rounds'] == 1


def test_a_copy_of_a_run_that_ended_takes_no_round(tmp_path, fleet):
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    _rounds(run)
  shutil.copytree(tmp_path / 'run1', tmp_path / 'copy')
  fleet.end(tmp_path / 'run1', noise_is_deleted=True)
  with dpftrl.Run(tmp_path / 'copy', _claim(), population=fleet) as run:
    with pytest.raises(ValueError, match='over for ever'):
      _rounds(run)
  assert dpftrl.Population(tmp_path / 'fleet').status()['num_rounds'] == 1


def test_a_folder_that_was_put_back_is_refused_unless_it_was_moved(tmp_path, fleet):
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    _rounds(run)
  copy = _copy(tmp_path / 'fleet')
  with pytest.raises(mark.LostStateError, match='is a copy, or was put back'):
    dpftrl.Population(copy)
  assert dpftrl.Population(copy, moved=True).status()['num_rounds'] == 1
  assert dpftrl.Population(copy).status()['num_rounds'] == 1
  os.rename(tmp_path / 'fleet', tmp_path / 'renamed')  # The same files.
  assert dpftrl.Population(tmp_path / 'renamed').status()['num_rounds'] == 1


def test_a_process_that_was_held_up_as_it_wrote_the_mark_locks_nobody_out(
  tmp_path, fleet, monkeypatch
):
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    now = mark.time.time_ns
    with monkeypatch.context() as patched:
      patched.setattr(mark, '_MOST_TRIES', 1)  # It ended there.
      patched.setattr(mark.time, 'time_ns', lambda: now() - 10**9)
      _rounds(run)
    _rounds(run)
  assert dpftrl.Population(tmp_path / 'fleet').status()['num_rounds'] == 2


@pytest.mark.parametrize('timestamp', ['x', 1.5, True, float('nan'), 10**30, -(10**15)])
def test_a_time_that_the_log_refuses_is_not_reserved(tmp_path, fleet, timestamp):
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    with pytest.raises((ValueError, TypeError)):
      with run.round(_IDS, timestamp=timestamp):
        pass
    assert fleet.status()['num_rounds'] == 0
    _rounds(run)
  assert fleet.status()['num_rounds'] == 1


def test_a_status_within_a_round_that_begins_loses_no_charge(tmp_path, fleet, monkeypatch):
  reserve = dpftrl.Population.reserve

  def interrupted(self, *args):
    self.status()  # As a signal handler may.
    assert run.admissible(_IDS).size
    return reserve(self, *args)

  monkeypatch.setattr(dpftrl.Population, 'reserve', interrupted)
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    _rounds(run, 3)
  assert _losses(tmp_path)['d0'] == pytest.approx(3 / 25)
  assert fleet.status() == dpftrl.Population(tmp_path / 'fleet').status()
  assert fleet.status()['charged_share'] > 0.0


def test_what_is_no_population_is_refused_in_one_line(tmp_path, fleet):
  with pytest.raises(ValueError, match='population must be a Population'):
    dpftrl.Run(tmp_path / 'run1', _claim(), population='fleet')
  with pytest.raises(ValueError, match='default must be a class'):
    dpftrl.Population(tmp_path / 'new', epsilon=1.0, delta=1e-6, default=[])
  with pytest.raises(ValueError, match='name must be a class'):
    fleet.classify(['a'], [])
  (tmp_path / 'empty').mkdir()
  with pytest.raises(ValueError, match='is no folder of a run'):
    fleet.end(tmp_path / 'empty', noise_is_deleted=True)
  assert not list((tmp_path / 'empty').iterdir())
