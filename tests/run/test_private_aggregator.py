"""`PrivateAggregator`: its releases, its protocol, and one line for each wrong use."""

import errno
import json
import os
import shutil
import threading
import time
from concurrent import futures

import numpy as np
import pytest
from scipy import stats

import fl_dpftrl as dpftrl
from fl_dpftrl.noise import integer_rows, normals
from fl_dpftrl.participation.counts import seen
from fl_dpftrl.participation.rules import sampling
from fl_dpftrl.run import guards
from fl_dpftrl.support.files import mark
from tests import made

BATCHES = sampling.CyclicPoisson(num_rounds=12, num_examples=8, batch_size=2)
BLT, SCHEMA = made.BLT, made.SCHEMA
TEMPLATE = {'w': np.zeros((4, 2), np.float32), 'b': np.zeros(3, np.float32)}
SIZE = 11


def update(seed=0, scale=0.05):
  rng = np.random.default_rng(seed)
  return {
    name: (scale * rng.normal(size=a.shape)).astype(np.float32) for name, a in TEMPLATE.items()
  }


def opened(folder, strategy=BLT, **arguments):
  return made.aggregator(folder, strategy, **dict(template=TEMPLATE, clip_norm=0.5) | arguments)


def released(aggregator, ids=('a', 'b'), updates=None):
  with aggregator.round(ids) as round_:
    for each in [update(i) for i in range(len(ids))] if updates is None else updates:
      round_.add(each)
  return round_.mean


def flat(mean):
  return np.concatenate([np.ravel(mean[name]) for name in TEMPLATE])


@pytest.mark.parametrize('library', ['numpy', 'torch', 'jax.numpy'])
def test_ids_may_be_an_array_of_the_loop(library, tmp_path):
  ids = pytest.importorskip(library).arange(4)
  with opened(tmp_path / 'run', participation=SCHEMA) as aggregator:
    assert aggregator.admissible(ids, at_most=3).tolist() == [0, 1, 2]
    with aggregator.round(ids[:3]) as round_:
      for device in ids[:2]:
        round_.add(update(), device_id=device)
      with pytest.raises(ValueError, match='device that added an update before'):
        round_.add(update(), device_id=ids[0])
      with pytest.raises(ValueError, match='device_id must be given for each update'):
        round_.add(update())
    assert aggregator.admissible(ids).tolist() == [3]


def test_releases_are_the_sum_and_the_row_by_hand(tmp_path):
  maker = integer_rows.RowMaker(BLT, size=SIZE, num_rounds=5, seed=normals.fixed_seed(3))
  row, unit = np.empty(SIZE, np.int64), 2.0 * 2.0**-34
  for t in range(5):
    with opened(tmp_path / 'run', noise_seed=3) as aggregator:
      assert aggregator.next_round == t
      mean = released(aggregator, ids=[f'{t}a', f'{t}b'])
    maker.make(row)
    # An update has 2¹⁰ units of the lattice a unit, since 0.5 clip norms have under 2²⁴ of them.
    scale = np.float32(1.0 / (unit * 2**10 * 0.5))
    total = sum(np.trunc(scale * flat(update(i))).astype(np.int64) for i in range(2)) * 2**10
    expected = ((total + row) * (unit * 0.5 / 2)).astype(np.float32)
    np.testing.assert_array_equal(flat(mean), expected)
  maker.close()


def test_the_noise_has_the_covariance_of_the_strategy_over_starts_and_burnt_rows(tmp_path):
  size, num_rounds = 20_000, 6
  template = np.zeros(size, np.float32)
  rows = []
  for t in range(num_rounds):
    with opened(tmp_path / 'run', template=template) as aggregator:
      if t == 2:
        with pytest.raises(KeyError), aggregator.round(['a', 'b']):
          raise KeyError  # Row 2 is burnt.
        continue
      rows.append(released(aggregator, updates=[template, template]))
  kept = [0, 1, 3, 4, 5]
  for factor in (1.0, 2 / 3, 1.5):
    noising = BLT.noising_matrix(num_rounds)[kept] * (2.0 * 0.5 / 2) * factor
    white = np.linalg.solve(np.linalg.cholesky(noising @ noising.T), np.array(rows, np.float64))
    second = white @ white.T / size - np.eye(len(kept))
    # Each entry has a standard deviation of 1/√d, those of the diagonal √2 times as much.
    worst = np.abs(second * np.sqrt(size) / np.sqrt(1 + np.eye(len(kept)))).max()
    assert (worst < 4.5) == (factor == 1.0)
    assert factor != 1.0 or stats.kstest(white.ravel(), 'norm').pvalue > 1e-4


def test_the_log_proves_what_happened(tmp_path):
  folder = tmp_path / 'run'
  with opened(folder, participation=SCHEMA, max_epsilon=30.0, delta=1e-6) as aggregator:
    with pytest.raises(ValueError, match='there is no round yet'):
      aggregator.privacy_loss()
    for t in range(4):
      released(aggregator, ids=[f'a{t % 2}', f'b{t % 3}'])
      expected = dpftrl.account(
        BLT,
        dpftrl.MinSep(num_rounds=t + 1, min_sep=min(2, t + 1) if t < 2 else 2),
        noise_multiplier=2.0,
        delta=1e-6,
        num_coordinates=SIZE,
      )
      assert aggregator.privacy_loss().epsilon() <= expected.epsilon() * (1 + 1e-12)
    so_far = aggregator.privacy_loss(1e-5).epsilon()
    assert 0 < so_far < aggregator.privacy_loss().epsilon()
    open_statement = aggregator.statement()
    aggregator.report(tmp_path / 'report.html')
  assert open_statement.worst_case == aggregator.privacy_loss()
  assert open_statement.arithmetic.kind == 'covered'
  assert open_statement.arithmetic.num_coordinates == SIZE
  run = dpftrl.open_run(folder / 'participation.parquet', folder / 'strategy.json')
  closed = dpftrl.replay(run, delta=1e-6)
  assert closed.to_json()['worst_case'] == open_statement.to_json()['worst_case']
  assert closed.declared.holds
  document = json.loads((folder / 'claim.json').read_text())
  assert document.pop('run') == run.log.metadata['fl_dpftrl.run']
  assert run.claim == dpftrl.Claim.from_json(document, BLT)
  assert 'ε' in (tmp_path / 'report.html').read_text()


def test_counts_and_outcomes(tmp_path):
  with opened(tmp_path, zeroing_norm=100.0, report_goal=4, noise_multiplier=0.0) as aggregator:
    small, huge, bad = update(), update(scale=1e4), update()
    bad['b'][1] = np.nan
    with aggregator.round(range(4)) as round_:
      outcomes = [round_.add(u) for u in (small, update(scale=5.0), huge, bad)]
    assert outcomes == ['kept', 'clipped', 'zeroed', 'rejected']
    assert (round_.num_updates, round_.clipped_count) == (4, 1)
    assert (round_.zeroed_count, round_.rejected_count) == (1, 1)
    norm = np.linalg.norm(4 * flat(round_.mean) - flat(small))
    assert norm == pytest.approx(0.5, rel=2.0**-14)
    assert 'noise is off' in aggregator.statement(1e-6).void_reason
    with pytest.raises(ValueError, match='there is no ε: noise is off'):
      aggregator.privacy_loss(1e-6)


def test_a_batch_that_was_filled_up_counts_its_first_updates(tmp_path):
  jnp = pytest.importorskip('jax.numpy')
  each = [update(i) for i in range(4)]
  batch = {name: np.stack([one[name] for one in each]) for name in TEMPLATE}
  means = []
  for number, kind in enumerate((np.asarray, jnp.asarray)):
    with opened(tmp_path / f'{number}', noise_seed=1) as aggregator:
      with aggregator.round(['a', 'b']) as round_:
        round_.add_batch({name: kind(part) for name, part in batch.items()}, count=2)
      assert isinstance(round_.mean['w'], type(kind(batch['w'])))
      means.append(flat(round_.mean))
  with opened(tmp_path / 'single', noise_seed=1) as aggregator:
    np.testing.assert_array_equal(flat(released(aggregator, updates=each[:2])), means[0])
  np.testing.assert_array_equal(*means)


def entered(aggregator, ids, num_updates, devices=(), **options):
  """Returns a round after its block, within which updates were added."""
  with aggregator.round(list(ids), **options) as round_:
    for device in devices:
      round_.add(update(), device_id=device)
    for _ in range(num_updates):
      round_.add(update())
  return round_


def failed(aggregator):
  round_ = aggregator.round(list('ab')).begin()
  round_.fail()
  return round_


# Name → a wrong use, and what is said of it.
WRONG = {
  'a device twice': (lambda a: entered(a, 'aa', 2),
    r'device_ids: 1 may not take part in round 0 \(1 by twice\)'),
  'too early': (lambda a: [entered(a, ids, 2) for ids in ('ab', 'bc')],
    r'1 may not take part in round 1 \(1 by min_sep\); admissible'),
  'a round twice': (lambda a: entered(a, 'ab', 2).begin(), 'round 0 was entered before'),
  'two rounds': (lambda a: [a.round(list(ids)).begin() for ids in ('ab', 'cd')],
    'round 0 is still open'),
  'a mean within': (lambda a: a.round(list('ab')).begin().mean,
    'the mean is there after the block'),
  'a mean of nothing': (lambda a: failed(a).mean, 'round 0 failed, and nothing of it is released'),
  'too many updates': (lambda a: entered(a, 'ab', 3),
    'round 0 has 2 devices, each with one update'),
  'too few updates': (lambda a: entered(a, 'abc', 1), 'round 0 has 1 updates and needs 2: nothing'),
  'too few devices': (lambda a: entered(a, 'a', 1), '2 updates need as many devices'),
  'fewer than at_least': (lambda a: entered(a, 'abcd', 2, at_least=3),
    'round 0 has 2 updates and needs 3: nothing of it is released'),
  'fewer devices than at_least': (lambda a: a.round(list('ab'), at_least=3).begin(),
    'device_ids: 3 updates need as many devices, got 2'),
  'at_least 0': (lambda a: a.round(list('ab'), at_least=0), 'at_least must be at least 1'),
  'an update after the end': (lambda a: entered(a, 'ab', 2).add(update()),
    'only within the block of its round'),
  'an update of a stranger': (lambda a: entered(a, 'abc', 0, 'x'),
    'of a device that is not of round 0'),
  'an update of a device twice': (lambda a: entered(a, 'abc', 0, 'aa'),
    'of a device that added an update before'),
  'an update without a device': (lambda a: entered(a, 'abc', 1, 'a'),
    'device_id must be given for each update of a round, or for none'),
  'a device after an update without one': (lambda a: entered(a, 'abc', 0, [None, 'a']),
    'device_id must be given for each update of a round, or for none'),
  'a device that is a list': (lambda a: entered(a, 'abc', 0, [['a']]),
    'device_id must be text or a whole number, got a list'),
  'a closed aggregator': (lambda a: (a.close(), entered(a, 'ab', 2)),
    'the run is closed; open it again'),
  'an update after it was closed': (
    lambda a: (
      entered(a, 'ab', 2), begun := a.round(list('cd')).begin(), a.close(), begun.add(update())
    ), 'only within the block of its round'),
  'a batch after an update with a device': (
    lambda a: (
      (round_ := a.round(list('ab')).begin()).add(update(), device_id='a'),
      round_.add_batch({n: np.stack([p]) for n, p in update().items()}),
    ),
    'device_id must be given for each update of a round, or for none',
  ),
  'a batch of more': (
    lambda a: (
      a.round(list('ab')).begin().add_batch({n: np.stack([p] * 3) for n, p in update().items()})
    ),
    'round 0 has 2 devices, each with one update; got 3',
  ),
  'a batch of several sizes': (
    lambda a: (
      a.round(list('ab'))
      .begin()
      .add_batch({'w': TEMPLATE['w'][None], 'b': np.zeros((2, 3), np.float32)})
    ),
    r"update\['b'\] must be float32 of shape \[1, 3\]",
  ),
  'another structure': (lambda a: a.round(list('ab')).begin().add({'w': update()['w']}),
    "update must be a mapping of 'w', 'b'"),
  'ids that are none': (lambda a: released(a, [1.5, 2.5]), 'device_id'),
  'ids in one text': (lambda a: released(a, 'ab'), 'device_ids must be one list'),
  'no delta': (lambda a: a.privacy_loss(), 'delta must be given'),
  'no round': (lambda a: a.statement(1e-6), 'there is no round yet'),
}  # fmt: skip


@pytest.mark.parametrize('use, message', WRONG.values(), ids=WRONG)
def test_wrong_uses_get_one_line(use, message, tmp_path):
  with opened(tmp_path / 'run', participation=SCHEMA) as aggregator:
    with pytest.raises(ValueError, match=message) as raised:
      use(aggregator)
  assert '\n' not in str(raised.value)


def test_rounds_tolerate_dropout(tmp_path):
  with opened(tmp_path, report_goal=4, participation=SCHEMA, noise_seed=3) as aggregator:
    with aggregator.round(list('abcde'), at_least=2) as round_:
      for device in 'db':
        round_.add(update(0), device_id=device)
    # All who were admitted took part; the divisor is the report goal.
    assert aggregator.admissible(list('abcdef')).tolist() == ['f']
    assert aggregator.statement(1e-6).to_json()['num_participations'] == 5
  with opened(tmp_path / 'twice', report_goal=4, participation=SCHEMA, noise_seed=3) as aggregator:
    whole = released(aggregator, list('abcd'), [update(0), update(0), *2 * [update(0, 0.0)]])
  np.testing.assert_array_equal(flat(round_.mean), flat(whole))


def test_a_device_twice_is_refused_without_a_schema_too(tmp_path):
  with opened(tmp_path) as aggregator:
    with pytest.raises(ValueError, match=r'1 may not take part in round 0 \(1 by twice\)'):
      released(aggregator, list('aa'))
    assert aggregator.next_round == 0
    assert aggregator.admissible(list('abc'), at_most=2).tolist() == ['a', 'b']


@pytest.mark.parametrize('arguments, message', [
  (dict(noise_multiplier=-1.0), 'noise_multiplier must be finite and at least 0'),
  (dict(noise_multiplier=None), 'give noise_multiplier, or participation, max_epsilon, delta to'),
  (dict(noise_multiplier=None, participation=SCHEMA, max_epsilon=2.0), 'or delta to calibrate'),
  (dict(clip_norm=0.0), 'clip_norm must be from 1e-30 to 1e30'),
  (dict(participation=(6, 2)), 'participation must be one of .*MinSep'),
  (dict(clip_norm=dpftrl.AdaptiveClipping(1.0, clipped_count_stddev=0.1)),
   'clipped_count_stddev=0.1 must be above'),
  (dict(metrics={}), 'metrics must map up to 1000 names'),
  (dict(metrics={'round': 1.0}), 'metrics must have printable names'),
  (dict(metrics={'loss': 0.0}), 'the bound of loss must be positive and finite'),
  (dict(metrics={'loss': 1.0}, metrics_stddev=-1.0), 'metrics_stddev must be positive and finite'),
  (dict(metrics={'loss': 1.0}, metrics_stddev=0.1), 'it would use up the guarantee'),
  (dict(metrics={'loss': 1.0}, metrics_stddev=1e12), 'metrics_stddev=1e[+]12 is too large'),
  (dict(metrics_stddev=1.0), 'metrics_stddev is for metrics'),
  (dict(report_goal=0), 'report_goal must be at least 1'),
  (dict(zeroing_norm=-1.0), 'zeroing_norm must be positive and finite'),
  (dict(delta=2.0), 'delta must lie strictly between 0 and 1'),
  (dict(max_epsilon=1.0), 'max_epsilon=1 needs schema and delta'),
  (dict(max_epsilon=1.0, delta=1e-6, noise_multiplier=None, participation=BATCHES),
   'give noise_multiplier, as of dpftrl.calibrate'),
  (dict(max_epsilon=1.0, participation=SCHEMA, delta=1e-6, noise_seed=1),
   'max_epsilon=1 needs a guarantee; the noise seed was given'),
  (dict(max_epsilon=1e-3, participation=SCHEMA, delta=1e-6), 'too little for one round'),
  (dict(noise_multiplier=1e-9), 'is too small for sums of whole numbers'),
  (dict(report_goal=2**40), 'have no room in sums of 64 bits'),
])  # fmt: skip
def test_arguments_that_will_not_do(arguments, message, tmp_path):
  with pytest.raises(ValueError, match=message):
    opened(tmp_path / 'run', **arguments)
  opened(tmp_path / 'run').close()  # And the folder can be used.


def test_a_budget_ends_the_run(tmp_path):
  most = dpftrl.account(
    BLT, SCHEMA.within(3), noise_multiplier=2.0, delta=1e-6, num_coordinates=SIZE
  ).epsilon()
  arguments = dict(participation=SCHEMA, delta=1e-6, max_epsilon=most * (1 + 1e-9))
  with opened(tmp_path, **arguments) as aggregator:
    assert aggregator.max_rounds == 3
    for t in range(3):
      released(aggregator, [f'a{t}', f'b{t}'])
  with opened(tmp_path, **arguments) as aggregator:
    with pytest.raises(guards.BudgetSpentError, match='would pass max_epsilon'):
      released(aggregator, ['x', 'y'])
    assert aggregator.next_round == 3


def test_a_budget_chooses_the_noise_that_all_rounds_of_the_schema_need(tmp_path):
  arguments = dict(noise_multiplier=None, participation=SCHEMA, delta=1e-6, max_epsilon=3.0)
  planned = dpftrl.calibrate(BLT, SCHEMA, epsilon=3.0, delta=1e-6, num_coordinates=SIZE)
  with opened(tmp_path, **arguments) as aggregator:
    assert aggregator.noise_multiplier == planned.noise_multiplier
    released(aggregator)
  with opened(tmp_path, **arguments) as aggregator:  # And again, where it was interrupted.
    while aggregator.next_round < aggregator.max_rounds:
      released(aggregator, [f'a{aggregator.next_round % 2}', f'b{aggregator.next_round % 2}'])
    assert aggregator.next_round == SCHEMA.num_rounds
    assert 2.99 < aggregator.privacy_loss().epsilon() <= 3.0
  with pytest.raises(ValueError, match='another run|noise_multiplier'):
    opened(tmp_path, **arguments | dict(max_epsilon=4.0))


def test_a_folder_of_another_run_is_refused(tmp_path):
  with opened(tmp_path, participation=SCHEMA) as aggregator:
    released(aggregator)
  for changes in (
    dict(noise_multiplier=3.0),
    dict(clip_norm=1.0),
    dict(strategy=dpftrl.Identity()),
    dict(template=np.zeros(3, np.float32)),
    dict(participation=dpftrl.MinSep(12, 3)),
  ):
    with pytest.raises(ValueError, match='another|differ'):
      opened(tmp_path, **dict(participation=SCHEMA) | changes)
  with opened(tmp_path, participation=SCHEMA) as aggregator:
    assert aggregator.next_round == 1


def run_and_its_copy(tmp_path):
  """Returns the folder of a run with two rounds, and its copy of the moment between them."""
  folder, copy = tmp_path / 'run', tmp_path / 'copy'
  with opened(folder) as aggregator:
    released(aggregator)
  shutil.copytree(folder, copy)
  with opened(folder) as aggregator:
    released(aggregator, list('cd'))
  return folder, copy


def test_a_log_or_noise_that_was_put_back_gives_no_row_twice(tmp_path):
  folder, copy = run_and_its_copy(tmp_path)
  names = ('participation.parquet', 'participation.ledger')
  newest = {name: (folder / name).read_bytes() for name in names}
  for name in names:
    shutil.copy(copy / name, folder)
  with pytest.raises(
    ValueError, match='has 1 rounds, and participation.mark says that 2 were begun'
  ):
    opened(folder)
  (folder / names[0]).write_bytes(newest[names[0]])
  with pytest.raises(ValueError, match='put the newest'):
    opened(folder)
  (folder / names[1]).write_bytes(newest[names[1]])
  opened(folder).close()
  # Noise that is older than the log: the log's rounds count.
  for path in (copy / 'noise').iterdir():
    content = path.read_bytes()
    with (folder / 'noise' / path.name).open('r+b') as file:  # The file stays the same one.
      file.write(content)
  with pytest.raises(mark.LostStateError, match='put back from a backup'):
    opened(folder)
  with opened(folder, moved=True) as aggregator:
    assert aggregator.next_round == 2
    assert aggregator._noised.rows.next_row == 2


def test_a_whole_log_that_was_put_back_is_a_copy(tmp_path):
  """With its mark; also where it is said to have been moved, as rows were given out since."""
  folder, copy = run_and_its_copy(tmp_path)
  for path in copy.glob('participation.*'):
    shutil.copy(path, folder)
  for moved in (False, True):
    with pytest.raises(
      mark.LostStateError, match='put back from a backup in part: row 1 was given'
    ):
      opened(folder, moved=moved)


def test_a_mark_that_was_put_back_stays_one_after_its_log_went_on(tmp_path):
  """Its next record is of its own file, and says that those before were of another."""
  with opened(tmp_path) as aggregator:
    released(aggregator)
  marked = tmp_path / 'participation.mark'
  os.replace(shutil.copy(marked, tmp_path / 'put back'), marked)
  with dpftrl.LogWriter(tmp_path / 'participation.parquet', aggregator.claim) as log:
    log.append(1, ['c', 'd'], 5)
  for _ in range(2):
    with pytest.raises(mark.LostStateError, match='is a copy, or was put back'):
      opened(tmp_path)


@pytest.mark.parametrize('held_up, is_refused', [(0.5, False), (11.0, True)])
def test_a_process_that_was_held_up_as_it_wrote_the_mark_is_no_copy(
  tmp_path, monkeypatch, held_up, is_refused
):
  """If it is killed there; and only for so long."""

  class Killed(BaseException):
    pass

  aggregator = opened(tmp_path)
  released(aggregator)
  begin, written = time.time_ns, os.pwrite
  with monkeypatch.context() as patch:
    patch.setattr(mark.time, 'time_ns', lambda: begin() - int(held_up * 1e9))
    patch.setattr(mark.os, 'pwrite', lambda *args: written(*args) and killed())

    def killed():
      raise Killed

    with pytest.raises(Killed):
      aggregator.round(list('cd')).begin()
  aggregator._noised.rows.close()
  aggregator.guard.log.release()
  if is_refused:
    with pytest.raises(mark.LostStateError, match='is a copy'):
      opened(tmp_path)
  with opened(tmp_path, moved=is_refused) as again:
    assert again.next_round == 2


def test_a_round_whose_mark_failed_is_used_up_and_its_devices_took_part(tmp_path, monkeypatch):
  strategy, schema = 'identity', dpftrl.MinSep(num_rounds=9, min_sep=4, max_participations=2)
  claim = dpftrl.Claim(strategy=strategy, noise_multiplier=1.0, participation=schema)
  with guards.Guard(claim, log=tmp_path / 'log.parquet') as guard:

    def fail(*unused):
      raise OSError(errno.EIO, 'sync failed')

    for call in (lambda: guard.admit(['a']), lambda: guard.reserve([['b'], ['c']])):
      with monkeypatch.context() as patch:
        patch.setattr(mark.os, 'fdatasync', fail)
        with pytest.raises(OSError, match='log.mark'):
          call()
    assert guard.num_rounds == 1  # Nothing more is begun before the mark says so.
    assert guard.admit(['a', 'b']).device_ids.tolist() == ['b']
  assert dpftrl.open_run(tmp_path / 'log.parquet', strategy).log.num_rounds == 2


def test_rounds_that_begin_at_once_do_not_mix(tmp_path):
  with opened(tmp_path) as aggregator:
    begun, refused = [], []

    def begin(number):
      try:
        begun.append(aggregator.round([f'{number}a', f'{number}b']).begin())
      except ValueError as error:
        refused.append(str(error))

    with futures.ThreadPoolExecutor(8) as pool:
      list(pool.map(begin, range(8)))
    assert len(begun) == 1 and refused == ['round 0 is still open'] * 7
    assert aggregator.next_round == 1


def test_threads_that_ask_for_epsilon_count_each_round_once(tmp_path, monkeypatch):
  add = seen.Seen.add
  monkeypatch.setattr(seen.Seen, 'add', lambda *given: time.sleep(0.02) or add(*given))
  with opened(tmp_path / 'run', delta=1e-6) as aggregator:
    for cohort in ('ab', 'cd', 'ab'):
      released(aggregator, list(cohort))
      with futures.ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(aggregator.privacy_loss) for _ in range(2)]
      assert asked[0].result() == asked[1].result()
    assert aggregator.privacy_loss() == aggregator.statement().worst_case


def test_rounds_that_are_reserved_release_what_rounds_one_by_one_do(tmp_path):
  cohorts = [['a', 'b'], ['c', 'd'], ['a', 'b'], ['c', 'd'], ['a', 'e']]
  with opened(tmp_path / 'one', noise_seed=1, participation=SCHEMA) as aggregator:
    means = [flat(released(aggregator, ids)) for ids in cohorts]
    digest = aggregator.guard.log.digest
  recorded = []
  with opened(tmp_path / 'many', noise_seed=1, participation=SCHEMA) as aggregator:
    for t, round_ in enumerate(aggregator.rounds(iter(cohorts), reserve=2)):
      with round_:
        for i in range(2):
          round_.add(update(i), device_id=cohorts[t][i])
      assert flat(round_.mean).tobytes() == means[t].tobytes() and round_.index == t
      recorded.append(aggregator.next_round)
    assert recorded == [2, 2, 4, 4, 5] and aggregator.guard.log.digest == digest


def test_rounds_that_were_reserved_are_used_up(tmp_path):
  with opened(tmp_path, participation=SCHEMA) as aggregator:
    first, second, third = list(aggregator.rounds(map(list, ['ab', 'cd', 'ab']), reserve=3))
    with second:
      second.add(update())
      second.add(update())
    with pytest.raises(ValueError, match='round 0 was passed over'):
      first.begin()
    with pytest.raises(ValueError, match='round 1 was entered before'):
      second.begin()
    with pytest.raises(ValueError, match='after the block of its round'):
      third.mean  # noqa: B018
  with opened(tmp_path, participation=SCHEMA) as aggregator:
    assert aggregator.next_round == 3
    assert aggregator.admissible(list('abcd')).tolist() == ['c', 'd']


def test_a_cohort_that_is_refused_reserves_nothing(tmp_path):
  with opened(tmp_path, participation=SCHEMA) as aggregator:
    for bad, why in (
      (['a', 'd'], 'round 2 .1 by min_sep'),
      (['e'], 'need as many'),
      ([1, 2], 'type'),
    ):
      with pytest.raises(ValueError, match=why):
        list(aggregator.rounds([['a', 'b'], ['c', 'd'], bad]))
      assert aggregator.next_round == 0
    assert aggregator.admissible(list('abcd')).tolist() == list('abcd')
    with pytest.raises(ValueError, match='reserve'):
      next(aggregator.rounds([], reserve=0))


def test_a_round_that_is_ending_cannot_fail(tmp_path, monkeypatch):
  """Nor can another begin, whose updates would enter its sum."""
  with opened(tmp_path / 'run') as aggregator:
    round_, mean = aggregator.round(['a', 'b']).begin(), aggregator._noised.release
    for seed in range(2):
      round_.add(update(seed))
    is_ending, may_go_on, told = threading.Event(), threading.Event(), []

    def slow(*given):
      is_ending.set()
      assert may_go_on.wait(60)
      return mean(*given)

    def fail():
      with pytest.raises(ValueError, match='round 0 is not open') as raised:
        round_.fail()
      told.append(raised)

    monkeypatch.setattr(aggregator._noised, 'release', slow)
    threads = [threading.Thread(target=target) for target in (round_.end, fail)]
    threads[0].start()
    assert is_ending.wait(60)
    threads[1].start()
    with pytest.raises(ValueError, match='round 0 is still open'):
      aggregator.round(['c', 'd']).begin()
    may_go_on.set()
    for thread in threads:
      thread.join()
    assert told and round_.mean is not None


def test_means_do_not_depend_on_the_order_or_on_threads(tmp_path):
  updates = [update(i) for i in range(40)]
  means = []
  for name, given in (('a', updates), ('b', updates[::-1])):
    with opened(tmp_path / name, noise_seed=1, report_goal=40) as aggregator:
      with aggregator.round(range(40)) as round_:
        threads = [threading.Thread(target=round_.add, args=(u,)) for u in given]
        for thread in threads:
          thread.start()
        for thread in threads:
          thread.join()
      means.append(flat(round_.mean))
  np.testing.assert_array_equal(*means)


def test_a_failed_round_does_not_tell_the_size_of_a_secret_batch(tmp_path):
  with opened(tmp_path, participation=BATCHES) as aggregator:
    with pytest.raises(ValueError, match='at_least is refused where participation is drawn'):
      aggregator.round([1], at_least=1)


def test_rounds_are_reserved_up_to_the_budget(tmp_path):
  with opened(tmp_path, participation=SCHEMA) as aggregator:
    rounds = aggregator.rounds([list('ab'), list('cd')] * 10, reserve=8)
    for _ in range(SCHEMA.num_rounds):
      with next(rounds) as round_:
        round_.add(update())
        round_.add(update())
    with pytest.raises(guards.BudgetSpentError, match='round 12'):
      next(rounds)
    assert aggregator.next_round == SCHEMA.num_rounds


def test_only_those_who_may_take_part_are_admissible(tmp_path):
  with opened(tmp_path, participation=SCHEMA) as aggregator:
    released(aggregator, list('ab'))
    assert aggregator.admissible(list('abcde'), at_most=2).tolist() == ['c', 'd']
  with opened(tmp_path, participation=SCHEMA) as aggregator:  # Another start knows them.
    assert aggregator.admissible(list('abc')).tolist() == ['c']
