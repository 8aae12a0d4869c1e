"""Observers of any loop and of the trainer: their files, trackers, status, and errors."""

import fractions
import json
import pathlib
import re
import struct
import subprocess
import sys
import threading
import types

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.participation.rules import sampling
from fl_dpftrl.run.observers import trackers
from tests import made

ROOT = pathlib.Path(__file__).parents[3]
SCHEMA = dpftrl.MinSep(num_rounds=6, min_sep=2)
STRATEGY = made.BLT
IDS = ['secret-ann', 'secret-bob']


def aggregator(folder, *observers, strategy=STRATEGY, **changes):
  options = dict(noise_multiplier=3.0, participation=SCHEMA, delta=1e-6, max_epsilon=9.0)
  return made.aggregator(folder, strategy, observers=observers, **options | changes)


def release(run, device_ids=IDS):
  return made.release(run, device_ids)


def events(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


class Recording(dpftrl.observers.Observer):
  def __init__(self):
    self.calls = []

  def begin(self, run, round_index=None):
    self.calls.append(('begin', round_index))

  def released(self, run, round_index, measurements):
    self.calls.append(('released', round_index, sorted(measurements)))

  def end(self, run, round_index=None, error=None):
    self.calls.append(('end', round_index, type(error)))

  def of(self, kind):
    return [call[1:] for call in self.calls if call[0] == kind]


def test_each_round_of_an_aggregator_is_begun_and_then_released_or_ended(tmp_path):
  seen = Recording()
  with aggregator(tmp_path / 'run', seen, metrics={'loss': 2.0}) as run:
    release(run)
    with pytest.raises(ValueError, match='was recorded|may not|min-sep'):
      run.round(IDS).begin()  # Too early.
    with pytest.raises(RuntimeError), run.round(['cid', 'dan']):
      raise RuntimeError('connection')
    with pytest.raises(ValueError, match='has 0 updates and needs 2'), run.round(IDS):
      pass
    run.round(['cid', 'dan']).begin().fail()
    for round_ in run.rounds([IDS], reserve=1):
      with round_:
        round_.add_batch(np.ones((2, 3)))
    run.round(['cid', 'dan']).begin()
  begun, released = seen.of('begin'), seen.of('released')
  assert begun == [(t,) for t in (None, *range(6))]
  assert released == [(t, ['clip_norm', 'loss']) for t in (0, 4)]
  ends = [(1, ValueError), (1, RuntimeError), (2, ValueError)]
  assert seen.of('end') == ends + [(t, type(None)) for t in (3, 5, None)]
  kinds = 'begin begin released end begin end begin end begin end begin released begin end end'
  assert [call[0] for call in seen.calls] == kinds.split()


def test_json_lines_and_metrics_have_events_and_figures_and_nothing_of_clients(tmp_path):
  lines, prom = tmp_path / 'events.jsonl', tmp_path / 'run.prom'
  watching = [dpftrl.observers.JsonLines(lines), dpftrl.observers.OpenMetrics(prom)]
  with aggregator(tmp_path / 'a "run"', *watching) as run:
    release(run)
    with pytest.raises(ValueError):
      release(run)
    with pytest.raises(KeyError), run.round(['cid', 'dan']):
      raise KeyError('secret-cid')
    status, identity = run.status(), run.identity
  shown = events(lines)
  assert {line['run'] for line in shown} == {identity}
  assert [line['event'] for line in shown] == ['begun', 'released', 'refused', 'begun', 'failed']
  assert [line['round'] for line in shown] == [0, 0, 1, 1, 1]
  assert [line.get('error') for line in shown] == [None, None, 'ValueError', None, 'KeyError']
  assert shown[4]['epsilon'] == status.epsilon and shown[1]['epsilon'] < status.epsilon
  assert shown[4]['epsilon_left'] == 9.0 - status.epsilon and shown[4]['max_rounds'] == 6
  assert all('seconds' in line for line in shown if line['event'] in ('released', 'failed'))
  assert shown[1]['disk_left_bytes'] > 0 and lines.stat().st_mode & 0o777 == 0o600
  text = prom.read_text()
  assert 'secret' not in text + lines.read_text() and text.endswith('# EOF\n')
  types = dict(re.findall(r'# TYPE (\S+) (\S+)', text))
  label = re.escape(rf'{{run="a \"run\"",id="{identity}"}}')
  samples = dict(re.findall(rf'^(\w+){label} (\S+)$', text, re.M))
  assert len(types) == len(samples) == len(re.findall('^[^#]', text, re.M))
  for name in ('released', 'failed', 'refused'):
    assert types[f'fl_dpftrl_rounds_{name}'] == 'counter'
    assert samples[f'fl_dpftrl_rounds_{name}_total'] == '1'
  assert float(samples['fl_dpftrl_epsilon']) == status.epsilon
  assert float(samples['fl_dpftrl_max_rounds']) == 6.0


def test_a_line_that_a_crash_tore_is_left_and_the_next_is_one_of_its_own(tmp_path):
  path = tmp_path / 'events.jsonl'
  path.write_text('{"event": "begun"}\n{"event": "rele')
  with aggregator(tmp_path / 'run', dpftrl.observers.JsonLines(path, every=2)) as run:
    release(run)
    release(run, ['cid', 'dan'])
  whole, torn, *others = path.read_text().splitlines()
  shown = [json.loads(line) for line in (whole, *others)]
  assert torn == '{"event": "rele' and ['epsilon' in line for line in shown] == 4 * [False] + [True]
  assert [line['event'] for line in shown] == ['begun'] + 2 * ['begun', 'released']


def test_lines_of_several_runs_in_one_file_are_all_there(tmp_path):
  """Also where each is written between the steps of another's."""
  path = tmp_path / 'events.jsonl'
  runs = [aggregator(tmp_path / f'{i}/run', dpftrl.observers.JsonLines(path)) for i in range(3)]
  threads = [
    threading.Thread(target=lambda run=run: [release(run, [f'{t}', f'{t}x']) for t in range(6)])
    for run in runs
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  for run in runs:
    run.close()
    lines = [(e['event'], e['round']) for e in events(path) if e['run'] == run.identity]
    assert lines == [(event, t) for t in range(6) for event in ('begun', 'released')]


def test_lines_go_to_stdout_between_those_of_a_program(tmp_path):
  """Whether stdout is a pipe, or a file that would be opened a second time."""
  program = """
import pathlib, sys, types
from fl_dpftrl.run import observers
run = types.SimpleNamespace(identity='a', folder=pathlib.Path('run'), status=None)
lines = observers.JsonLines('/dev/stdout', every=9)
for t in range(2):
  print('before')
  lines.begin(run, t)
print('after')
"""
  words = [sys.executable, '-c', program]
  piped = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT).stdout
  with (tmp_path / 'out').open('w+') as file:
    subprocess.run(words, stdout=file, check=True, cwd=ROOT)
  for text in (piped, (tmp_path / 'out').read_text()):
    assert [line[:6] for line in text.splitlines()] == 2 * ['before', '{"time'] + ['after']


def test_an_observer_is_of_one_run(tmp_path):
  lines, name = (
    dpftrl.observers.JsonLines(tmp_path / 'events.jsonl'),
    'this JsonLines is of the run',
  )
  for _ in range(2):  # The second one goes on with the run.
    with aggregator(tmp_path / 'a', lines) as run:
      release(run, [f'{run.next_round}', 'x'] if run.next_round % 2 else IDS)
  with pytest.raises(ValueError, match=name) as raised:
    aggregator(tmp_path / 'b', lines)
  assert str(raised.value).endswith('make one for each run') and not (tmp_path / 'b').exists()


def test_every_number_of_a_measuring_observer_goes_on(tmp_path):
  class Measuring(dpftrl.observers.Observer):
    measures = True

    def released(self, run, round_index, measurements):
      return {
        'float32': np.float32(0.5), 'int64': np.int64(2**62 + 1), 'bool': np.bool_(True),
        'fraction': fractions.Fraction(1, 4), 'nan': np.float64('nan'), 'text': 'unbounded',
        'jax': pytest.importorskip('jax.numpy').bfloat16(1.5), 'array': np.ones(2), 3: -np.inf,
      }  # fmt: skip

  class Seeing(dpftrl.observers.Observer):
    def released(self, run, round_index, measurements):
      self.seen = trackers._numbers(measurements)

  seeing = Seeing()
  with aggregator(tmp_path / 'run', Measuring(), seeing) as run:
    release(run)
  assert np.isnan(seeing.seen.pop('nan')) and {*map(type, seeing.seen.values())} == {int, float}
  assert seeing.seen == {
    'clip_norm': 1.0, 'float32': 0.5, 'int64': 2**62 + 1, 'bool': 1.0, 'fraction': 0.25,
    'jax': 1.5, '3': -np.inf,
  }  # fmt: skip


@pytest.mark.parametrize('name', ['WandB', 'MLflow', 'TensorBoard'])
def test_a_tracker_without_its_package_is_one_line_at_construction(name, monkeypatch):
  package = name.lower()
  monkeypatch.setitem(sys.modules, package, None)
  with pytest.raises(ImportError) as raised:
    getattr(dpftrl.observers, name)()
  line = str(raised.value)
  assert f"pip install '.[{package}]' in a clone" in line and len(line) <= 300
  assert f'\n{package} = [' in (ROOT / 'pyproject.toml').read_text()


def test_a_tracker_that_does_not_answer_is_one_warning_and_gets_nothing(tmp_path, monkeypatch):
  waiting, calls = threading.Event(), []
  fake = types.SimpleNamespace(
    active_run=lambda: None, start_run=lambda: waiting.wait(), log_metrics=calls.append
  )
  monkeypatch.setitem(sys.modules, 'mlflow', fake)
  monkeypatch.setattr(trackers, 'SECONDS', 0.01)
  with pytest.warns(UserWarning, match='MLflow could not begin: MLflow does not answer') as caught:
    with aggregator(tmp_path / 'run', dpftrl.observers.MLflow()) as run:
      release(run)
  assert len(caught) == 1 and not calls
  waiting.set()


def test_calls_that_are_late_are_made_in_order(monkeypatch):
  monkeypatch.setattr(trackers, 'SECONDS', 0.01)
  calls, seen, waiting = trackers.Apart('MLflow'), [], threading.Event()
  for call in (waiting.wait, lambda: seen.append(1)):
    with pytest.raises(TimeoutError, match='does not answer'):
      calls(call)
  monkeypatch.setattr(trackers, 'SECONDS', 20.0)
  waiting.set()
  while not calls._last.done():
    pass
  calls(seen.append, 2)
  assert seen == [1, 2]
  with pytest.raises(KeyError):
    calls({}.__getitem__, 'name')


def test_mlflow_has_a_run_of_its_own_and_loses_only_the_name_that_it_refuses(monkeypatch):
  class Refused(Exception):
    error_code = 'INVALID_PARAMETER_VALUE'

  active, sent, ended = threading.local(), [], []

  def start(parent_run_id=None):
    assert not hasattr(active, 'run'), 'another run is active in this thread'
    active.run = types.SimpleNamespace(info=types.SimpleNamespace(run_id=f'{parent_run_id}/own'))
    return active.run

  def log(numbers, step, run_id):
    if 'loss (dev)' in numbers:
      raise Refused('names may only contain …')
    sent.append((run_id, step, numbers))

  fake = types.SimpleNamespace(
    active_run=lambda: getattr(active, 'run', None),
    start_run=start,
    log_metrics=log,
    MlflowException=Refused,
    end_run=lambda: ended.append(active.__dict__.pop('run').info.run_id),
  )
  monkeypatch.setitem(sys.modules, 'mlflow', fake)
  active.run = types.SimpleNamespace(info=types.SimpleNamespace(run_id='users'))
  run = types.SimpleNamespace(exact_metrics=())
  first, second = dpftrl.observers.MLflow(), dpftrl.observers.MLflow()
  for tracker in (first, second):
    tracker.begin(run)
  with pytest.warns(UserWarning, match=r"MLflow refuses 1 metrics, such as 'loss \(dev\)'"):
    first.released(run, 0, {'a': 1.0, 'loss (dev)': 2.0, 'b': 3.0})
  first.released(run, 1, {'a': 4.0, 'loss (dev)': 2.0})
  assert sent == [
    ('users/own', 0, {'a': 1.0}),
    ('users/own', 0, {'b': 3.0}),
    ('users/own', 1, {'a': 4.0}),
  ]
  first.end(run)
  assert ended == ['users/own'] and active.run.info.run_id == 'users'


def test_an_error_of_an_observer_is_a_warning_and_loses_no_round(tmp_path):
  class Failing(dpftrl.observers.Observer):
    def begin(self, run, *unused):
      raise OSError('no route to host')

    released = end = begin

  seen = Recording()
  with pytest.warns(UserWarning) as caught:
    with aggregator(tmp_path / 'run', Failing(), seen) as run:
      assert release(run).mean.shape == (3,)
      assert release(run, ['cid', 'dan']).index == 1
  lines = [str(warning.message) for warning in caught]
  assert lines[2] == (
    'Failing.released of round 0 raised OSError: no route to host; no round is lost by it'
  )
  assert len(lines) == 6 and [call[0] for call in seen.calls].count('released') == 2


@pytest.mark.parametrize('num_rounds', [0, 1, 3])
def test_status_has_epsilon_of_the_declared_participation(tmp_path, num_rounds):
  everyone = dict(participation=None, max_epsilon=None)
  budget = dpftrl.LossBudget(max_participations=2, min_sep=2)
  for name, changes, schema in (
    ('declared', {}, SCHEMA),
    ('any', everyone, dpftrl.MinSep(100)),
    ('budget', dict(participation=budget, max_epsilon=None), budget),
    ('void', dict(noise_seed=3, max_epsilon=None), None),
    ('no δ', dict(delta=None, max_epsilon=None), None),
  ):
    with aggregator(tmp_path / name, **changes) as run:
      for t in range(num_rounds):
        release(run, [2 * t, 2 * t + 1])
      status = run.status()
    expected = 0.0
    if schema is None:
      expected = None
    elif num_rounds or schema is budget:  # That of a budget is known before.
      size = dict(num_coordinates=3) if schema is not budget else {}
      bound = schema.within(max(num_rounds, 1))
      epsilon = dpftrl.account(STRATEGY, bound, noise_multiplier=3.0, delta=1e-6, **size).epsilon()
      expected = pytest.approx(epsilon, rel=1e-3)
      assert status.epsilon >= epsilon
    assert status.epsilon == expected, name
    assert status.num_rounds == num_rounds and (status.void_reason is None) == (name != 'void')
    left = None if changes.get('max_epsilon', 9.0) is None else 9.0 - status.epsilon
    assert status.epsilon_left == left


def test_status_of_drawn_batches_has_epsilon_of_all_declared_rounds(tmp_path):
  scheme = sampling.CyclicPoisson(num_rounds=6, num_examples=20, batch_size=4.0)
  options = dict(strategy='identity', participation=scheme, max_epsilon=None)
  guarantee = dpftrl.account('identity', scheme, noise_multiplier=3.0, delta=1e-6)
  with aggregator(tmp_path / 'run', **options) as run:
    assert run.status().epsilon == guarantee.epsilon()
    release(run, ['a'])
    assert run.status().epsilon == guarantee.epsilon()


def test_tensorboard_and_trackers_get_the_numbers_of_each_round(tmp_path, monkeypatch):
  sent = []
  fake = types.SimpleNamespace(
    init=lambda **settings: sent.append(settings) or fake,
    start_run=lambda **settings: (
      sent.append(settings) or types.SimpleNamespace(info=types.SimpleNamespace(run_id='7'))
    ),
    run=None,
    active_run=lambda: None,
    define_metric=lambda *names, **axis: sent.append((*names, axis)),
    log=sent.append,
    log_metrics=lambda values, step, run_id: sent.append((run_id, step, values)),
    finish=lambda: sent.append('finish'),
    end_run=lambda: sent.append('end'),
  )
  for name in ('wandb', 'mlflow'):
    monkeypatch.setitem(sys.modules, name, fake)
  watching = dpftrl.observers
  watched = [watching.WandB(project='p'), watching.MLflow(run_name='r')]
  tensorboard = pytest.importorskip('tensorboard') and watching.TensorBoard({'rate': 0.5})
  epsilon = watching.EpsilonSoFar(1)
  with aggregator(tmp_path / 'run', tensorboard, *watched, epsilon) as run:
    release(run)
    values = {'clip_norm': 1.0, 'epsilon': run.privacy_loss().epsilon()}
  expected = [
    {'project': 'p'}, ('round', {}), ('*', {'step_metric': 'round'}), {'run_name': 'r'},
    {**values, 'round': 0}, ('7', 0, values), 'finish', 'end',
  ]  # fmt: skip
  assert sent == expected
  (path,) = (tmp_path / 'run' / 'tensorboard' / 'run').iterdir()
  assert path.parent.stat().st_mode & 0o777 == 0o700
  records = list(records_of(path.read_bytes()))
  assert len(records) == 3 and records[0].file_version == 'brain.Event:2'
  shown = {value.tag: value.simple_value for value in records[2].summary.value}
  assert shown == pytest.approx(values) and b'rate' in records[1].SerializeToString()


def records_of(content):
  from tensorboard.compat.proto import event_pb2

  while content:
    (size,) = struct.unpack('<Q', content[:8])
    yield event_pb2.Event.FromString(content[12 : 12 + size])
    content = content[16 + size :]


def test_a_run_that_is_active_in_wandb_stays_as_it_is(monkeypatch):
  settings = []
  other = types.SimpleNamespace(define_metric=lambda *names, **axis: None, finish=lambda: None)
  fake = types.SimpleNamespace(run=object(), init=lambda **kinds: settings.append(kinds) or other)
  monkeypatch.setitem(sys.modules, 'wandb', fake)
  tracker = dpftrl.observers.WandB(project='p')
  tracker.begin(None)
  assert settings == [{'reinit': 'create_new', 'project': 'p'}] and tracker.tracked is other
  tracker.end(None)


def test_trackers_get_no_number_that_lacks_the_noise(monkeypatch):
  monkeypatch.setitem(sys.modules, 'wandb', types.SimpleNamespace())
  run = types.SimpleNamespace(exact_metrics=('client_work.train', 'aggregator.clipped_count'))
  measured = {
    'client_work/train/loss': 1.0,
    'aggregator/clipped_count': 2,
    'aggregator/clipped_counts': 3,
    'epsilon': 'unbounded',
  }
  assert trackers.WandB()._sent(run, measured) == {'aggregator/clipped_counts': 3}
  assert len(trackers.WandB(exact=True)._sent(run, measured)) == 3


@pytest.mark.tff
def test_an_error_before_a_round_of_the_trainer_leaves_it_unrecorded(tmp_path):
  from tests.tff.training import small_runs

  class Failing(dpftrl.observers.Observer):
    def begin(self, run, round_index=None):
      if round_index == 2:
        raise OSError('no route to host')

  lines = dpftrl.observers.JsonLines(tmp_path / 'events.jsonl')
  with pytest.raises(OSError, match='no route to host'):
    small_runs.run(tmp_path / 'run', observers=[Failing(), lines])
  assert len(small_runs.log_rows(tmp_path / 'run')) == 2
  last, published, warnings = small_runs.run(tmp_path / 'run', observers=[lines])
  assert not last.burnt and not warnings and sorted(published) == [2, 3, 4, 5, 6]
  shown = events(tmp_path / 'events.jsonl')
  rounds = [line['round'] for line in shown if line['event'] == 'released']
  assert rounds == [0, 1, 1, 2, 3, 4, 5]
  schema = dpftrl.MinSep(6)  # None is declared.
  guarantee = dpftrl.account('identity', schema, noise_multiplier=1.0, delta=1e-6)
  assert shown[-1]['epsilon'] == guarantee.epsilon()


@pytest.mark.tff
def test_an_error_after_a_round_of_the_trainer_ends_it_and_the_round_is_seen_again(tmp_path):
  from fl_dpftrl.tff.training import loop
  from tests.tff.training import small_runs

  class Failing(Recording):
    def released(self, run, round_index, measurements):
      super().released(run, round_index, measurements)
      if round_index == 3:
        raise OSError('no route to host')

    def end(self, run, round_index=None, error=None):
      raise OSError('still none')

  with pytest.raises(OSError, match='no route to host'):
    small_runs.run(tmp_path, observers=[Failing()])
  seen = Recording()
  last, _, _ = small_runs.run(tmp_path, observers=[seen])
  calls = [('begin', None), ('released', 3, ['aggregator/row']), ('begin', 4)]
  assert not last.burnt and seen.calls[:3] == calls

  class Broken(small_runs.Process):
    def next(self, state, data):
      raise RuntimeError('broken')

  said = []
  with pytest.raises(loop.RoundFailedError, match='broken'):
    small_runs.run(tmp_path / 'b', Broken(), observers=[Failing()], say=said.append)
  assert said == ['an observer failed after round 0: still none (OSError)']


def alerts(prom):
  """Names of the alerts of docs/production.md that fire, of those that compare with a number."""
  rules = re.findall(
    r"alert: (\w+), expr: '(\w+) < ([\d.e]+)'", (ROOT / 'docs' / 'production.md').read_text()
  )
  assert len(rules) == 3
  values = dict(re.findall(r'^(\w+)\{.*\} (\S+)$', prom.read_text(), re.M))
  return {name for name, figure, most in rules if float(values.get(figure, 'inf')) < float(most)}


def test_alerts_fire_before_the_rounds_of_a_run_are_over(tmp_path):
  prom = tmp_path / 'run.prom'
  schema = dpftrl.MinSep(40)
  watching = dpftrl.observers.OpenMetrics(prom)
  with aggregator(tmp_path / 'run', watching, participation=schema, max_epsilon=1e3) as run:
    fired = []
    while run.next_round < run.max_rounds:
      release(run)
      fired.append('RoundsNearlyOver' in alerts(prom))
    assert run.status().rounds_left == 0
  assert fired == [False] * (len(fired) - 20) + [True] * 20 and len(fired) > 20


def test_an_alert_fires_before_all_devices_have_spent_their_loss_budget(tmp_path):
  prom, budget = tmp_path / 'run.prom', dpftrl.LossBudget(max_participations=2, min_sep=1)
  watching = dpftrl.observers.OpenMetrics(prom)
  shares = []
  with aggregator(
    tmp_path / 'run', watching, strategy=dpftrl.Identity(), participation=budget, max_epsilon=None
  ) as run:
    for cohort in (['a', 'b'], ['c', 'd'], ['a', 'b'], ['c', 'e'], ['d', 'e']):
      assert 'DevicesNearlySpent' not in alerts(prom)
      release(run, cohort)
      status = run.status()
      assert status.rounds_left is None and 'rounds_left' not in status.to_json()
      shares.append(status.devices_with_budget)
  assert shares == [1.0, 1.0, 0.5, 0.4, 0.0]
  assert 'DevicesNearlySpent' in alerts(prom)
