"""No row of noise enters two released sums, whatever is put back from a copy."""

import collections
import itertools
import shutil

import pytest

from fl_dpftrl.files import ledger
from fl_dpftrl.logs import schema as log_schema
from fl_dpftrl.logs import writer as writer_lib
from fl_dpftrl.training import loop
from tests.logs import files
from tests.training import small_runs
from tests.training.small_runs import NUM_ROUNDS, Killed

pytestmark = pytest.mark.tff


class Run:
  """A run's folder, and every sum that was released with its row of noise."""

  def __init__(self, folder):
    self.folder = folder
    self.released = collections.defaultdict(set)
    self.warnings = []

  def train(self, *, stop_at=None, **kwargs):
    process = small_runs.Process()

    def on_step(step, t):
      sums = dict(process.sums)
      if step == 'released' and t in sums:
        self.released[t].add(sums[t])
      if (step, t) == stop_at:
        raise Killed

    return small_runs.run(
      self.folder, process, on_step=on_step, say=self.warnings.append, **kwargs
    )[0]


@pytest.fixture(name='run')
def fixture_run(tmp_path, request):
  """A run with a copy of its folder after round 3, stopped in round 4."""
  run = Run(tmp_path / 'run')
  with pytest.raises(Killed):
    run.train(stop_at=('published', 3))
  shutil.copytree(run.folder, tmp_path / 'copy')
  with pytest.raises(Killed):
    run.train(stop_at=(request.param, 4))
  return run


def put_back(run, *, checkpoints_too=True, log_too=False):
  copy = run.folder.parent / 'copy'
  name = loop.CHECKPOINTS_NAME
  if checkpoints_too:
    for path in (run.folder / name).glob('*.*'):
      path.unlink()
    for path in (copy / name).glob('*.*'):
      shutil.copy(path, run.folder / name)
  if log_too:
    shutil.copy(copy / writer_lib.NAME, run.folder / writer_lib.NAME)


def assert_one_sum_a_row(run):
  assert all(len(sums) == 1 for sums in run.released.values()), run.released


@pytest.mark.parametrize('run', ['released', 'published'], indirect=True)
def test_put_back_checkpoints_burn_the_row_that_was_released(run):
  put_back(run)
  last = run.train(change=0.25)
  assert last.burnt == (4,) and last.num_rounds == NUM_ROUNDS
  assert any('round 4 is lost: its row' in line for line in run.warnings)
  assert_one_sum_a_row(run)
  assert sorted(run.released) == list(range(NUM_ROUNDS))


@pytest.mark.parametrize('run', ['stored'], indirect=True)
def test_put_back_before_the_release_repeats_the_round(run):
  put_back(run)
  last = run.train()
  assert not last.burnt and not run.warnings
  assert_one_sum_a_row(run)


@pytest.mark.parametrize('run', ['published'], indirect=True)
@pytest.mark.parametrize('parts', itertools.product([False, True], repeat=2))
def test_any_part_that_is_put_back_leaves_one_sum_for_each_row(run, parts):
  names = ('checkpoints_too', 'log_too')
  put_back(run, **dict(zip(names, parts)))
  try:
    # What was published, such as a table, is not among the parts.
    run.train(change=0.25, published=5)
  except (ledger.LostStateError, loop.RoundFailedError):
    pass  # Refused: nothing more is released.
  assert_one_sum_a_row(run)


def put_back_every_mark(run):
  """Writes the log anew, without its own mark of the rounds since the copy."""
  log = run.folder / writer_lib.NAME
  writer = writer_lib.LogWriter(log)
  log_schema.write_log(log, **files.written_rows(writer), num_rounds=writer.num_rounds)
  writer_lib.LogWriter(log).mark_released(4)


@pytest.mark.parametrize('run', ['published'], indirect=True)
def test_what_was_published_counts_where_every_mark_was_put_back(run):
  put_back(run)
  put_back_every_mark(run)
  last = run.train(change=0.25, published=5)
  assert last.burnt == (4,)
  assert_one_sum_a_row(run)


@pytest.mark.parametrize('run', ['published'], indirect=True)
def test_later_rounds_of_the_log_count_where_every_mark_was_put_back(run):
  with pytest.raises(Killed):
    run.train(stop_at=('published', 5))
  put_back(run)
  put_back_every_mark(run)
  assert run.train(change=0.25).burnt == (4, 5)
  assert_one_sum_a_row(run)
