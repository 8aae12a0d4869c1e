"""Missing data is never read as absence: drawn logs with a gap at any place of every format."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import layouts, ledgers, log_tables, participation_log, refusals
from fl_dpftrl.run import guards
from tests import made

ROUND, DEVICE = 'step', 'user'
LISTS = ('list.parquet', 'large_list.parquet', 'fixed.parquet')
FLAT = ('flat.parquet', 'flat.csv', 'tabs.csv')
FOLDERS = ('by_round', 'by_device', 'by_both')
WRITERS = ('write_log', 'LogWriter', 'Guard')
NUM_ROUNDS = 9


class Log:
  """Cohorts in a form, of which at most one round, cohort or device is missing."""

  def __init__(self, seed):
    self.rng = np.random.default_rng(seed)
    self.form = self.one_of(*LISTS, *FLAT, *FOLDERS, *WRITERS)
    can_be_numbers = self.form.endswith('.parquet') or self.form in WRITERS
    self.are_numbers = can_be_numbers and self.one_of(True, False)
    size = self.one_of(1, 2)
    rounds = np.sort(self.rng.choice(NUM_ROUNDS, 4, replace=False)).tolist()
    self.cohorts = [(t, self.cohort(size)) for t in rounds]
    self.rows = [(t, d) for t, ids in self.cohorts for d in ids]
    stated = self.cohorts if self.form in LISTS else self.rows
    self.last = max((t for t, _ in stated), default=None)
    # No file can have a list of a fixed size that is missing.
    gaps = ('round', 'device') if self.form == 'fixed.parquet' else ('round', 'cohort', 'device')
    self.gap = self.one_of(None, *gaps) if self.rows else None
    if self.gap is not None:
      # Only lists state rounds, and cohorts, without devices.
      empty_too = self.form in LISTS and self.gap != 'device'
      place = self.one_of(*(i for i, (_, ids) in enumerate(self.cohorts) if ids or empty_too))
      t, ids = self.cohorts[place]
      if self.gap == 'device':
        ids[self.one_of(*range(len(ids)))] = None
      self.cohorts[place] = (
        None if self.gap == 'round' else t,
        None if self.gap == 'cohort' else ids,
      )

  def one_of(self, *values):
    return values[self.rng.integers(len(values))]

  def cohort(self, size):
    size = size if self.form == 'fixed.parquet' else self.one_of(0, 1, 2, 3)
    ids = (self.rng.choice(9, size, replace=False) + 1).tolist()
    return ids if self.are_numbers else [f'd{i}' for i in ids]

  @property
  def flat(self):
    return [(t, d) for t, ids in self.cohorts for d in ([None] if ids is None else ids)]


def ids_of(log, values):
  """Device ids as one of the types that a Parquet file may have."""
  if log.are_numbers:
    return pa.array(values, log.one_of(pa.int64(), pa.int32(), pa.uint64()))
  kind = log.one_of('string', 'large_string', 'dictionary')
  if kind == 'dictionary':
    return pa.array(values, pa.string()).dictionary_encode()
  return pa.array(values, kind)


def lists_of(log, cohorts):
  absent = [ids is None for ids in cohorts]
  if log.form == 'fixed.parquet':
    size = len(next(ids for ids in cohorts if ids))
    flat = ids_of(log, [d for ids in cohorts for d in ids or [None] * size])
    places = [None if gone else i for i, gone in enumerate(absent)]
    return pa.FixedSizeListArray.from_arrays(flat, size).take(pa.array(places, pa.int64()))
  of, kind = pa.ListArray, pa.int32()
  if log.form == 'large_list.parquet':
    of, kind = pa.LargeListArray, pa.int64()
  ends = np.cumsum([0, *(len(ids or ()) for ids in cohorts)])
  flat = ids_of(log, [d for ids in cohorts for d in ids or ()])
  return of.from_arrays(pa.array(ends, kind), flat, mask=pa.array(absent))


def text_of(value):
  return '' if value is None else str(value)


def contents(log):
  """Yields names of files, and what is in them: tables or text."""
  entries = log.cohorts if log.form in LISTS else log.flat
  if log.form.endswith('.parquet'):
    column = lists_of if log.form in LISTS else ids_of
    rounds, ids = zip(*entries) if entries else ((), ())
    yield log.form, pa.table({ROUND: pa.array(rounds, pa.int64()), DEVICE: column(log, ids)})
  elif log.form in FLAT:
    by = '\t' if log.form == 'tabs.csv' else ','
    lines = [by.join(map(text_of, entry)) for entry in [(ROUND, DEVICE), *entries]]
    if log.one_of(True, False):  # Rows that are too short.
      lines = [line.strip(by) for line in lines]
    yield log.form, ''.join(line + '\n' for line in lines)
  for number, (t, d) in enumerate(log.flat if log.form in FOLDERS else ()):
    inside, folders = {ROUND: t, DEVICE: d}, []
    for name in {'by_round': [ROUND], 'by_device': [DEVICE], 'by_both': [ROUND, DEVICE]}[log.form]:
      value = inside.pop(name)
      nowhere = log.one_of('__HIVE_DEFAULT_PARTITION__', '')
      folders.append(f'{name}={nowhere if value is None else value}')
    inside = inside or {'other': 1}
    ((name, value),) = inside.items()
    suffix, content = log.one_of(
      ('csv', f'{name}\n{text_of(value)}\n'), ('parquet', pa.table({name: [value]}))
    )
    yield '/'.join([*folders, f'{number}.{suffix}']), content


def read(log, folder):
  layout = layouts.parse(f'round={ROUND},device_id={DEVICE}')
  for name, content in contents(log):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, pa.Table):
      pq.write_table(content, path)
    else:
      path.write_text(content)
  found = participation_log.read_log(folder, layout=layout)
  rows = [row for table in found.tables() for row in zip(*table.to_pydict().values())]
  return rows, found


def write(log, folder):
  path = folder / 'l.parquet'
  if log.form == 'write_log':
    rounds, ids = map(list, zip(*log.flat)) if log.flat else ([], [])
    if log.one_of(True, False):  # As NumPy says it.
      rounds = np.ma.masked_equal([-1 if t is None else t for t in rounds], -1)
    log_tables.write_log(path, rounds=rounds, device_ids=ids, num_rounds=NUM_ROUNDS)
  else:
    open_log = lambda: ledgers.LogWriter(path)
    append = lambda writer, t, ids: writer.append(t, ids, 0)
    if log.form == 'Guard':
      planned = dpftrl.MinSep(NUM_ROUNDS, 1)
      claim = made.claim(participation=planned)
      open_log = lambda: guards.Guard(claim, 1e-6, log=path)
      append = lambda writer, t, ids: writer.admit(ids)
    with open_log() as writer:
      for t in range(NUM_ROUNDS):
        append(writer, t, dict(log.cohorts).get(t, []))
  found = participation_log.read_log(path)
  return [row for table in found.tables() for row in zip(*table.to_pydict().values())], found


@pytest.mark.parametrize('seeds', np.array_split(range(500), 10), ids=lambda s: f'from {s[0]}')
def test_a_gap_is_refused_and_without_one_all_rows_are_read(tmp_path, seeds):
  for seed in seeds:
    log = Log(seed)
    if log.form in ('LogWriter', 'Guard') and log.gap == 'round':
      continue  # Their rounds are not given.
    folder = tmp_path / str(seed)
    folder.mkdir()
    told = (log.form, log.cohorts)
    if log.gap is not None:
      with pytest.raises(ValueError) as caught:
        (write if log.form in WRITERS else read)(log, folder)
      line = str(caught.value)
      assert len(line) <= 300 and line.isprintable(), told
      assert log.form in WRITERS or isinstance(caught.value, refusals.LogError), told
    elif log.last is None and log.form not in WRITERS:
      with pytest.raises(refusals.LogError, match='no such file|the log is empty'):
        read(log, folder)
    else:
      rows, found = (write if log.form in WRITERS else read)(log, folder)
      assert sorted(rows) == sorted(log.rows), told
      assert found.num_rounds == (NUM_ROUNDS if log.form in WRITERS else log.last + 1), told
