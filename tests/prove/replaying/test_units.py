"""Statements of people who own several devices."""

import csv
import itertools
import json

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import refusals, unit_tables
from fl_dpftrl.prove.reports import privacy, settings
from fl_dpftrl.run import guards
from tests import made, oracle
from tests.commands import lines

BLT = dpftrl.BLT([0.7], [0.5])
SIGNED = dpftrl.BandedToeplitz([1.5, -0.6, 0.4])
DELTA = 1e-6
RULE = dpftrl.PerUnit(dpftrl.MinSep(30, 3, 6), 2)


def write(path, rows):
  """Writes a table of units (device, unit, from_round)."""
  with open(path, 'w', newline='') as file:
    csv.writer(file).writerows([('device_id', 'unit_id', 'from_round'), *rows])
  return path


def drawn(generator, num_devices=18, num_units=7):
  """Returns rows in which every device has an owner from round 0, and some get others later."""
  rows = []
  for device in range(num_devices):
    owners = generator.permutation(num_units)[: generator.choice([1, 1, 2, 3])].tolist()
    rows += [
      (f'd{device}', f'p{o}', int(generator.integers(0, 20)) * (i > 0))
      for i, o in enumerate(owners)
    ]
  return rows


def rows_of(table, log):
  """Returns the rounds of each unit, with a repetition for each device; log: (round, device)."""
  result: dict[str, list[int]] = {}
  for t, device in sorted(log):
    for name, unit, start in table:
      if name == device and start <= t:
        result.setdefault(unit, []).append(t)
  return result


@pytest.mark.parametrize('seed', range(12))
@pytest.mark.parametrize('strategy', [BLT, SIGNED], ids=['blt', 'signed'])
def test_figures_are_those_of_every_row_of_a_person(tmp_path, strategy, seed):
  generator = np.random.default_rng([5, seed])
  table, n = drawn(generator), int(generator.integers(3, 13))
  log = [(t, f'd{i}') for t in range(n) for i in range(18) if generator.random() < 0.2]
  log = log or [(0, 'd0')]
  dpftrl.write_log(
    tmp_path / 'log.parquet',
    rounds=[t for t, _ in log],
    device_ids=[d for _, d in log],
    num_rounds=n,
  )
  units = write(tmp_path / 'owners.csv', table)
  run = dpftrl.open_run(tmp_path / 'log.parquet', strategy, noise_multiplier=3.0, units=units)
  statement = dpftrl.replay(run, delta=DELTA)
  people = rows_of(table, log)
  gram = np.asarray(strategy.gram_matrix(n))
  grams = [gram[np.ix_(rounds, rounds)] for rounds in people.values()]
  if strategy is BLT:
    largest = max(g.sum() for g in grams)
    assert statement.observed.sensitivity**2 == pytest.approx(largest)
    assert statement.observed.sensitivity_kind == 'exact'
  else:  # Updates point wherever they cost most.
    for each in grams:
      reached = oracle.ascent(each[None])[0] if len(each) > 1 else each.sum()
      assert reached <= statement.observed.sensitivity**2 * (1 + 1e-9)
  distinct = {unit: sorted(set(rounds)) for unit, rounds in people.items()}
  apart = [b - a for rounds in distinct.values() for a, b in itertools.pairwise(rounds)]
  facts = statement.runs[0]
  assert facts.max_participations == max(map(len, distinct.values()))
  assert facts.min_sep == min(apart, default=n)
  assert facts.units.max_rows == max(r.count(t) for r in people.values() for t in r)
  assert statement.num_devices == len(people) == facts.units.counted.num_devices
  assert facts.counted.num_participations == len(log)
  assert statement.worst_case.sensitivity >= statement.observed.sensitivity * (1 - 1e-9)
  assert statement.declared is None and not facts.units.cited
  assert any('not cited by the log' in sentence for sentence in statement.assumptions)


def trained(tmp_path, rule=RULE, num_rounds=12):
  """Returns log, table and strategy file of a run whose rounds cite their table."""
  generator = np.random.default_rng(2)
  table = [(f'd{i}', f'p{i // 2}', 0) for i in range(20)]
  owners = write(tmp_path / 'owners.csv', table)
  claim = dpftrl.Claim(
    strategy=BLT, noise_multiplier=4.0, clip_norm=1.0, report_goal=1, participation=rule
  )
  with guards.Guard(claim, DELTA, log=tmp_path / 'log.parquet', units=owners) as guard:
    for t in range(num_rounds):
      if t == 6:
        guard.extend_units(write(owners, [*table, ('d20', 'p0', 6)]))
      guard.admit([f'd{i}' for i in generator.permutation(20 + (t >= 6))[:9].tolist()], timestamp=t)
  dpftrl.save_strategy(tmp_path / 's.json', BLT, schema=dpftrl.MinSep(30, 3, 6))
  return tmp_path / 'log.parquet', owners


@pytest.mark.filterwarnings('ignore:a round admits no device')
def test_a_run_by_person_through_statement_evidence_and_reports(tmp_path):
  log, owners = trained(tmp_path)
  run = dpftrl.open_run(log, BLT, units=owners)
  statement = dpftrl.replay(run, delta=DELTA)
  assert statement.unit == 'person' and statement.declared.holds and statement.runs[0].units.cited
  assert statement.declared.guarantee.sensitivity == pytest.approx(
    2 * dpftrl.account(BLT, RULE.participation, noise_multiplier=4.0, delta=DELTA).sensitivity
  )
  assert 'of all devices of one person are zeros' in ' '.join(statement.assumptions)
  page = privacy.report(statement, settings.Setting())
  assert 'a person, with all devices that it owns' in page and 'Persons by participations' in page
  published = privacy.report(statement.publishable(), settings.Setting())
  assert 'p0' not in published and 'persons in the table of units' in page
  assert 'and the most devices of one person in a round are those of the log' in published
  assert 'in the table of units' not in published and 'num_units' not in published
  dpftrl.write_evidence(tmp_path / 'evidence', run, delta=DELTA)
  assert dpftrl.verify(tmp_path / 'evidence').passed
  table = tmp_path / 'evidence' / 'units.parquet'
  table.unlink()
  failed = dpftrl.verify(tmp_path / 'evidence')
  assert {'files', 'claim', 'statement'} <= set(failed.failed)
  words = ['replay', f'--log={log}', f'--strategy={tmp_path / "s.json"}', '--delta=1e-6']
  shown = json.loads(lines.run([*words, f'--units={owners}', '--json']).stdout)
  assert shown['units']['name'] == 'person' and shown['declared']['max_rows'] == 2


@pytest.mark.filterwarnings('ignore:a round admits no device')
def test_what_does_not_fit_the_table_is_refused_by_row(tmp_path):
  log, owners = trained(tmp_path)
  rows = [line.split(',') for line in owners.read_text().splitlines()[1:]]
  for table, words in (
    (rows[1:], 'first 20 of its 20 rows are not those that the log cites from round 0'),
    ([*rows[:19], ('d19', 'p0', 0), rows[20]], 'first 20 of its 21 rows'),
    ([*rows, ('d21', 'p1', 11)], 'row 22: is of round 11'),
  ):
    changed = write(tmp_path / 'changed.csv', table)
    with pytest.raises(refusals.LogError, match=words):
      dpftrl.replay(dpftrl.open_run(log, BLT, units=changed), delta=DELTA)
  with pytest.raises(ValueError, match='give their table, as units'):
    dpftrl.open_run(log, BLT)
  plain = tmp_path / 'plain.parquet'
  dpftrl.write_log(plain, rounds=[0, 1, 1], device_ids=['d1', 'd2', 'd3'], num_rounds=2)
  table = write(tmp_path / 'few.csv', [('d1', 'p', 0), ('d2', 'p', 0), ('d3', 'p', 2)])
  run = dpftrl.open_run(plain, BLT, noise_multiplier=1.0, units=table)
  with pytest.raises(
    refusals.LogError, match="plain.parquet, row 3: nobody owns device 'd3' in round 1"
  ):
    dpftrl.replay(run, delta=DELTA)


def test_people_in_several_spellings_are_refused_or_counted(tmp_path):
  log = tmp_path / 'log.csv'
  log.write_text('round,device_id\n0,d1\n0,d2\n')

  def opened(*owners):
    table = write(tmp_path / 'owners.csv', [(f'd{i}', p, 0) for i, p in enumerate(owners, 1)])
    return dpftrl.open_run(log, BLT, noise_multiplier=1.0, num_rounds=1, units=table)

  with pytest.raises(refusals.LogError, match='one person in two notations of a number'):
    dpftrl.replay([opened('7', 'x'), opened('x', '7.0')], delta=DELTA)
  assert dpftrl.replay(opened('7', '1e5', 'x'), delta=DELTA).runs  # 1e5 is hexadecimal, as of x.
  (warning,) = dpftrl.replay(opened('ada', 'Ada'), delta=DELTA).warnings
  assert warning.startswith('1 of 2 person ids would be one with another if letter case')


def test_an_aggregator_of_people_states_and_reports_them(tmp_path):
  owners = write(tmp_path / 'owners.csv', [(f'd{i}', f'p{i // 2}', 0) for i in range(4)])
  options = dict(participation=RULE, delta=DELTA, units=owners)
  with made.aggregator(tmp_path / 'run', BLT, **options) as aggregator:
    made.release(aggregator, ['d0', 'd1'])
    statement = aggregator.statement()
    aggregator.report(tmp_path / 'report.html')
  assert statement.unit == 'person' and statement.observed.sensitivity == pytest.approx(2.0)
  assert '--units=UNITS' in (tmp_path / 'report.html').read_text()


@pytest.mark.filterwarnings('ignore:a round admits no device')
@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    ({'units': None}, 'its metadata are not those of'),
    ({'units': None, 'metadata_sha256': None}, 'its rows are not those of'),
    ({'rounds_sha256': None, 'metadata_sha256': None}, 'cites a table of units without'),
    ({'units': b'[[Infinity, "x"]]', 'metadata_sha256': None}, 'is malformed'),
  ],
)
def test_a_log_of_units_without_its_citations_is_not_believed(tmp_path, changes, words):
  import pyarrow.parquet as pq

  log, owners = trained(tmp_path)
  stored = pq.read_table(log)
  changed = {f'fl_dpftrl.{name}'.encode(): value for name, value in changes.items()}
  metadata = {k: v for k, v in {**stored.schema.metadata, **changed}.items() if v is not None}
  for path in tmp_path.glob('log.*'):
    path.unlink()
  pq.write_table(stored.replace_schema_metadata(metadata), log)
  with pytest.raises(refusals.LogError, match=words):
    dpftrl.replay(dpftrl.open_run(log, BLT, units=owners), delta=DELTA)


@pytest.mark.filterwarnings('ignore:a round admits no device')
def test_a_report_of_people_names_the_most_devices_of_one_in_a_round(tmp_path):
  log, owners = trained(tmp_path)
  statement = dpftrl.replay(dpftrl.open_run(log, BLT, units=owners), delta=DELTA)
  page = privacy.report(statement, settings.Setting())
  assert page.count('with at most 2 of its devices in a round') >= 3
  assert 'devices enforce the schema' not in page and 'no person knew' in page


@pytest.mark.parametrize('other', ['until_round', 'To', 'site'])
def test_columns_that_nothing_reads_are_refused(tmp_path, other):
  names = 'device_id,unit_id,from_round'
  (tmp_path / 'a.csv').write_text(f'{names}\nd,ann,0\n')
  (tmp_path / 'b.csv').write_text(f'{names},{other}\ne,ben,0,3\n')
  for files in (['b.csv'], ['a.csv', 'b.csv']):
    with pytest.raises(
      refusals.LogError, match=f"csv: has a column '{other}', which nothing reads"
    ):
      unit_tables.opened([tmp_path / name for name in files])
