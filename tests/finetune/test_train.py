"""Training rounds of a small made-up model: what is frozen, clipped, logged, and resumed."""

import csv
import dataclasses
import math

import jax
import numpy as np
import pytest
from pyarrow import parquet

from experiments.finetune import data, settings, train
from fl_dpftrl.logs import ledger_format
from fl_dpftrl.prove.replaying import certificates
from fl_dpftrl.support.files import mark
from tests.finetune import small


def _run(task, folder, epsilon=math.inf, rate=3.0, on_round=lambda num_rounds: None):
  """Trains; `on_round` is called once the state of a round is stored."""
  changed = dataclasses.replace(task.settings, epsilon=epsilon, learning_rate=rate)
  task, store = dataclasses.replace(task, settings=changed), train._store

  def storing(path, state):
    store(path, state)
    if state['t']:
      on_round(int(state['t']))

  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(train, '_store', storing)
    with train.open_run(task.settings, task.model.zeros, folder) as aggregator:
      return train.train(task, aggregator), aggregator.statement()


@pytest.mark.parametrize('layers', [2, 99])
def test_fewer_layers_than_were_asked_for_are_said(monkeypatch, capsys, layers):
  monkeypatch.setattr(train.model, 'load', lambda *_, num_trained, **options: small.network())
  texts = {f'person {i}': 'letters ' * 60 for i in range(60)}
  units = data.Units('made up', 'a person', texts, texts)
  train.task(units, settings.chosen(60, {'layers': layers}), None)
  lines = capsys.readouterr().err
  assert lines == '--layers=99: the model has 2, and all get additions\n' * (layers == 99)


def test_frozen_weights_keep_their_bits_and_the_output_changes(tmp_path):
  task = small.task()
  arrays = lambda: jax.tree.leaves((task.model.lower, task.model.upper, task.model.ends))
  stored = [np.array(array).tobytes() for array in (*arrays(), task.model.a)]
  before = task.evaluated(task.model.zeros)
  b, _ = _run(task, tmp_path / 'run')
  assert stored == [np.array(array).tobytes() for array in (*arrays(), task.model.a)]
  after = task.evaluated(b)
  assert after['perplexity'] != before['perplexity']
  sums = np.asarray(task.model.sums(task.held_out, task.held_out_tokens[:, 1:], b), float)
  loss, hits, num_tokens = sums.sum(axis=1)
  assert num_tokens == 5 * 12
  assert after['perplexity'] == pytest.approx(np.exp(loss / num_tokens), rel=1e-5)
  assert after['accuracy'] == pytest.approx(hits / num_tokens)


def test_training_fits_the_units_without_noise(tmp_path):
  task = small.task()
  sums = lambda b: np.asarray(task.model.sums(task.features, task.tokens[:, 1:], b)).sum(1)
  loss = lambda b: np.divide(*sums(b)[[0, 2]])
  b, _ = _run(task, tmp_path / 'run', rate=10.0)
  assert loss(b) < loss(task.model.zeros) - 0.05


def test_each_unit_takes_part_once_at_the_epsilon_and_no_file_has_its_name(tmp_path):
  task, folder = small.task(), tmp_path / 'run'
  _, statement = _run(task, folder, epsilon=2.0)
  assert statement.num_rounds == 14 and statement.num_devices == statement.num_participations == 28
  assert 1.99 < statement.headline.guarantee.epsilon() <= 2.0
  certificate = certificates.certified(statement).document
  assert [figure['name'] for figure in certificate['figures']] == ['worst_case', 'declared']
  content = b''.join(path.read_bytes() for path in folder.rglob('*') if path.is_file())
  assert b'Lovelace' not in content and b'Ada' not in content
  ids = parquet.read_table(folder / ledger_format.NAME).column('device_id').to_pylist()
  assert len(set(ids)) == 28 and all(len(bytes.fromhex(text)) == 8 for text in ids)
  for name in ('ids.key', 'model.npz'):
    assert (folder / name).stat().st_mode & 0o077 == 0


def test_a_person_moves_the_sum_by_at_most_the_clip_norm(tmp_path):
  task = small.task()
  person, other = task.units_of_round(0)
  updates, _ = map(
    np.asarray,
    task.model.updates(task.features, task.tokens[:, 1:], task.model.zeros, small.NUM_TOKENS),
  )
  norm = lambda update: float(np.linalg.norm(update))
  assert min(norm(updates[person]), norm(updates[other])) > 2 * task.settings.clip_norm
  means = []
  with pytest.raises(KeyboardInterrupt):
    _run(task, tmp_path / 'run', rate=1.0, on_round=_interrupting(means, 1, tmp_path / 'run'))
  share = task.settings.clip_norm / norm(updates[other]) * updates[other]
  assert norm(2 * means[0] - share) == pytest.approx(task.settings.clip_norm, rel=1e-4)


def _interrupting(states, every, folder):
  """Returns what stores B after a round, and interrupts after every so many rounds."""

  def ended(num_rounds):
    with np.load(folder / 'model.npz') as stored:
      states.append(stored['b'])
    if num_rounds % every == 0:
      raise KeyboardInterrupt

  return ended


def test_a_run_that_is_interrupted_five_times_ends_as_one_that_is_not(tmp_path):
  whole, _ = _run(small.task(), tmp_path / 'whole')
  for _ in range(5):
    with pytest.raises(KeyboardInterrupt):
      _run(small.task(), tmp_path / 'run', on_round=_interrupting([], 1, tmp_path / 'run'))
  b, statement = _run(small.task(), tmp_path / 'run')
  np.testing.assert_array_equal(b, whole)
  assert statement.num_rounds == 14 and statement.max_participations == 1


def test_a_round_whose_model_was_not_stored_counts_and_the_run_goes_on(tmp_path, monkeypatch):
  task, folder, store = small.task(), tmp_path / 'run', train._store

  def failing(path, state):
    if state['b'].any():
      raise OSError('no space left')
    store(path, state)

  monkeypatch.setattr(train, '_store', failing)
  for _ in range(2):
    with pytest.raises(OSError, match='no space'):
      _run(task, folder, epsilon=2.0)
  monkeypatch.setattr(train, '_store', store)
  rounds = []
  _, statement = _run(task, folder, epsilon=2.0, on_round=rounds.append)
  assert rounds == [*range(1, 13)]
  assert statement.num_rounds == 14 and statement.headline.guarantee.epsilon() <= 2.0


@pytest.mark.parametrize(
  'name, message', [('model.npz', 'has 1 round'), ('ids.key', 'ids.key is gone')]
)
def test_a_lost_model_or_key_is_not_made_anew(tmp_path, name, message):
  """A new key would give a person a second id, and so a second participation."""
  folder = tmp_path / 'run'
  with pytest.raises(KeyboardInterrupt):
    _run(small.task(), folder, epsilon=2.0, on_round=_interrupting([], 1, folder))
  (folder / name).unlink()
  with pytest.raises(mark.LostStateError, match=message):
    _run(small.task(), folder, epsilon=2.0)


def test_a_damaged_model_is_refused(tmp_path):
  _run(small.task(), tmp_path / 'run')
  stored = tmp_path / 'run' / 'model.npz'
  with np.load(stored) as arrays:
    fewer = {name: array for name, array in arrays.items() if name != 'setting'}
  whole = stored.read_bytes()
  for size in (0, 3, 100, len(whole) // 2, len(whole) - 1, None):
    stored.write_bytes(whole[:size])
    if size is None:
      np.savez(stored, **fewer)
    with pytest.raises(ValueError, match=r'model\.npz is damaged: name a new folder'):
      _run(small.task(), tmp_path / 'run')


def test_other_texts_seeds_and_rates_are_refused(tmp_path):
  folder = tmp_path / 'run'
  _run(small.task(), folder)
  with pytest.raises(ValueError, match='no run with learning_rate 4.0: name a new folder'):
    _run(small.task(), folder, rate=4.0)
  task = small.task()
  renamed = dataclasses.replace(task, names=[*task.names[:-1], 'somebody'])  # With the same text.
  with pytest.raises(ValueError, match='no run with people [0-9a-f]{16}: name a new folder'):
    _run(renamed, folder)
  rewritten = dataclasses.replace(task, tokens=task.tokens + (task.tokens == 3))
  with pytest.raises(ValueError, match='no run with texts or weights [0-9a-f]{16}: name a new'):
    _run(rewritten, folder)
  with pytest.raises(ValueError, match='no run with seed 1: name a new folder'):
    _run(small.task(seed=1), folder)


def test_what_depends_on_texts_and_names_cannot_be_computed_without_the_key(tmp_path):
  states = []
  for name in ('a', 'b'):  # Two runs of the same texts and names, each with its own key.
    _run(small.task(), tmp_path / name)
    states.append(dict(np.load(tmp_path / name / 'model.npz')))
  first, second = (state.pop('setting').tolist() for state in states)
  differing = [fact.rsplit(' ', 1)[0] for fact in first if fact not in second]
  assert differing == ['texts or weights', 'people'] and len(first) == 2 + len(settings.FIELDS)
  assert states[0].keys() == states[1].keys() == {'b', 'velocity', 't'}
  for name, array in states[0].items():
    np.testing.assert_array_equal(array, states[1][name])


def test_an_update_is_the_mean_of_the_blocks_of_a_person():
  task = small.task(blocks=3)
  frozen, b = task.model, np.random.default_rng(1).normal(size=task.model.zeros.shape) / 9
  numbers = [4, 0, 5, 8]
  updates, losses = task.updates(numbers, b)
  for number, update, loss in zip(numbers, updates, losses):
    rows = slice(task.starts[number], task.starts[number + 1])
    assert rows.stop - rows.start == 1 + number % 3
    blocks = frozen.updates(task.features[rows], task.tokens[rows, 1:], b, train.WORDS)
    np.testing.assert_allclose(update, np.mean(blocks[0], 0), rtol=1e-4, atol=1e-7)
    assert loss == pytest.approx(float(np.mean(blocks[1])), rel=1e-5)


def test_people_take_part_several_times_and_at_least_min_sep_rounds_apart(tmp_path):
  task = small.task(rounds_per_person=4, cohort=7)
  assert (task.settings.min_sep, len(task.names)) == (4, 30)
  _, statement = _run(task, tmp_path / 'run', epsilon=2.0)
  assert (statement.min_sep, statement.max_participations) == (4, 4)
  assert statement.num_devices == 28 and statement.num_participations == 14 * 7
  assert 1.98 < statement.headline.guarantee.epsilon() <= 2.0 and statement.declared.holds


def test_a_round_steps_by_momentum_of_the_released_means(tmp_path):
  task, states = small.task(rounds=3, rounds_per_person=3), []
  folder = tmp_path / 'run'
  for _ in range(3):  # It goes on after each round.
    with pytest.raises(KeyboardInterrupt):
      _run(task, folder, rate=0.5, on_round=_interrupting(states, 1, folder))
  b, velocity = np.zeros_like(states[0]), 0.0
  for t, state in enumerate(states):
    updates, _ = task.updates(task.units_of_round(t), b)
    norms = np.linalg.norm(updates.reshape(len(updates), -1), axis=1)
    shares = np.minimum(1.0, task.settings.clip_norm / norms)
    velocity = 0.9 * velocity + (updates * shares[:, None, None, None]).mean(axis=0)
    b = b + 0.5 * velocity
    np.testing.assert_allclose(state, b, rtol=1e-3, atol=1e-6)


def test_the_loss_of_people_is_released_with_noise_and_costs_nothing_beyond_the_budget(tmp_path):
  task = small.task(private_loss=True)
  _, statement = _run(task, tmp_path / 'run', epsilon=8.0)
  rows = (tmp_path / 'run' / 'released.csv').read_text().splitlines()
  assert 'loss' in rows[0] and len(rows) == 15
  assert statement.headline.guarantee.epsilon() <= 8.0
  _run(task, tmp_path / 'free')
  with (tmp_path / 'free' / 'released.csv').open() as file:
    released = [float(row['loss']) for row in csv.DictReader(file)]
  _, losses = task.updates(task.units_of_round(0), task.model.zeros)
  assert released[0] == pytest.approx(losses.mean(), rel=1e-4)


def test_the_learning_rate_keeps_the_length_of_the_noise(tmp_path):
  lengths = []
  for name, epsilon, cohort in (('a', 1.0, 2), ('b', 4.0, 2), ('c', 1.0, 1)):
    chosen = dataclasses.replace(small.task().settings, epsilon=epsilon, cohort=cohort)
    with train.open_run(chosen, np.zeros(40_000, np.float32), tmp_path / name) as aggregator:
      rate = train.server_rate(chosen, aggregator)
      errors = aggregator.strategy.per_query_error(14, chosen.workload)
      lengths.append(rate * errors[-1] * aggregator.noise_multiplier * 200 * 0.1 / cohort)
  assert lengths == pytest.approx([19.6] * 3, rel=1e-3)
  near = dataclasses.replace(chosen, epsilon=90.0)
  with train.open_run(near, np.zeros(9, np.float32), tmp_path / 'near') as aggregator:
    assert train.server_rate(near, aggregator) == 20.0
  free = dataclasses.replace(chosen, epsilon=math.inf)
  with train.open_run(free, np.zeros(9, np.float32), tmp_path / 'free') as aggregator:
    assert train.server_rate(free, aggregator) == 7.5
    longer = dataclasses.replace(free, rounds=28)
    assert 2.5 < train.server_rate(longer, aggregator) < 3.5
    given = dataclasses.replace(free, learning_rate=0.3)
    assert train.server_rate(given, aggregator) == 0.3
