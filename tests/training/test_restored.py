"""No row of noise enters two released sums, whatever is put back from a copy."""

import collections
import itertools
import shutil

import pytest

from fl_dpftrl.files import mark
from fl_dpftrl.logs import ledger_format, refusals
from fl_dpftrl.training import loop
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
      if step == 'stored' and t in sums:
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


def put_back(run, *, checkpoints_too=True, log_too=False, mark_too=False):
  copy = run.folder.parent / 'copy'
  name = loop.CHECKPOINTS_NAME
  if checkpoints_too:
    for path in (run.folder / name).glob('*.*'):
      path.unlink()
    for path in (copy / name).glob('*.*'):
      shutil.copy(path, run.folder / name)
  if log_too:
    for path in (
      run.folder / ledger_format.NAME,
      ledger_format.path_of(run.folder / ledger_format.NAME),
    ):
      shutil.copy(copy / path.name, path)
  if mark_too:
    path = ledger_format.mark_of(run.folder / ledger_format.NAME)
    shutil.copy(copy / path.name, path)


def assert_one_sum_a_row(run):
  assert all(len(sums) == 1 for sums in run.released.values()), run.released


@pytest.mark.parametrize('run', ['computed', 'stored', 'published'], indirect=True)
def test_put_back_checkpoints_lose_the_round_that_was_begun(run):
  put_back(run)
  last = run.train(change=0.25)
  assert last.burnt == (4,) and last.num_rounds == NUM_ROUNDS
  assert any('round 4 is lost, and its row' in line for line in run.warnings)
  assert_one_sum_a_row(run)


@pytest.mark.parametrize('run', ['published'], indirect=True)
@pytest.mark.parametrize('parts', itertools.product([False, True], repeat=3))
def test_any_part_that_is_put_back_leaves_one_sum_for_each_row(run, parts):
  names = ('checkpoints_too', 'log_too', 'mark_too')
  put_back(run, **dict(zip(names, parts)))
  try:
    # What was published, such as a table, is not among the parts.
    run.train(change=0.25, published=5)
  except (mark.LostStateError, refusals.LogError, loop.RoundFailedError):
    pass  # Refused: nothing more is released.
  assert_one_sum_a_row(run)
