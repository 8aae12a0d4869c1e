"""One state machine for every kind of run: no row of noise is in two releases, no cohort is lost.

Processes are killed at any write, lose power, meet a full disk or an interrupt, and go on, also in
a folder that was moved. A sum of zeros is its row of noise. The trainer is in tests/tff/training.
"""

import contextlib
import errno
import gc
import os
import pathlib
import shutil
import sqlite3
import tempfile

import hypothesis
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import stateful
from hypothesis import strategies as st

import fl_dpftrl as dpftrl
from fl_dpftrl.run import guards
from tests import made

STRATEGY = dpftrl.BandedToeplitz((1.0, 0.5, 0.2), normalized_rounds=60)
NOISE_MULTIPLIER, DELTA = 2.0, 1e-6
SCHEMA = dpftrl.MinSep(num_rounds=60, min_sep=1, max_participations=60)
LOG = 'participation.parquet'
COHORTS = st.sets(st.sampled_from('abcd'), min_size=1).map(sorted)
WHEN = st.tuples(st.integers(0, 4), st.booleans())
"""The number of a write, and whether what happens comes after it."""
KILLS = st.none() | st.none() | WHEN  # Most often none.
PLACES = st.sets(st.integers(0, 2))
WRITES = ('fdatasync', 'fsync', 'ftruncate', 'link', 'pwrite', 'rename', 'replace', 'unlink')
FILLS = ('fdatasync', 'fsync', 'ftruncate', 'pwrite', 'INSERT', 'COMMIT', 'PRAGMA wal_checkpoint')


class Killed(BaseException):
  """The end of the process, after which nothing more is written."""


class File:
  """What a file had when it was synced."""

  def __init__(self, synced: bytes = b''):
    self.synced = synced


class Disk:
  """Counts writes, ends the process before or after one of them, and remembers what was synced.

  After a loss of power a file has what it had at its last sync, and a folder the names that it had
  at its own. SQLite syncs at the end of a transaction, with the name of its write-ahead log.

  Args:
    top: folder whose files are on the disk.
    forgets: says of a path that its syncs do nothing, as if they were left out of the code.
  """

  def __init__(self, patch: pytest.MonkeyPatch, top: pathlib.Path, forgets=lambda path: False):
    self.left: int | None = None
    self.is_dead, self._after, self._happens = False, False, self._die
    self.end: dict[pathlib.Path, bytes | None] | None = None  # The tree when the process ended.
    self._top, self._forgets = top, forgets
    self.settle()
    for name in WRITES:
      patch.setattr(os, name, self._counted(self._remembered(name, getattr(os, name)), name))
    disk = self

    class Connection(sqlite3.Connection):
      path = ''

      def execute(self, *args):
        return disk._counted(self.execute_and_sync, args[0])(*args)

      def execute_and_sync(self, *args):
        result = super().execute(*args)
        if args[0] == 'COMMIT' or 'checkpoint' in args[0]:
          disk._sync_database(self)
        return result

      def executemany(self, *args):
        return disk._counted(super().executemany, args[0])(*args)

    def connect(path, **settings):
      connection = connect_to(path, **settings, factory=Connection)
      connection.path = str(path)
      return connection

    connect_to = sqlite3.connect
    patch.setattr(sqlite3, 'connect', connect)

  def kill(self, writes: int, after: bool) -> None:
    self.left, self._after, self._happens = writes, after, self._die

  def interrupt(self, writes: int, after: bool) -> None:
    """Raises KeyboardInterrupt at a write, once."""
    self.left, self._after, self._happens = writes, after, self._interrupt

  def fill(self, writes: int) -> None:
    """Leaves room for so many writes, until `left` is None."""
    self.left, self._after, self._happens = writes, False, self._refuse

  def _die(self, what: str) -> None:
    self.kill_now()
    raise Killed

  def _interrupt(self, what: str) -> None:
    self.left = None
    raise KeyboardInterrupt

  def _refuse(self, what: str) -> None:
    if what in WRITES and what in FILLS:
      raise OSError(errno.ENOSPC, 'No space left on device')
    if what.startswith(FILLS):
      raise sqlite3.OperationalError('database or disk is full')

  def kill_now(self) -> None:
    """Nothing that cleans up on the way out of the process changes the disk."""
    self.is_dead, self.end = True, self.end or self.tree()

  def restart(self) -> None:
    self.left, self.is_dead, self.end = None, False, None

  def settle(self) -> None:
    """Syncs all there is."""
    self._files: dict[str, File] = {}
    self._names: dict[str, dict[str, File | None]] = {}  # Of folders.
    for path in self._top.rglob('*'):
      if path.is_file():
        self._files[str(path)] = File(path.read_bytes())
    for path in (self._top, *self._top.rglob('*')):
      if path.is_dir():
        self._sync_names(str(path))

  def tree(self) -> dict[pathlib.Path, bytes | None]:
    """The files, and folders, that there are."""
    paths = self._top.rglob('*')
    return {path: None if path.is_dir() else path.read_bytes() for path in paths}

  def put(self, tree: dict[pathlib.Path, bytes | None]) -> None:
    """Changes what is not as in a tree."""
    for path in sorted(self._top.rglob('*'), reverse=True):
      if path not in tree:
        path.rmdir() if path.is_dir() else path.unlink()
    for path, content in sorted(tree.items()):
      if content is None:
        path.mkdir(exist_ok=True)
      elif not path.exists() or path.read_bytes() != content:
        path.write_bytes(content)

  def lose_power(self) -> None:
    """Takes back whatever was not synced."""
    tree, folders = dict[pathlib.Path, bytes | None](), [str(self._top)]
    for folder in folders:
      for name, file in self._names.get(folder, {}).items():
        path = os.path.join(folder, name)
        tree[pathlib.Path(path)] = None if file is None else file.synced
        folders += [path] if file is None else []
    self.put(tree)
    self.settle()

  def _file(self, path: str) -> File:
    return self._files.setdefault(path, File())

  def _sync_names(self, folder: str) -> None:
    entries = {entry.name: entry for entry in os.scandir(folder)}
    self._names[folder] = {
      name: None if entry.is_dir() else self._file(entry.path) for name, entry in entries.items()
    }

  def _sync(self, path: str) -> None:
    if not self._forgets(path):
      if os.path.isdir(path):
        self._sync_names(path)
      elif os.path.exists(path):
        self._file(path).synced = pathlib.Path(path).read_bytes()

  def _sync_database(self, connection) -> None:
    if sqlite3.Connection.execute(connection, 'PRAGMA synchronous').fetchone()[0] > 1:
      log = f'{connection.path}-wal'
      for path in (connection.path, log):
        self._sync(path)
      if os.path.exists(log) and not self._forgets(log):
        names = self._names.setdefault(os.path.dirname(log), {})
        names[os.path.basename(log)] = self._file(log)

  def _remembered(self, name, write):
    def call(first, *args, **kwargs):
      result = write(first, *args, **kwargs)
      if name in ('fsync', 'fdatasync'):
        self._sync(os.readlink(f'/proc/self/fd/{first}'))
      elif name in ('rename', 'replace'):
        self._files[str(args[0])] = self._files.pop(str(first), File())
      elif name == 'unlink':
        self._files.pop(str(first), None)
      return result

    return call

  def _counted(self, write, what):
    def call(*args, **kwargs):
      if self.is_dead:
        raise Killed
      self.left = None if self.left is None else self.left - 1
      is_time = self.left is not None and self.left < 0
      if is_time and not self._after:
        self._happens(what)
      result = write(*args, **kwargs)
      if is_time and self._after:
        self._happens(what)
      return result

    return call


class Aggregator:
  """A PrivateAggregator."""

  noise, refuses_old_noise, goes_on, in_use = 'noise', True, True, 'in use by another process'

  def __init__(self, machine, folder: pathlib.Path, noise_multiplier: float = NOISE_MULTIPLIER):
    options = dict(noise_multiplier=noise_multiplier, report_goal=1, delta=DELTA)
    self.opened = made.aggregator(folder, STRATEGY, participation=SCHEMA, **options)
    self._round = None

  def begin(self, cohort: list[str]) -> None:
    self._round = self.opened.round(cohort).begin()
    for device in cohort:
      self._round.add(np.zeros(3), device_id=device)

  def reserve(self, cohorts: list[list[str]]) -> None:
    self._reserved = list(self.opened.rounds(cohorts, reserve=len(cohorts)))

  def begin_reserved(self, place: int) -> None:
    self._round = self._reserved[place].begin()
    self._round.add(np.zeros(3))

  def finish(self) -> bytes:
    self._round.end()
    return self._round.mean.tobytes()

  def fail(self) -> None:
    self._round.fail()

  def close(self) -> None:
    self.opened.close()

  def use_in_a_fork(self, is_open_round: bool) -> None:
    self.finish() if is_open_round else self.begin(['a'])

  def abandon(self) -> None:
    """Leaves what the end of the process would leave."""
    self.opened._noised.rows.close()
    self.opened.guard.log.release()


class Loop:
  """A loop of somebody's own, with a Run and NoiseRows."""

  noise, refuses_old_noise, goes_on, in_use = 'noise', True, True, 'in use by another process'
  use_in_a_fork = Aggregator.use_in_a_fork

  def __init__(self, machine, folder: pathlib.Path, noise_multiplier: float = NOISE_MULTIPLIER):
    folder.mkdir(exist_ok=True)
    self._rows = dpftrl.NoiseRows(STRATEGY, 3, folder=folder / self.noise)
    try:
      claim = made.claim(STRATEGY, noise_multiplier=noise_multiplier, participation=SCHEMA)
      self.opened = dpftrl.Run(folder, claim, delta=DELTA)
      if self._rows.next_row > self.opened.next_round:
        self.opened.guard.log.release()
        raise ValueError('the log lacks rounds')
    except BaseException:
      self._rows.close()
      raise

  def begin(self, cohort: list[str]) -> None:
    self._block = contextlib.ExitStack()
    self._round = self._block.enter_context(self.opened.round(cohort))
    assert self._round.device_ids.tolist() == cohort

  def finish(self) -> bytes:
    with self._block:
      row = self._rows.row(self._round.row).tobytes()
      self._round.released()
    return row

  def fail(self) -> None:
    self._block.close()

  def close(self) -> None:
    self.opened.close()
    self._rows.close()

  def abandon(self) -> None:
    self._rows.close()
    self.opened.guard.log.release()


class Protocol(stateful.RuleBasedStateMachine):
  """What may befall a run, and what has to hold of it."""

  kind: type[Aggregator] | type[Loop]  # And the trainer, in tests/tff/training.
  forgets = staticmethod(lambda path: False)

  def __init__(self):
    super().__init__()
    self.ends = contextlib.ExitStack()
    self.top = pathlib.Path(self.ends.enter_context(tempfile.TemporaryDirectory()))
    patch = self.ends.enter_context(pytest.MonkeyPatch.context())
    self.folder = self.top / 'disk' / 'run'
    self.folder.parent.mkdir()
    self.disk = Disk(patch, self.folder.parent, self.forgets)
    self.run = None
    self.is_open_round, self.made = False, False
    self.begun: list[list[str]] = []  # The cohorts of all rounds.
    self.tried: list[list[str]] = []  # Those of rounds whose beginning did not return.
    self.released: dict[int, bytes] = {}
    self.forgotten: set[int] = set()  # Rounds whose results may be lost: old states were put back.
    self.saved: tuple[pathlib.Path, int] | None = None

  # The process.

  def attempt(self, call, kill=None):
    """Returns the result of a call; None if the process was killed within it."""
    if kill:
      self.disk.kill(*kill)
    with contextlib.suppress(Killed):
      result = call()
      self.disk.left = None
      return result
    self.die()  # Once no frame of the call is left.
    return None

  def die(self, lose_power=False) -> None:
    self.disk.kill_now()
    tree = self.disk.end
    if self.run is not None:
      self.run.abandon()
    self.run, self.is_open_round = None, False
    gc.collect()  # Descriptors, and with them locks, go as with the process.
    gc.freeze()  # What is there now need not be looked at again and again.
    self.disk.restart()
    self.disk.lose_power() if lose_power else self.disk.put(tree)

  @stateful.rule()
  def lose_power(self):
    self.die(lose_power=True)

  @stateful.precondition(lambda self: self.run is not None)
  @stateful.rule()
  def kill_between_two_writes(self):
    self.die()

  @stateful.precondition(lambda self: self.run is None)
  @stateful.rule(kill=KILLS)
  def start(self, kill=None):
    run = self.attempt(lambda: self.kind(self, self.folder), kill)
    if run is None:
      return
    self.run, self.made = run, True
    self.settle_tried()
    status = run.opened.status()
    assert (status.num_rounds, status.max_rounds) == (len(self.begun), SCHEMA.num_rounds)
    assert status.rounds_left == SCHEMA.num_rounds - len(self.begun)
    if self.begun:
      replayed = dpftrl.replay(self.folder, delta=DELTA)
      assert replayed.num_rounds == len(self.begun) and replayed.declared.holds
      assert replayed.declared.guarantee.epsilon() >= status.epsilon

  def settle_tried(self):
    """Notes whether rounds whose beginning did not return were begun: all of a call, or none."""
    next_round = self.run.opened.next_round
    assert next_round in (len(self.begun), len(self.begun) + len(self.tried))
    self.begun += self.tried if next_round > len(self.begun) else []
    self.tried = []

  # Its rounds.

  @stateful.precondition(lambda self: self.run is not None and not self.is_open_round)
  @stateful.rule(cohort=COHORTS, kill=KILLS)
  def begin(self, cohort, kill=None):
    self.tried = [cohort]
    self.attempt(lambda: self.run.begin(cohort), kill)
    if self.run is not None:
      self.begun.append(cohort)
      self.tried, self.is_open_round = [], True
      assert self.run.opened.next_round == len(self.begun)

  @stateful.precondition(lambda self: self.run is not None and not self.is_open_round)
  @stateful.rule(cohort=COHORTS, when=WHEN, is_full=st.booleans(), ends=st.booleans())
  def be_disturbed(self, cohort, when, is_full, ends):
    """A full disk, or an interrupt, as a round begins or ends: the same process goes on."""
    if ends:
      self.begin(cohort)
    self.tried = [] if ends else [cohort]
    self.disk.fill(when[0]) if is_full else self.disk.interrupt(*when)
    row, is_whole = None, False
    with contextlib.suppress(OSError, KeyboardInterrupt, RuntimeError):
      row = self.run.finish() if ends else self.run.begin(cohort)
      is_whole = True
    self.disk.left, self.is_open_round = None, is_whole and not ends
    if row is not None:
      self.release(len(self.begun) - 1, row)
    if is_whole or self.kind.goes_on:
      self.settle_tried()
    else:
      self.die()

  @stateful.precondition(lambda self: isinstance(self.run, Aggregator) and not self.is_open_round)
  @stateful.rule(cohorts=st.lists(COHORTS, min_size=2, max_size=3), finished=PLACES, kill=KILLS)
  def reserve(self, cohorts, finished, kill=None):
    """Begins rounds at once, of which some are computed; all are used up."""
    self.tried = cohorts
    self.attempt(lambda: self.run.reserve(cohorts), kill)
    if self.run is None:
      return
    first = len(self.begun)
    self.begun += cohorts
    self.tried = []
    for place in sorted(finished):
      if self.run is not None and place < len(cohorts):
        self.run.begin_reserved(place)
        self.finish(kill, first + place)

  @stateful.precondition(lambda self: self.is_open_round)
  @stateful.rule(kill=KILLS)
  def finish(self, kill=None, number=None):
    row = self.attempt(lambda: self.run.finish(), kill)
    self.is_open_round = False
    if row is not None:
      self.release(len(self.begun) - 1 if number is None else number, row)

  def release(self, number, row):
    """Notes a row that was released; a trainer that goes on releases its last one again."""
    assert number < len(self.begun) + len(self.tried)  # Its cohort is recorded.
    assert self.released.setdefault(number, row) == row
    assert list(self.released.values()).count(row) == 1

  @stateful.rule(cohort=COHORTS)
  def compute_a_round(self, cohort):
    if self.run is None:
      self.start()
    if not self.is_open_round:
      self.begin(cohort)
    self.finish()

  @stateful.precondition(lambda self: self.is_open_round)
  @stateful.rule(kill=KILLS)
  def fail(self, kill):
    self.attempt(lambda: self.run.fail(), kill)
    self.is_open_round = False

  @stateful.precondition(lambda self: self.run is not None)
  @stateful.rule(kill=KILLS)
  def close(self, kill=None):
    self.attempt(lambda: self.run.close(), kill)
    self.run, self.is_open_round = None, False
    gc.collect()

  def settle(self):
    """Ends the process, once it is known which rounds it began."""
    if self.tried:
      self.start()
    self.die()

  # What others do.

  @stateful.precondition(lambda self: self.run is not None)
  @stateful.rule()
  def open_it_twice(self):
    with pytest.raises(ValueError, match=self.kind.in_use):
      self.kind(self, self.folder)

  @stateful.precondition(lambda self: self.run is not None)
  @stateful.rule()
  def fork_it(self):
    child = os.fork()
    if not child:
      status = 1  # Whatever is raised, the tests do not go on in the child.
      try:
        self.run.use_in_a_fork(self.is_open_round)
        status = 0
      except ValueError as error:
        status = 7 if 'opened by another process' in str(error) else 1
      finally:
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7

  @stateful.precondition(lambda self: self.made and self.kind.refuses_old_noise)
  @stateful.rule()
  def go_on_in_a_copy(self):
    self.settle()
    with tempfile.TemporaryDirectory() as top:
      copy = pathlib.Path(top) / 'run'
      shutil.copytree(self.folder, copy)
      with pytest.raises(ValueError, match='is a copy'):
        self.kind(self, copy)

  @stateful.precondition(lambda self: self.made)
  @stateful.rule()
  def move(self):
    self.settle()
    here, there = (self.folder.parents[0], self.top / 'disk' / 'elsewhere')
    there = there if here.name == 'disk' else self.top / 'disk'
    there.mkdir(exist_ok=True)
    self.folder = self.folder.rename(there / 'run')
    self.disk.settle()

  @stateful.precondition(lambda self: self.begun)
  @stateful.rule()
  def make_another_claim(self):
    self.settle()
    with pytest.raises(ValueError, match='another run'):
      self.kind(self, self.folder, noise_multiplier=NOISE_MULTIPLIER + 1.0)
    gc.collect()

  @stateful.precondition(lambda self: self.made)
  @stateful.rule()
  def save(self):
    self.settle()
    copy = self.top / 'saved'
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(self.folder, copy)
    self.saved = copy, len(self.begun)

  @stateful.precondition(lambda self: self.saved)
  @stateful.rule()
  def put_the_old_log_back(self):
    """Refused, unless only rounds are lost of which no row was used."""
    self.settle()
    copy, num_rounds = self.saved
    with self.put_back(copy, lambda name: name != self.kind.noise) as keep:
      try:
        self.run = self.kind(self, self.folder)
      except ValueError as error:
        refused = ('lack', 'put back', 'put the newest', 'other devices', 'were trained')
        assert any(words in str(error) for words in refused), str(error)
      else:
        assert all(t < num_rounds for t in self.released)
        assert self.run.opened.next_round == num_rounds
        self.die()
        del self.begun[num_rounds:]
        keep()
      gc.collect()

  @stateful.precondition(lambda self: self.saved)
  @stateful.rule()
  def put_the_old_noise_back(self):
    """Refused, but by the trainer: the rounds since are used up."""
    self.settle()
    with self.put_back(self.saved[0], lambda name: name == self.kind.noise) as keep:
      if self.kind.refuses_old_noise:
        with pytest.raises(ValueError, match='is a copy'):
          self.kind(self, self.folder)
        gc.collect()
      else:
        self.forgotten |= self.released.keys()
        self.start()
        self.die()
        keep()

  @contextlib.contextmanager
  def put_back(self, copy, wanted):
    """Puts a part of a copy in the place of the newest, for the block unless it is kept."""
    aside, kept = self.top / 'aside', []
    if wanted(self.kind.noise):  # A file that is renamed has another time.
      aside.mkdir()
      (self.folder / self.kind.noise).rename(aside / self.kind.noise)
    else:
      self.folder.rename(aside)
      self.folder.mkdir()
      if (aside / self.kind.noise).exists():
        (aside / self.kind.noise).rename(self.folder / self.kind.noise)
    for name in filter(wanted, os.listdir(copy)):
      copied = shutil.copytree if (copy / name).is_dir() else shutil.copy2
      copied(copy / name, self.folder / name)
    yield lambda: kept.append(True)
    if kept:
      pass
    elif wanted(self.kind.noise):
      shutil.rmtree(self.folder / self.kind.noise)
      (aside / self.kind.noise).rename(self.folder / self.kind.noise)
    else:
      if (self.folder / self.kind.noise).exists():
        (self.folder / self.kind.noise).rename(aside / self.kind.noise)
      shutil.rmtree(self.folder)
      aside.rename(self.folder)
    shutil.rmtree(aside, ignore_errors=True)
    self.disk.settle()

  # What has to hold at the end.

  def teardown(self):
    try:
      self.disk.left = None
      self.die()
      if self.begun:
        self.start()
        self.run.close()
        self.check_log()
    finally:
      self.die()
      self.ends.close()

  def check_log(self):
    table = pq.read_table(self.folder / LOG)
    cohorts = [[] for _ in range(int(table.schema.metadata[b'num_rounds']))]
    for row in table.to_pylist():
      cohorts[row['round']].append(row['device_id'])
    assert list(map(sorted, cohorts)) == self.begun
    if self.released:
      statement = dpftrl.replay(dpftrl.open_run(self.folder / LOG, STRATEGY), delta=DELTA)
      least = dpftrl.account(
        STRATEGY, self.schema_of_releases(), noise_multiplier=NOISE_MULTIPLIER, delta=DELTA
      )
      assert statement.worst_case.epsilon() >= least.epsilon() * (1 - 1e-9)

  def schema_of_releases(self):
    """The participation in what was released, counted by hand."""
    took_part: dict[str, list[int]] = {}
    for t in sorted(self.released):
      for device in self.begun[t]:
        took_part.setdefault(device, []).append(t)
    gaps = [b - a for of in took_part.values() for a, b in zip(of, of[1:])]
    n = max(self.released) + 1
    return dpftrl.MinSep(n, min(gaps, default=n), max(map(len, took_part.values())))


def run_machine(kind, num_examples, forgets=lambda path: False, **more_rules):
  attributes = {'kind': kind, 'forgets': staticmethod(forgets), **more_rules}
  machine = type(kind.__name__, (Protocol,), attributes)
  settings = hypothesis.settings(
    max_examples=num_examples,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
  )
  gc.freeze()
  stateful.run_state_machine_as_test(machine, settings=settings)
  gc.unfreeze()
  gc.collect()
  gc.freeze()


@pytest.mark.parametrize('kind', [Aggregator, Loop])
def test_no_row_is_used_twice_and_no_participation_is_lost(kind):
  run_machine(kind, 15)


def check_noticed(kind, end, **more_rules):
  """Leaves out the syncs of paths that end, or have a part that begins, in this way."""

  def forgets(path):
    return path.endswith(end) or f'/{end}' in path

  with pytest.raises(BaseException, match='') as raised:
    run_machine(kind, 60, forgets, **more_rules)
  assert not isinstance(raised.value, KeyboardInterrupt)


@pytest.mark.slow
@pytest.mark.parametrize('end', ['.mark', '.ledger', '-wal', '/run', '/disk', '.writing-', 'used'])
def test_a_sync_that_is_left_out_is_noticed(end):
  # Power is lost as often as all else together: what is noticed at all is so in few examples.
  losses = {f'lose_power_{i}': stateful.rule()(lambda self: self.die(True)) for i in range(10)}
  check_noticed(Loop, end, **losses)


def test_noise_that_was_given_out_survives_a_loss_of_power_without_any_log(tmp_path):
  folder = tmp_path / 'disk' / 'runs' / 'noise'
  folder.parent.parent.mkdir()
  with pytest.MonkeyPatch.context() as patch:
    disk = Disk(patch, tmp_path)
    folder.parent.mkdir()
    with dpftrl.NoiseRows(STRATEGY, 3, folder=folder) as rows:
      first = rows.row(0)
    disk.lose_power()
    with dpftrl.NoiseRows(STRATEGY, 3, folder=folder, moved=True) as rows:
      assert rows.next_row == 1 and (rows.row(1) != first).all()


def test_a_log_that_was_begun_survives_a_loss_of_power_without_any_noise(tmp_path):
  path = tmp_path / 'disk' / 'runs' / LOG
  claim = made.claim(STRATEGY, participation=SCHEMA)
  path.parent.parent.mkdir()
  with pytest.MonkeyPatch.context() as patch:
    disk = Disk(patch, tmp_path)
    path.parent.mkdir()
    with guards.Guard(claim, log=path) as guard:
      guard.admit(['a'])
    disk.lose_power()
    with guards.Guard(claim, log=path) as guard:
      assert guard.log.cohort(0).tolist() == ['a']


def test_noise_goes_on_at_whatever_write_its_making_was_killed(tmp_path):
  with pytest.MonkeyPatch.context() as patch:
    disk = Disk(patch, tmp_path)
    for number in range(60):
      opened = lambda folder=tmp_path / f'{number}': dpftrl.NoiseRows(STRATEGY, 3, folder=folder)
      disk.kill(number // 2, number % 2 == 1)
      is_whole = False
      with contextlib.suppress(Killed):
        opened().close()
        is_whole = True
      disk.restart()
      gc.collect()
      with opened() as rows:
        assert rows.next_row == 0
  assert is_whole  # So many writes are all.
