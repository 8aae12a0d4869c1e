"""Training in TFF by person: a table says who owns which client, and the guard admits by it."""

import pytest

import fl_dpftrl as dpftrl
import tff_inprocess
from tests import made
from tests.tff_inprocess import small_processes

pytestmark = [pytest.mark.tff, pytest.mark.slow]


STRATEGY = dpftrl.BLT([0.9, 0.4], [0.2, 0.3])


@pytest.fixture(name='learning', scope='module')
def fixture_learning():
  """An aggregator and a process with it, which begins each run with a state of its own."""
  tff_inprocess.use()
  aggregator = made.factory(STRATEGY, report_goal=4)
  return small_processes.unweighted(aggregator), aggregator


@pytest.mark.parametrize(
  'inner', [dpftrl.LossBudget(max_participations=3, min_sep=2), dpftrl.MinSep(None, 2, 3)]
)
def test_a_run_of_people_goes_on_with_more_clients(tmp_path, inner, learning):
  owners = tmp_path / 'owners.csv'
  data, names = small_processes.clients(), [f'client {i}' for i in range(12)]
  rows = [f'{name},p{i // 2},0\n' for i, name in enumerate(names)]
  per_unit = dpftrl.PerUnit(inner, max_rows=1)

  def trained(num_rounds, **changes):
    owners.write_text('device_id,unit_id,from_round\n' + ''.join(rows))
    data_of = lambda t, client: data[int(client.split()[1]) % 2]
    arguments = dict(folder=tmp_path / 'run', clients=names, client_data=data_of, units=owners)
    arguments |= dict(num_rounds=num_rounds, participation=per_unit, say=lambda line: None)
    return dpftrl.train(*learning, **arguments | changes)

  trained(3)
  rows.append('client 0,p5,3\n')
  statement = trained(6).statement
  assert statement.unit == 'person' and statement.declared.holds and statement.num_rounds == 6
  assert statement.runs[0].units.cited and statement.runs[0].units.max_rows == 1
  run = dpftrl.open_run(tmp_path / 'run', units=owners)
  by_round: dict[int, list[str]] = {}
  for table in run.log.tables():
    for t, unit in zip(*(run.by_unit(table).column(n).to_pylist() for n in ('round', 'device_id'))):
      by_round.setdefault(t, []).append(unit)
  assert all(len(set(units)) == len(units) for units in by_round.values())
  assert min(map(len, by_round.values())) < 4  # Others of one person were turned away.
  for changes in ({'units': None}, {'participation': inner}):
    with pytest.raises(ValueError, match='need each other'):
      trained(7, **changes)
