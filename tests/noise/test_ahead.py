"""Rows that are made ahead, or when they are needed, are those of their maker, and stay."""

import concurrent.futures
import functools

import numpy as np
import pytest

from fl_dpftrl.mechanisms.families import blt
from fl_dpftrl.noise import ahead, integer_rows, recurrence
from tests import made

SIZE, NUM_ROUNDS, SEED = 1003, 40, bytes(range(32))
STRATEGY = blt.BLT((0.9, 0.5), (0.1, 0.2))
RECIPE = dict(strategy=STRATEGY, size=SIZE, num_rounds=NUM_ROUNDS)


@functools.cache
def expected():
  maker = integer_rows.RowMaker(**RECIPE, seed=SEED)
  rows = np.empty((NUM_ROUNDS, SIZE), np.int64)
  for row in rows:
    maker.make(row)
  return rows


_FAILS: set[int] = set()


class Failing(ahead.LocalSource):
  """A source whose rows may fail once each."""

  def make(self, row, out, used):
    if row in _FAILS:
      _FAILS.remove(row)
      out[:] = -1
      raise OSError(f'row {row} failed')
    return super().make(row, out, used)


@pytest.fixture(params=[0.0, np.inf], ids=['in the background', 'when needed'])
def rows(request, monkeypatch):
  """Rows that are all made in one way, but for the first."""
  monkeypatch.setattr(ahead, '_QUICK_SECONDS', request.param)
  source = lambda seed: Failing(None, 16, **RECIPE, seed=seed)
  made = ahead.Rows(source, SIZE, NUM_ROUNDS)
  yield made
  made.close()


def test_rows_are_those_of_the_maker_in_any_order(rows):
  rng = np.random.default_rng(0)
  asked = [0, 1, 2, 2, 3, 7, 8, 5, 6, 6, 39, 0, *rng.integers(0, NUM_ROUNDS, 25).tolist()]
  for number, row in enumerate(asked):
    if number % 3 == 0:
      rows.prepare(SEED, int(rng.integers(NUM_ROUNDS)), now=number % 2 == 0)
    np.testing.assert_array_equal(rows.row(SEED, row)[0], expected()[row])
    if number == 20:  # Another run in between.
      assert not np.array_equal(rows.row(bytes(32), row)[0], expected()[row])


@made.cases(
  'part',
  lambda row: row,
  lambda row: np.split(row, [7, 300])[1],
  lambda row: row[5:].view(np.uint64)[::3],
  lambda row: memoryview(row)[40:],
  lambda row: np.frombuffer(memoryview(row), np.int64),
)
def test_what_is_held_of_a_row_does_not_change(rows, part):
  held = [part(rows.row(SEED, t)[0]) for t in range(NUM_ROUNDS)]
  for t, value in enumerate(held):
    np.testing.assert_array_equal(np.asarray(value), np.asarray(part(expected()[t])))


def test_threads_have_whole_rows(rows):
  with concurrent.futures.ThreadPoolExecutor(4) as pool:
    for t in range(0, NUM_ROUNDS, 2):
      for row, _ in pool.map(lambda _, t=t: rows.row(SEED, t), range(8)):
        np.testing.assert_array_equal(row, expected()[t])


def test_a_row_that_failed_is_made_again(rows):
  """One that failed ahead of time may be told of, and one that is needed is."""
  _FAILS.update((0, 3, 4))
  told = []
  for t in range(6):
    try:
      row, _ = rows.row(SEED, t)
    except OSError as error:
      told.append(str(error))
      row, _ = rows.row(SEED, t)
    np.testing.assert_array_equal(row, expected()[t])
  everything = [f'row {t} failed' for t in (0, 3, 4)]
  assert set(told) <= set(everything) and told[:1] == everything[:1]
  assert told == everything or ahead._QUICK_SECONDS == 0.0


@pytest.mark.parametrize('name', ['step', '_work'])
@pytest.mark.parametrize('ask', ['prepare', 'row'])
def test_an_interrupt_is_told_and_the_row_is_made_again(name, ask, monkeypatch):
  """Also where it ended a computation that later steps rest on."""
  rows = ahead.Rows(lambda seed: ahead.LocalSource(None, 16, **RECIPE, seed=seed), SIZE, NUM_ROUNDS)
  for t in range(5):
    rows.row(SEED, t)

  def interrupted(self, *unused):
    if name == 'step':
      next(self._stacks._values)
    raise KeyboardInterrupt

  monkeypatch.setattr(ahead, '_QUICK_SECONDS', np.inf)
  rows.row(SEED, 5)
  with monkeypatch.context() as patch:
    patch.setattr(
      {'step': recurrence.Recurrence}.get(name, integer_rows.RowMaker), name, interrupted
    )
    with pytest.raises(KeyboardInterrupt):
      rows.row(SEED, 6) if ask == 'row' else rows.prepare(SEED, 6, now=True)
  for t in range(6, NUM_ROUNDS):
    np.testing.assert_array_equal(rows.row(SEED, t)[0], expected()[t])
  rows.close()
