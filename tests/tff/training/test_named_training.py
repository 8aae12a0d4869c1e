"""Training of clients whose ids are replaced by names, of which some are erased on the way."""

import numpy as np
import pytest

import fl_dpftrl as dpftrl
import tff_inprocess
from fl_dpftrl.support.files import mark
from tests import made
from tests.tff.training import small_runs
from tests.tff.training.steps import STEPS
from tests.tff_inprocess import small_processes

pytestmark = pytest.mark.tff


def _open(folder, **more):
  return made.named_population(folder, epsilon=40.0, delta=1e-6, **more)


def _run(folder, fleet, **options):
  participation = dpftrl.MinSep(small_runs.NUM_ROUNDS, 2)
  claim = made.claim(dpftrl.Identity(), participation=participation)
  return small_runs.run(folder / 'run', claim=claim, population=fleet, **options)


@pytest.mark.parametrize('step', STEPS)
def test_killed_at_any_step_goes_on_after_an_erasure(tmp_path, step):
  process = small_runs.Process()
  with pytest.raises(small_runs.Killed):
    _run(tmp_path, _open(tmp_path), process=process, on_step=small_runs.kill_at(step, 3))
  first = small_runs.log_rows(tmp_path / 'run')
  erased = [f'device-{i}' for i in (0, 4)]
  fleet = _open(tmp_path)
  assert fleet.forget(erased)
  last, *_ = _run(tmp_path, fleet, process=process)
  again = small_runs.log_rows(tmp_path / 'run')
  assert again[: len(first)] == first and last.num_rounds == small_runs.NUM_ROUNDS
  assert last.state.aggregator.tolist() == [small_runs.NUM_ROUNDS, 1234]
  rows = [row for row, _ in process.sums]
  assert len(set(rows)) == len(rows)
  for i in range(9):
    device_id = f'device-{i}'
    assert made.holding(tmp_path, device_id) in ([], [] if device_id in erased else ['names.db'])
  with fleet.exclusive():
    assert len(fleet._state.losses.shares()) == len({each for row in again for each in row})


def test_other_cohorts_than_before_are_refused(tmp_path, monkeypatch):
  with pytest.raises(small_runs.Killed):
    _run(tmp_path, _open(tmp_path), on_step=small_runs.kill_at(STEPS[-1], 3))
  monkeypatch.setattr(small_runs, 'DEVICES', np.roll(small_runs.DEVICES, 1))
  with pytest.raises(mark.LostStateError, match='has other devices in round 0'):
    _run(tmp_path, _open(tmp_path))


@pytest.mark.slow
def test_people_train_under_names(tmp_path):
  tff_inprocess.use()
  aggregator = made.factory('identity', noise_multiplier=20.0, report_goal=4)
  process = small_processes.unweighted(aggregator)
  data, clients, seen = small_processes.clients(), [f'client {i}' for i in range(12)], set()

  def trained(num_rounds, fleet, owned):
    rows = ''.join(f'{clients[i]},owner {i // 2},0\n' for i in owned)
    (tmp_path / 'given').mkdir(exist_ok=True)
    (tmp_path / 'given' / 'owners.csv').write_text(f'device_id,unit_id,from_round\n{rows}')
    return dpftrl.train(
      process,
      aggregator,
      folder=tmp_path / 'run',
      num_rounds=num_rounds,
      clients=clients,
      client_data=lambda t, client: seen.add(client) or data[int(client.split()[1]) % 2],
      participation=dpftrl.PerUnit(dpftrl.MinSep(None, 2, 5), max_rows=2),
      units=tmp_path / 'given' / 'owners.csv',
      population=fleet,
      say=lambda line: None,
    )

  trained(3, _open(tmp_path, unit='person'), range(12))
  assert seen <= {*clients}
  fleet = _open(tmp_path, unit='person')
  fleet.forget(['owner 0', 'client 0', 'client 1', 'client 5'])
  seen.clear()
  statement = trained(8, fleet, (2, 3, 4, *range(6, 12))).statement
  assert seen and not seen & {'client 0', 'client 1', 'client 5'}
  assert statement.unit == 'person' and statement.declared.holds and statement.num_rounds == 8
  (tmp_path / 'given' / 'owners.csv').unlink()
  assert not made.holding(tmp_path, 'owner 0') + made.holding(tmp_path, 'client 5')
  for each in ('client 3', 'owner 2'):
    assert made.holding(tmp_path, each) == ['names.db']
