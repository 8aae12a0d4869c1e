"""A Ctrl-C at any instruction of a round leaves a run that goes on, with each round once."""

import collections
import contextlib
import functools
import random
import sqlite3
import weakref

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import ledger_format, ledgers, log_tables, participation_log
from fl_dpftrl.run import live_round, noise_rows, noised_sums
from fl_dpftrl.run.observers import observer
from fl_dpftrl.support.files import durable, mark
from tests import every_family, made
from tests.run import interrupts

STRATEGY = every_family.example('banded', 40)
SCHEMA = dpftrl.MinSep(num_rounds=40, min_sep=2)
CLAIM = made.claim(STRATEGY, participation=SCHEMA)
NUM_ROUNDS, NUM_LOOPS = 2, 20


def cohort(t):
  return [f'{t % 3}-{i}' for i in range(2)]


class AnyRun:
  def open(self, folder):
    return dpftrl.Run(folder, CLAIM, delta=1e-6)

  def next(self, run):
    return run.next_round

  def round(self, run):
    with run.round(cohort(run.next_round), timestamp=5) as round_:
      round_.released()
    return round_.row, tuple(round_.device_ids.tolist())


class Aggregator:
  def open(self, folder):
    return made.aggregator(folder, STRATEGY, participation=SCHEMA, metrics={'loss': 1.0})

  def next(self, aggregator):
    return aggregator.next_round

  def round(self, aggregator):
    self.last = aggregator.round(cohort(aggregator.next_round))
    with self.last as round_:
      for _ in range(2):
        round_.add(np.full(3, 0.1), metrics={'loss': 0.5})
    return round_.index, round_.mean.tobytes()


class Rows:
  def open(self, folder):
    return dpftrl.NoiseRows(STRATEGY, 4, folder=folder)

  def next(self, rows):
    return rows.next_row

  def round(self, rows):
    t = rows.next_row
    return t, rows.row(t).tobytes()


class Released(observer.Observer):
  def __init__(self, released):
    self._released = released

  def released(self, run, round_index, measurements):
    self._released[round_index].add(measurements['aggregator/row'])


KINDS = {'run': AnyRun(), 'aggregator': Aggregator(), 'rows': Rows()}


def go_on(kind, folder, released, begin=lambda: None, survives=False, num_rounds=NUM_ROUNDS):
  """Runs rounds; notes what was released by round, and starts to count interrupts with `begin`.

  Args:
    survives: whether the loop goes on with the same object after an interrupt in a round.
  """
  if kind == 'train':
    from tests.tff.training import small_runs  # It needs TensorFlow.

    begin()
    small_runs.run(folder, observers=[Released(released)], num_rounds=num_rounds)
    return
  kind = KINDS[kind]
  with kind.open(folder) as opened:
    begin()
    while kind.next(opened) < num_rounds:
      try:
        t, values = kind.round(opened)
        released[t].add(values)
      except KeyboardInterrupt:
        if not survives:
          raise
        if getattr(kind, 'last', None) and kind.last.is_open:  # It came as the block was left.
          kind.last.fail()


def check(kind, folder, released):
  """Asserts that each round is in the log once, and that ledger, mark and Parquet agree."""
  assert all(len(values) == 1 for values in released.values())
  rows = [row for values in released.values() for row in values]
  assert kind == 'run' or len(set(rows)) == len(rows)
  if kind == 'rows':
    return
  log = participation_log.read_log(folder / ledger_format.NAME)  # Compares it with its ledger.
  assert (folder / ledger_format.NAME).exists()
  assert mark.read(ledger_format.mark_of(folder / ledger_format.NAME)).num_rounds == log.num_rounds
  assert log.num_rounds > max(released, default=-1)
  found = collections.Counter(
    (r['round'], r['device_id']) for t in log.tables() for r in t.to_pylist()
  )
  assert max(found.values()) == 1
  if kind != 'train':
    assert set(found) == {(t, device) for t in range(log.num_rounds) for device in cohort(t)}


def attempt(kind, folder, at, survives):
  """Interrupts a run, and opens it again, which any lock that is left would forbid; says where."""
  folder.mkdir()
  released = collections.defaultdict(set)
  interrupter = interrupts.Interrupter(at)
  interrupter.run(lambda: go_on(kind, folder, released, interrupter.begin, survives))
  go_on(kind, folder, released)
  check(kind, folder, released)
  return interrupter


@pytest.mark.slow
@pytest.mark.parametrize('kind', [*KINDS, pytest.param('train', marks=pytest.mark.tff)])
def test_an_interrupt_at_any_instruction_of_a_round_locks_nobody_out(kind, tmp_path):
  for number in range(2):  # The first loads what later ones have.
    num_places = attempt(kind, tmp_path / f'whole {number}', None, False).count
  draws, num_interrupted = random.Random(1), 0
  for number in range(NUM_LOOPS):
    at = draws.randrange(1, num_places)
    where = attempt(kind, tmp_path / f'{number}', at, number % 2 == 1).where
    num_interrupted += where is not None
  assert num_interrupted > NUM_LOOPS // 3  # Some take fewer instructions than were counted.


@contextlib.contextmanager
def interrupted(owner, name, is_due=lambda *args: True):
  """Interrupts the first call of a function for which it is due; yields the interrupts, kept.

  A trace would keep the variables of all frames.
  """
  interrupts, function = [], getattr(owner, name)

  def interrupting(*args, **options):
    if is_due(*args) and not has_come:
      has_come.append(True)
      if name in ('__enter__', 'connected'):  # The interrupt comes once all is begun.
        function(*args)
      raise KeyboardInterrupt
    return function(*args, **options)

  has_come = []
  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(owner, name, interrupting)
    try:
      yield interrupts
    except KeyboardInterrupt as error:
      interrupts.append(error)


@made.cases(
  'kind, owner, name',
  *[(kind, durable, 'is_at') for kind in KINDS],
  *[(kind, live_round.Turns, '__init__') for kind in ('run', 'aggregator')],
  *[(kind, observer.Observers, 'begin') for kind in ('run', 'aggregator')],
  ('aggregator', noised_sums.NoisedSums, '__init__'),
  ('rows', noise_rows.NoiseRows, '_source'),
  *[(kind, ledgers, '_close') for kind in ('run', 'aggregator')],
  *[(kind, ledger_format, 'connected') for kind in ('run', 'aggregator')],
)
def test_an_interrupt_that_is_kept_locks_nobody_out(kind, owner, name, tmp_path):
  """As a notebook keeps it, and with it the variables of all that it ended."""
  with interrupted(owner, name) as kept, KINDS[kind].open(tmp_path):
    pass
  with KINDS[kind].open(tmp_path) as opened:
    KINDS[kind].round(opened)
  assert len(kept) == 1


@made.cases('block', 'exclusive', 'locked_folder', '_ended')
@made.cases('name', '__enter__', '__exit__')
def test_a_loop_that_keeps_an_interrupt_goes_on(block, name, tmp_path):
  """An interrupt as a `with` block begins, or ends, of which only it has the variables then."""
  fleet = lambda: dpftrl.Population(tmp_path / 'fleet', epsilon=8.0, delta=1e-6)
  claim, sizes = made.claim('identity', participation=SCHEMA), []
  opened = lambda population: dpftrl.Run(tmp_path / 'run', claim, population=population)
  interrupting = functools.partial(
    interrupted,
    contextlib._GeneratorContextManager,
    name,
    lambda manager, *unused: manager.gen.__name__ == block,
  )
  with interrupting() as kept:
    opened(fleet()).close()
  with opened(first := fleet()) as run:
    with interrupting() as kept_too, run.round(cohort(0)) as round_:
      round_.released()
    for t in range(1, 4):
      with run.round(cohort(t)) as round_:
        sizes.append(len(round_.device_ids))
  assert kept + kept_too and sizes == [2, 2, 2]
  assert first.status()['num_rounds'] in (3, 4)
  with opened(fleet()) as run:  # Whose rounds are those of its population.
    assert run.next_round == first.status()['num_rounds']


class Interrupting:
  """A database after one of whose statements an interrupt comes, once."""

  def __init__(self, database, statement):
    self._database, self._statement = database, statement

  def __getattr__(self, name):
    return getattr(self._database, name)

  def execute(self, statement, *values):
    result = self._database.execute(statement, *values)
    if statement == self._statement:
      self._statement = None
      raise KeyboardInterrupt
    return result


@pytest.mark.parametrize('statement, num_rounds', [('BEGIN IMMEDIATE', 1), ('COMMIT', 2)])
@pytest.mark.parametrize('goes_on', [True, False])
def test_the_ledger_says_whether_an_interrupted_write_was_made(
  tmp_path, statement, num_rounds, goes_on
):
  path = tmp_path / ledger_format.NAME
  with ledgers.LogWriter(path, CLAIM) as log:
    log.append(0, ['a'], 1)
    log._database = Interrupting(log._database, statement)
    with pytest.raises(KeyboardInterrupt):
      log.append(1, ['b'], 2)
    assert log.num_rounds == num_rounds
    if goes_on:
      log.append(num_rounds, ['c'], 3)
  expected = [['a'], ['b']][:num_rounds] + [['c']] * goes_on
  with ledgers.LogWriter(path, CLAIM) as log:
    assert [log.cohort(t).tolist() for t in range(log.num_rounds)] == expected
    assert log.mark.num_rounds == len(expected)
  assert participation_log.read_log(path).num_rounds == len(expected)


@pytest.mark.parametrize('error', [OSError(28, 'No space left on device'), KeyboardInterrupt()])
@pytest.mark.parametrize('kind', ['run', 'aggregator'])
def test_a_close_that_failed_lets_go_and_tries_again(tmp_path, monkeypatch, kind, error):
  def full(*arguments):
    raise error

  opened = KINDS[kind].open(tmp_path)
  KINDS[kind].round(opened)
  with monkeypatch.context() as patched:
    patched.setattr(log_tables, 'appending', full)
    for _ in range(2):
      with pytest.raises(type(error)):
        opened.close()
  assert not (tmp_path / ledger_format.NAME).exists()
  with KINDS[kind].open(tmp_path) as other:
    with pytest.raises(ValueError, match='in use'):
      opened.close()
    KINDS[kind].round(other)
    other_log = other.guard.log
    monkeypatch.setattr(other_log, 'close', other_log.release)  # As if it was killed.
  opened.close()
  opened.close()
  assert participation_log.read_log(tmp_path / ledger_format.NAME).num_rounds == 2
  assert (tmp_path / ledger_format.NAME).exists()


def test_an_interrupt_as_the_ledger_is_opened_locks_nobody_out(tmp_path, monkeypatch):
  path, connect = tmp_path / ledger_format.NAME, sqlite3.connect
  ledgers.LogWriter(path, CLAIM).close()
  with monkeypatch.context() as patched:
    interrupting = lambda *args, **options: Interrupting(
      connect(*args, **options), 'PRAGMA journal_mode=wal'
    )
    patched.setattr(sqlite3, 'connect', interrupting)
    with pytest.raises(KeyboardInterrupt):
      ledgers.LogWriter(path, CLAIM)
  with ledgers.LogWriter(path, CLAIM) as log:
    log.append(0, ['a'], 1)


def test_what_an_interrupt_kept_from_opening_is_gone():
  opened = []

  class Opened:
    @durable.letting_go
    def __init__(self):
      opened.append(weakref.ref(self))
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt) as kept:
    Opened()
  assert kept and opened[0]() is None
