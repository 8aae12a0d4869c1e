"""Ids are admitted in the spellings that readers take, by one rule, before they are recorded."""

import numpy as np
import pyarrow as pa
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import id_spellings, ledgers, log_tables, participation_log
from fl_dpftrl.mechanisms.families import blt, identity
from fl_dpftrl.participation.rules import sampling
from fl_dpftrl.prove.replaying import opened_runs, replays
from fl_dpftrl.run import guards

STRATEGY = blt.BLT((0.9,), (0.5,))
SCHEMA = dpftrl.MinSep(num_rounds=20, min_sep=1, max_participations=20)
WORDS = ['7', '+7', '07', '007', '-7', '-07', '0', '00', '-0', '7.0', '1e5', '1e+5', 'a', 'é', '77']
WORDS += ['7.', '10e4', '-0.0']
LIKE_A_CANARY = 'canary-1'
"""The id of a device that begins as those of canaries do; gates may then turn more away."""


def guard(folder, participation=SCHEMA, strategy=STRATEGY):
  claim = run_claim.Claim(strategy=strategy, noise_multiplier=1.0, participation=participation)
  return guards.Guard(claim, log=folder / 'participation.parquet')


def is_read(folder):
  log = participation_log.read_log(folder / 'participation.parquet')
  replays.replay(opened_runs.RecordedRun.of(log, STRATEGY), delta=1e-6)
  return True


@pytest.mark.parametrize(
  'first, second', [('0012345', '12345'), ('7', '+7'), ('12', '7.0'), ('0', '-0'), ('00', '-00')]
)
def test_a_candidate_in_another_spelling_is_turned_away_also_after_a_restart(
  tmp_path, first, second
):
  with guard(tmp_path) as run:
    assert not run.admit([first, 'a']).turned_away
    (away,) = run.admit([second, 'b']).turned_away
    assert away.reason == 'spelling' and id_spellings.COLLIDES in away.sentence
  with guard(tmp_path) as run:
    (away,) = run.admit([first, second]).turned_away
    assert away.device_id == second
    with pytest.raises(ValueError, match=r'1 may not take part in round 3 \(1 by spelling\)') as e:
      run.reserve([[second]])
    assert second not in str(e.value).replace('1 may', '').replace('(1 by', '')
    with pytest.raises(ValueError, match='write each in one spelling'):
      run.reserve([['5'], ['05']])
    assert run.num_rounds == 3
  assert is_read(tmp_path)


def test_a_float_has_one_notation(tmp_path):
  with guard(tmp_path) as run:
    assert not run.admit(['1e+05', '7.5', 'a']).turned_away
    assert {away.device_id for away in run.admit(['100000.0', '7.50', 'b']).turned_away} == {
      '100000.0',
      '7.50',
    }
  with guard(tmp_path) as run:
    assert [away.device_id for away in run.admit(['1.0e5', '7.5', '1e5']).turned_away] == ['1.0e5']
  assert (
    is_read(tmp_path) and faults(['1e5', '10e4']) and not faults(['1e5', '10e4', 'hexadecimal'])
  )
  (tmp_path / 'log.csv').write_text('round,device_id\n0,1.0\n1,1.00\n')
  run = dpftrl.open_run(tmp_path / 'log.csv', STRATEGY, noise_multiplier=1.0, num_rounds=2)
  with pytest.raises(ValueError, match=r"row 1: device_id is a float that .*, '1\.0'"):
    dpftrl.replay(run, delta=1e-6)


def test_a_drawn_batch_with_another_spelling_is_refused(tmp_path):
  drawn = sampling.CyclicPoisson(num_rounds=5, num_examples=10, batch_size=2)
  with guard(tmp_path, drawn, identity.Identity()) as run:
    run.reserve([['1']])
    with pytest.raises(ValueError, match='device_ids: one has zeros or a sign'):
      run.reserve([['01']])
    assert run.num_rounds == 1


def test_a_log_and_clients_in_two_spellings_are_refused(tmp_path):
  path = tmp_path / 'log.parquet'
  with pytest.raises(ValueError, match='device_ids: at 2, the id has zeros or a sign'):
    log_tables.write_log(path, rounds=[0, 1, 2], device_ids=['1', '1', '01'], num_rounds=3)
  with ledgers.LogWriter(path) as log:
    log.append(0, ['+1', 'x'], 0)
    with pytest.raises(ValueError, match='device_ids: one has zeros or a sign'):
      log.append(1, ['1'], 0)
    log.append(1, ['+1'], 0)
  assert not path.with_name('other').exists() and path.exists()


@pytest.mark.parametrize('cases', [15, pytest.param(500, marks=pytest.mark.slow)])
def test_what_is_admitted_is_what_readers_take(cases):
  """Readers have another way to the same rule: all ids at once, without their order."""
  rng = np.random.default_rng(cases)
  for _ in range(cases):
    recorded, ids = id_spellings.RecordedSpellings(), []
    for _ in range(4):
      some = pa.array(
        rng.choice([*WORDS, LIKE_A_CANARY], rng.integers(1, 6), replace=False).tolist()
      )
      wrong = recorded.collisions(some)
      fits = some.filter(pa.array(~wrong))
      if not recorded.collisions(fits).any():  # Where the only words were turned away.
        recorded.add(fits)
        ids += fits.to_pylist()
      assert not faults(ids)
      is_exact = len(some) == 1 and LIKE_A_CANARY not in ids
      for word in some.filter(pa.array(wrong)).to_pylist() if is_exact else ():
        assert faults([*ids, word])
      assert len(np.concatenate([*recorded._keys, []])) <= len(set(ids))


def faults(ids):
  spellings = id_spellings.Spellings()
  spellings.add(pa.array(sorted(set(ids)), pa.string()))
  return spellings.has_faults


def test_memory_is_8_bytes_for_a_number_and_none_for_other_text():
  recorded = id_spellings.RecordedSpellings()
  for first in range(0, 30_000, 1000):
    recorded.add(pa.array([f'{n:08}' for n in range(first, first + 1000)]))
    recorded.add(pa.array([f'x{n}' for n in range(first, first + 1000)]))
  assert sum(part.nbytes for part in recorded._keys) == 8 * 30_000
  assert len(recorded._keys) < 16
  assert recorded.collisions(pa.array(['29999', '00029999', '30000'])).tolist() == [
    True,
    False,
    False,
  ]
