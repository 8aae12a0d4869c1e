"""What one kind of run can do, all can: replay, evidence, status, observers, report, resume."""

import contextlib
import dataclasses
import functools
import json
import shutil

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.run import observers
from tests import made
from tests.commands import lines

STRATEGY = made.BLT
SCHEMA = dpftrl.MinSep(num_rounds=6, min_sep=2)
CLAIM = made.claim(clip_norm=0.5, report_goal=3, participation=SCHEMA)
DEVICES = [f'device{i}' for i in range(9)]
BUDGET = dict(delta=1e-6, max_epsilon=20.0)


class Killed(BaseException):
  """The end of a process, as a loop sees it."""


def cohort(t):
  return DEVICES[t % 3 :: 3]


def any_loop(folder, num_rounds, *, kill_at=None, **options):
  with dpftrl.Run(folder, CLAIM, **BUDGET, **options) as run:
    while run.next_round < num_rounds:
      with run.round(cohort(run.next_round), at_most=3) as round_:
        if round_.row == kill_at:
          raise Killed
        round_.released({'loss': 1.0})
  return run


def sums(folder, num_rounds, *, kill_at=None, **options):
  options |= dict(clip_norm=0.5, report_goal=3, participation=SCHEMA, **BUDGET)
  with made.aggregator(folder, STRATEGY, **options) as run:
    while run.next_round < num_rounds:
      with run.round(cohort(run.next_round)) as round_:
        if round_.index == kill_at:
          raise Killed
        for _ in range(3):
          round_.add(np.ones(3))
  return run


@functools.cache
def process_of_tff():
  import tff_inprocess
  from tests.tff_inprocess import small_processes

  tff_inprocess.use()
  aggregator = made.factory(STRATEGY, clip_norm=0.5, report_goal=3, memory='engine')
  return small_processes.unweighted(aggregator), aggregator, small_processes.clients()


class Last(observers.Observer):
  """Keeps the run that it sees."""

  def begin(self, run, round_index=None):
    self.run = run


def trained(folder, num_rounds, *, kill_at=None, **options):
  process, aggregator, data = process_of_tff()
  last = Last()

  def data_of(t, name):
    if t == kill_at:
      raise KeyError
    return data[int(name[6:]) % len(data)]

  with _killed_by_a_failure():
    dpftrl.train(
      process,
      aggregator,
      folder=folder,
      num_rounds=num_rounds,
      clients=DEVICES,
      client_data=data_of,
      timer_rounds=2,
      seed=options.pop('seed', 1),
      observers=[*options.pop('observers', ()), last],
      **BUDGET,
      **options,
    )
  return last.run


@contextlib.contextmanager
def _killed_by_a_failure():
  try:
    yield
  except RuntimeError as error:
    assert 'resuming goes on with the next one' in str(error)
    raise Killed from error


# A loop in TFF is a program of docs/aggregator.md, which tests/docs runs, kills and resumes.
KINDS = [
  pytest.param(any_loop, id='run'),
  pytest.param(sums, id='aggregator'),
  pytest.param(trained, id='train', marks=[pytest.mark.tff, pytest.mark.slow]),
]
every_kind = pytest.mark.parametrize('kind', KINDS)


@every_kind
def test_a_run_can_be_watched_replayed_reported_and_verified(kind, tmp_path):
  folder = tmp_path / 'run'
  watching = [observers.JsonLines(tmp_path / 'a.jsonl'), observers.OpenMetrics(tmp_path / 'a.prom')]
  finished = kind(folder, 6, observers=watching)
  # Status and statement say the same as the command.
  status, statement = finished.status(), finished.statement()
  assert (status.num_rounds, status.max_rounds) == (6, 6) and status.void_reason is None
  assert statement.declared.guarantee.epsilon() == pytest.approx(status.epsilon)
  assert status.epsilon + status.epsilon_left == pytest.approx(20.0)
  assert finished.privacy_loss().epsilon() == statement.worst_case.epsilon()
  replayed = lines.run(['replay', folder, '--delta=1e-6', '--json'])
  declared = json.loads(replayed.stdout)['declared']
  assert replayed.returncode == 0 and declared['epsilon'] == pytest.approx(status.epsilon)
  # Observers.
  events = [json.loads(line) for line in (tmp_path / 'a.jsonl').read_text().splitlines()]
  released = [event['round'] for event in events if event['event'] == 'released']
  assert released == list(range(6)) and events[-1]['epsilon'] == pytest.approx(status.epsilon)
  assert 'fl_dpftrl_rounds_released_total{' in (tmp_path / 'a.prom').read_text()
  # Report and evidence.
  finished.report(tmp_path / 'privacy.html')
  assert 'zero-out' in (tmp_path / 'privacy.html').read_text()
  dpftrl.write_evidence(tmp_path / 'evidence', dpftrl.open_run(folder), delta=1e-6)
  assert dpftrl.verify(tmp_path / 'evidence').passed


@pytest.mark.tff
@pytest.mark.slow
def test_a_training_goes_on_where_its_population_turned_somebody_away(tmp_path):
  fleet = dpftrl.Population(tmp_path / 'fleet', epsilon=20.0, delta=1e-6)
  fleet.withdraw(DEVICES[:1])
  with pytest.raises(Killed):
    trained(tmp_path / 'run', 6, kill_at=2, population=fleet)
  with pytest.raises(ValueError, match='other devices in round 0'):
    trained(tmp_path / 'run', 6, population=fleet, seed=2)
  statement = trained(tmp_path / 'run', 6, population=fleet).statement()
  assert statement.num_rounds == 6 and statement.num_participations < 6 * 3


@every_kind
def test_a_run_that_is_killed_and_moved_goes_on_and_uses_no_row_twice(kind, tmp_path):
  with pytest.raises(Killed):
    kind(tmp_path / 'run', 6, kill_at=2)
  assert dpftrl.open_run(tmp_path / 'run').log.num_rounds == 3
  shutil.move(tmp_path / 'run', tmp_path / 'elsewhere')
  finished = kind(tmp_path / 'elsewhere', 6)
  log = dpftrl.open_run(tmp_path / 'elsewhere').log
  assert finished.status().num_rounds == log.num_rounds == 6
  assert finished.statement().headline.guarantee.epsilon() < 20.0


@every_kind
def test_a_folder_is_of_one_run(kind, tmp_path):
  kind(tmp_path / 'run', 6)
  claim = made.claim(clip_norm=0.5, participation=dpftrl.MinSep(num_rounds=6, min_sep=3))
  with pytest.raises(ValueError, match='run'):
    dpftrl.Run(tmp_path / 'run', claim)


@every_kind
def test_a_report_goal_stays_and_the_refusal_says_what_to_do(kind, tmp_path):
  kind(tmp_path / 'run', 6)
  claim = dataclasses.replace(dpftrl.open_run(tmp_path / 'run').claim, report_goal=4)
  with pytest.raises(ValueError, match='report_goal=4: .* learning rate of the server by 3/4'):
    dpftrl.Run(tmp_path / 'run', claim)
  assert kind(tmp_path / 'run', 6).next_round == 6


def test_an_own_loop_in_tff_covers_its_bits(tmp_path):
  pytest.importorskip('tensorflow_federated')
  process, aggregator, _ = process_of_tff()
  claim = aggregator.claim(process, participation=SCHEMA)
  assert claim.arithmetic.kind == 'covered'


def test_a_round_releases_once_and_ends_with_its_block(tmp_path):
  seen = []

  class Watching(observers.Observer):
    def begin(self, run, round_index=None):
      seen.append(('begin', round_index))

    def released(self, run, round_index, measurements):
      seen.append(('released', round_index, dict(measurements)))

    def end(self, run, round_index=None, error=None):
      seen.append(('end', round_index, type(error).__name__))

  with dpftrl.Run(tmp_path / 'run', CLAIM, delta=1e-6, observers=[Watching()]) as run:
    with run.round(['a', 'b', 'a'], at_most=2) as round_:
      assert round_.device_ids.tolist() == ['a', 'b'] and round_.row == 0
      with pytest.raises(ValueError, match='round 0 is still open'), run.round(['c']):
        pass
      round_.released({'loss': 2.0})
      with pytest.raises(ValueError, match='round 0 is not open'):
        round_.released()
    with run.round(['a', 'c']) as second:
      assert second.device_ids.tolist() == ['c']
      assert [away.reason for away in second.turned_away] == ['min_sep']
    with contextlib.suppress(KeyError), run.round(['d']):
      raise KeyError
    with pytest.raises(ValueError, match='round 1 is not open'):
      second.released()
    for t in range(3, 6):
      with run.round([f'e{t}']):
        pass
    with pytest.raises(dpftrl.BudgetSpentError), run.round(['f']):
      pass
  with pytest.raises(ValueError, match='the run is closed'), run.round(['e']):
    pass
  assert seen[:3] == [('begin', None), ('begin', 0), ('released', 0, {'loss': 2.0})]
  assert seen[3:5] == [('begin', 1), ('end', 1, 'NoneType')]
  assert seen[5:7] == [('begin', 2), ('end', 2, 'KeyError')]
  assert seen[-1] == ('end', None, 'NoneType')


def test_the_end_of_a_block_ends_no_round_but_its_own(tmp_path):
  """A later round may begin as soon as one has released, or been refused, also in other threads."""
  with dpftrl.Run(tmp_path / 'run', CLAIM, delta=1e-6) as run:
    with contextlib.ExitStack() as later:
      with run.round(['a']) as first:
        first.released()
        second = later.enter_context(run.round(['b']))
      with pytest.raises(ValueError, match='round 1 is still open'), run.round(['c']):
        pass
      with pytest.raises(ValueError, match='round 0 is not open'):
        first.fail()
      second.released()
    assert run.next_round == 2
