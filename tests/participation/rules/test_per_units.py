"""People with several devices: what their rows cost, and who is admitted."""

import itertools
import math
import types

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import readers, refusals, unit_tables
from fl_dpftrl.participation.rules import per_units
from fl_dpftrl.run import guards
from tests import oracle

BLT = dpftrl.BLT([0.5], [0.5])
SCHEMA = dpftrl.MinSep(40, 5, 4)
DELTA = 1e-6


def table(rows) -> unit_tables.UnitTable:
  """Returns a table of rows (device, unit, from_round)."""
  devices, owners, rounds = zip(*rows)
  return unit_tables.UnitTable('owners', pa.array(devices), pa.array(owners), np.array(rounds))


def test_figures_of_multiplicities():
  matrix = BLT.strategy_matrix(5)
  gram = BLT.endless_gram().tabulated(8)
  entry = lambda s, t: float(gram.entries(np.array(min(s, t)), np.array(max(s, t))))
  square = 4 * entry(0, 0) + entry(1, 1) + 4 * entry(0, 1)
  assert square == pytest.approx(28 / 3, rel=1e-12)
  claimed = oracle.exact_delta(math.sqrt(square) / 2, 0.5)
  right = oracle.exact_delta(np.linalg.norm(matrix @ [2, 1, 0, 0, 0]) / 2, 0.5)
  assert right == pytest.approx(0.44123, abs=5e-6) and claimed == pytest.approx(0.44185, abs=5e-6)
  assert right <= claimed
  # A meter that charges a person once a round admits two devices in three rounds.
  assert sum(entry(s, t) for s in range(3) for t in range(3)) <= square
  wrong = oracle.exact_delta(np.linalg.norm(matrix @ [2, 2, 2, 0, 0]) / 2, 0.5)
  assert wrong == pytest.approx(0.77435, abs=5e-6) and wrong > claimed


def test_two_phones_in_the_same_rounds_and_one_round_apart():
  gram = np.asarray(dpftrl.BLT([0.7], [0.5]).gram_matrix(60))
  square = lambda rounds: gram[np.ix_(rounds, rounds)].sum()
  rounds = [0, 4, 8]
  assert square(rounds + rounds) / square(rounds) == pytest.approx(4.0)
  apart = square(rounds + [t + 1 for t in rounds]) / square(rounds)
  assert apart == pytest.approx(3.3556, abs=5e-5)


def test_a_guarantee_is_that_of_r_times_the_sensitivity():
  one = dpftrl.account(BLT, SCHEMA, noise_multiplier=8.0, delta=DELTA)
  two = dpftrl.account(BLT, per_units.PerUnit(SCHEMA, 2), noise_multiplier=16.0, delta=DELTA)
  assert two.epsilon() == pytest.approx(one.epsilon())
  budget = dpftrl.LossBudget(max_participations=4, min_sep=5)
  charged = dpftrl.account(BLT, per_units.PerUnit(budget, 2), noise_multiplier=8.0, delta=DELTA)
  assert (
    charged.epsilon() == dpftrl.account(BLT, budget, noise_multiplier=8.0, delta=DELTA).epsilon()
  )


def drawn_table(generator, num_devices=14, num_units=6) -> unit_tables.UnitTable:
  """Returns a table in which devices have one to three owners, some of them later."""
  rows = []
  for device in range(num_devices):
    owners = generator.permutation(num_units)[: generator.choice([1, 1, 1, 2, 3])]
    for place, owner in enumerate(owners.tolist()):
      rows.append((f'd{device}', f'p{owner}', int(generator.integers(0, 20)) if place else 0))
  return table(rows)


def owners_of(units: unit_tables.UnitTable, device: str, t: int) -> list[str]:
  """Returns the owners of a device in a round, row by row."""
  columns = units.device_ids.to_pylist(), units.unit_ids.to_pylist(), units.from_rounds.tolist()
  return [owner for name, owner, start in zip(*columns) if name == device and start <= t]


def allowed(participation, gram, rounds: list[int]) -> bool:
  """Returns whether a unit may have rows in these rounds, computed from all of them."""
  if any(rounds.count(t) > participation.max_rows for t in rounds):
    return False
  inner = participation.participation
  if participation.charges_rows:
    return gram[np.ix_(rounds, rounds)].sum() <= inner.square(BLT)
  distinct = sorted(set(rounds))
  return len(distinct) <= inner.participations and all(
    b - a >= inner.min_sep for a, b in itertools.pairwise(distinct)
  )


@pytest.mark.parametrize('seed', range(6))
@pytest.mark.parametrize('inner', [SCHEMA, dpftrl.LossBudget(max_participations=4, min_sep=3)])
def test_the_gate_admits_what_a_recount_of_every_unit_allows(tmp_path, inner, seed):
  generator = np.random.default_rng([3, seed])
  units, r = drawn_table(generator), int(generator.integers(1, 4))
  participation = per_units.PerUnit(inner, r)
  claim = dpftrl.Claim(strategy=BLT, noise_multiplier=4.0, participation=participation)
  gram = np.asarray(BLT.endless_gram().tabulated(64).entries(*np.sort(np.indices((40, 40)), 0)))
  rows: dict[str, list[int]] = {}
  turned_away, options = 0, dict(log=tmp_path / 'log.parquet', units=units)
  if seed % 2:  # A population whose budget is enough for all turns nobody else away.
    options |= dict(population=dpftrl.Population(tmp_path, epsilon=1e9, delta=DELTA, unit='person'))
  with guards.Guard(claim, DELTA, **options) as guard:
    for t in range(40):
      names = [f'd{i}' for i in generator.permutation(14)[: generator.integers(1, 9)]]
      expected = []
      for name in names:
        owners = owners_of(units, name, t)
        if all(allowed(participation, gram, [*rows.get(o, []), t]) for o in owners):
          expected.append(name)
          for owner in owners:
            rows.setdefault(owner, []).append(t)
      turned_away += len(names) - len(expected)
      with pytest.warns(UserWarning) if not expected else pytest.MonkeyPatch.context():
        admission = guard.admit(names, timestamp=t)
      assert admission.device_ids.tolist() == expected
      if generator.random() < 0.2:  # Meters and rounds are computed again from the log.
        guard.log.release()
        guard = guards.Guard(claim, DELTA, **options)
  assert (guard.gate.share_with_budget() is None) == (inner is SCHEMA or seed % 2 == 1)
  assert turned_away


def test_every_reason_is_said_in_one_line():
  gate = per_units.PerUnit(SCHEMA, 1).gate(BLT)
  units = table([('d1', 'p', 0), ('d2', 'p', 0), ('d3', 'q', 0)])
  gate.owners = lambda ids, t: units.owners(pa.array(ids), t)
  ids = np.array(['d1', 'd2', 'd3', 'd1'])
  # The second d1 is turned away as a double.
  assert gate.reasons(ids).tolist() == ['', 'max_rows', '', '']
  assert 'person with 1 devices' in gate.sentence('max_rows', -1, 0)
  gate.record(np.array(['d2']))
  assert gate.reasons(np.array(['d1'])).tolist() == ['min_sep']
  assert gate.of(np.array(['d1', 'd3'])).tolist() == [[0, -1], [1, 0]]
  assert 'is of a person that took part in round 0' in gate.sentence('min_sep', 0, 1)
  with pytest.raises(ValueError, match='device_ids: at 1, no person owns the device in round 1'):
    gate.reasons(np.array(['d1', 'd9']))


def test_a_claim_keeps_the_rule():
  participation = per_units.PerUnit(dpftrl.LossBudget(squared=9.0), 3, 'patient')
  claim = dpftrl.Claim(strategy=BLT, noise_multiplier=4.0, participation=participation)
  assert dpftrl.Claim.from_json(claim.to_json(), BLT) == claim
  assert 'patient' in participation.assumption and 'device of' not in participation.assumption
  with pytest.raises(ValueError, match='does not carry over'):
    per_units.PerUnit(dpftrl.SecretBins(num_rounds=20, num_bins=4))
  with pytest.raises(ValueError, match='max_rows'):
    per_units.PerUnit(SCHEMA, 0)
  for other in (per_units.PerUnit(SCHEMA), 'min_sep', None):
    with pytest.raises(ValueError, match='must be a MinSep or a LossBudget'):
      per_units.PerUnit(other)


def test_a_table_and_a_rule_need_each_other(tmp_path):
  claim = dpftrl.Claim(strategy=BLT, noise_multiplier=4.0, participation=per_units.PerUnit(SCHEMA))
  with pytest.raises(ValueError, match='need each other'):
    guards.Guard(claim, log=tmp_path / 'log.parquet')
  plain = dpftrl.Claim(strategy=BLT, noise_multiplier=4.0, participation=SCHEMA)
  with pytest.raises(ValueError, match='need each other'):
    guards.Guard(plain, log=tmp_path / 'log.parquet', units=table([('d', 'p', 0)]))


def test_each_round_cites_the_table_as_it_was(tmp_path):
  claim = dpftrl.Claim(strategy=BLT, noise_multiplier=4.0, participation=per_units.PerUnit(SCHEMA))
  path, first = tmp_path / 'log.parquet', [('d1', 'p', 0), ('d2', 'q', 0)]
  longer = [*first, ('d3', 'p', 1), ('d4', 'r', 3)]
  with guards.Guard(claim, log=path, units=table(first)) as guard:
    guard.admit(['d1'])
    with pytest.raises(refusals.LogError, match='row 3: is of round 0, and was not in the table'):
      guard.extend_units(table([*first, ('d3', 'p', 0)]))
    with pytest.raises(refusals.LogError, match='first 2 of its 3 rows are not those'):
      guard.extend_units(table(longer[1:]))
    guard.extend_units(table(longer))
    assert guard.check(['d3']).turned_away  # Its owner was in round 0.
    guard.admit(['d2'])
    cited = guard.log.units
  assert [t for t, _ in cited] == [0, 1] and cited[1][1].startswith('4:')
  metadata = __import__('pyarrow.parquet').parquet.read_metadata(path).metadata
  assert (
    metadata[b'fl_dpftrl.units']
    == str([[0, cited[0][1]], [1, cited[1][1]]]).replace("'", '"').encode()
  )
  for rows, words in (
    (first, 'first 4 of its 2 rows are not those that the log cites from round 1'),
    ([*first, ('d3', 'q', 1), ('d4', 'r', 3)], 'first 4 of its 4 rows'),
    ([*longer, ('d5', 's', 1)], 'row 5: is of round 1'),
  ):
    with pytest.raises(refusals.LogError, match=words):
      guards.Guard(claim, log=path, units=table(rows))
  with guards.Guard(claim, log=path, units=table([*longer, ('d5', 's', 2)])) as guard:
    guard.admit(['d5'])


def test_hostile_tables_are_refused_by_row(tmp_path):
  path = tmp_path / 'owners.csv'
  for rows, words in (
    ('d1,p,0\nd1,p,3\n', 'row 2: has device and unit of an earlier row'),
    ('d1,p,0\nd1,q,4\nd1,p,9\n', 'row 3: has device and unit of an earlier row'),
    ('d1,,0\n', 'row 1: unit_id is empty'),
    ('d1,NULL,0\n', 'row 1: unit_id is a mark of missing data'),
    ('d1,p,0\n d2,p,0\n', 'row 2: device_id has spaces around it'),
    ('d1,p,-1\n', 'row 1: from_round must be at least 0'),
    ('d1,p,soon\n', 'row 1: from_round must be a whole number'),
    ('d1,7,0\nd2,7.0,0\n', "row 2: unit_id reads as a float, and other ids are whole.*'7.0'"),
    ('d1,7,0\nd2,p,0\nd3,07,4\n', 'row 3: unit_id has zeros or a sign before a number'),
    ('d1,p,0\n7,p,0\n07,q,0\n', 'row 3: device_id has zeros or a sign before a number'),
    ('d1,p,10000000\n', 'row 1: from_round must be below 10000000, got 10000000'),
    ('', 'has no row'),
  ):
    path.write_text(f'device_id,unit_id,from_round\n{rows}')
    with pytest.raises(refusals.LogError, match=words) as raised:
      unit_tables.opened(path)
    assert '--' not in str(raised.value)  # No flag changes names or marks of these columns.


@pytest.mark.parametrize('change, words', [
  ({'unit_id': None}, "no column 'unit_id'; its columns are 'device_id', 'from_round'$"),
  ({'device_id': None}, "no column 'device_id'; its columns are 'unit_id', 'from_round'$"),
  ({'unit_id': [['p'], ['q']]}, 'unit_id must be text or whole numbers, is list'),
  ({'device_id': [['a', 'b'], ['c']]}, 'device_id must be text or whole numbers, is list'),
  ({'unit_id': ['p', None]}, 'row 2: has no unit_id'),
  ({'from_round': [None, 0]}, 'row 1: has no from_round'),
  ({'from_round': ['0', '1']}, 'from_round must be whole numbers, is string'),
  ({'unit_id': pa.array(['x' * 2000, 'y']).dictionary_encode()}, 'a unit_id is longer than 1024'),
])  # fmt: skip
def test_hostile_columns_are_refused_by_their_own_names(tmp_path, change, words):
  columns = {'device_id': ['a', 'b'], 'unit_id': ['p', 'q'], 'from_round': [0, 0]}
  columns = {name: v for name, v in (columns | change).items() if v is not None}
  pq.write_table(pa.table(columns), tmp_path / 'owners.parquet')
  with pytest.raises(refusals.LogError, match=words):
    unit_tables.opened(tmp_path / 'owners.parquet')


def test_files_of_a_table_have_ids_of_one_type(tmp_path):
  for name, unit in (('a', 'p'), ('b', 7)):
    columns = {'device_id': ['d' + name], 'unit_id': [unit], 'from_round': [0]}
    pq.write_table(pa.table(columns), tmp_path / f'{name}.parquet')
  with pytest.raises(refusals.LogError, match=r'b\.parquet: unit_id is whole numbers, but text in'):
    unit_tables.opened(tmp_path)


def test_a_table_has_the_same_digest_in_every_format(tmp_path):
  rows = [('d1', 'p', 0), ('d2', 'q', 0), ('d1', 'q', 7)]
  names = ('device_id', 'unit_id', 'from_round')
  text = ''.join(','.join(map(str, row)) + '\n' for row in [names, *rows])
  (tmp_path / 'owners.csv').write_text(text)
  columns = dict(zip(names, map(pa.array, zip(*rows))))
  pq.write_table(pa.table(columns), tmp_path / 'owners.parquet')
  citations = {unit_tables.opened(tmp_path / f'owners.{e}').citation for e in ('csv', 'parquet')}
  assert citations == {table(rows).citation}


def test_a_table_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
  path, read = tmp_path / 'owners.csv', readers.head
  path.write_text('device_id,unit_id,from_round\nd1,p,0\nd2,q,0\n')

  def swapping(source):
    result = read(source)
    path.write_text('device_id,unit_id,from_round\nd2,p,0\nd1,q,0\n')
    return result

  monkeypatch.setattr(readers, 'head', swapping)
  with pytest.raises(refusals.LogError, match='was changed while it was read'):
    unit_tables.opened(path)


def test_a_table_has_the_first_round_with_which_it_was_opened(tmp_path):
  path = tmp_path / 'owners.csv'
  path.write_text('device_id,unit_id,from_round\nd1,p,1\n')
  assert unit_tables.opened(path, 1).from_rounds.tolist() == [0]
  with pytest.raises(ValueError, match='give files'):
    unit_tables.opened(unit_tables.opened(path), 1)


def test_rows_beyond_the_most_of_a_unit_are_wrong():
  """Of two units: three rows in round 0, where two may be; and a round that is too soon."""
  rule = dpftrl.PerUnit(dpftrl.MinSep(9, 2, 3), max_rows=2)
  rounds, starts = np.array([0, 0, 0, 2, 2, 4, 1, 1, 2]), np.repeat([0, 6], [6, 3])
  assert np.flatnonzero(rule.wrong(BLT, rounds, starts)).tolist() == [2, 8]
  for most, is_kept in ((2, True), (3, False)):
    counts = types.SimpleNamespace(min_sep=2, max_participations=3, max_rows=most)
    assert (not rule.contradictions(counts, None, 0)) == is_kept
