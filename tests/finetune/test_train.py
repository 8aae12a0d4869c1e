"""Training rounds of a small made-up model: what is frozen, clipped, logged, and resumed."""

import math

import jax
import numpy as np
import pytest
from pyarrow import parquet

from experiments.finetune import train
from fl_dpftrl.logs import ledger_format
from tests.finetune import small


def _run(task, folder, epsilon=math.inf, rate=3.0, on_round=lambda num_rounds: None):
  with train.open_run(task, folder, 'blt', epsilon) as aggregator:
    return train.train(task, aggregator, rate, on_round), aggregator.statement()


def test_frozen_weights_keep_their_bits_and_the_output_changes(tmp_path):
  task = small.task()
  arrays = lambda: jax.tree.leaves((task.model.lower, task.model.upper, task.model.ends))
  stored = [np.array(array).tobytes() for array in (*arrays(), task.model.a)]
  before = task.evaluated(task.model.zeros)
  b, _ = _run(task, tmp_path / 'run')
  assert stored == [np.array(array).tobytes() for array in (*arrays(), task.model.a)]
  after = task.evaluated(b)
  assert after['perplexity'] != before['perplexity'] and after['num_tokens'] == 5 * 12


def test_training_fits_the_units_without_noise(tmp_path):
  task = small.task()
  loss = lambda b: np.divide(*task.model.sums(task.features, task.tokens[:, 1:], b)[[0, 2]])
  b, _ = _run(task, tmp_path / 'run', rate=10.0)
  assert loss(b) < loss(task.model.zeros) - 0.05


def test_each_unit_takes_part_once_at_the_epsilon_and_no_file_has_its_name(tmp_path):
  task, folder = small.task(), tmp_path / 'run'
  _, statement = _run(task, folder, epsilon=2.0)
  assert statement.num_rounds == 14 and statement.num_devices == statement.num_participations == 28
  assert 1.99 < statement.headline.guarantee.epsilon() <= 2.0
  content = b''.join(path.read_bytes() for path in folder.rglob('*') if path.is_file())
  assert b'Lovelace' not in content and b'Ada' not in content
  ids = parquet.read_table(folder / ledger_format.NAME).column('device_id').to_pylist()
  assert len(set(ids)) == 28 and all(len(bytes.fromhex(text)) == 8 for text in ids)
  for name in ('ids.key', 'model.npz', 'setting.json'):
    assert (folder / name).stat().st_mode & 0o077 == 0


def test_a_person_moves_the_sum_by_at_most_the_clip_norm(tmp_path):
  task = small.task()
  person, other = task.units_of_round(0)
  updates = np.asarray(
    task.model.updates(task.features, task.tokens[:, 1:], task.model.zeros, small.NUM_TOKENS)
  )
  norm = lambda update: float(np.linalg.norm(update))
  assert min(norm(updates[person]), norm(updates[other])) > 2 * train.CLIP_NORM
  means = []
  with pytest.raises(KeyboardInterrupt):
    _run(task, tmp_path / 'run', rate=1.0, on_round=_interrupting(means, 1, tmp_path / 'run'))
  share = train.CLIP_NORM / norm(updates[other]) * updates[other]
  assert norm(2 * means[0] - share) == pytest.approx(train.CLIP_NORM, rel=1e-4)


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

  def failing(path, b, velocity):
    if b.any():
      raise OSError('no space left')
    store(path, b, velocity)

  monkeypatch.setattr(train, '_store', failing)
  for _ in range(2):
    with pytest.raises(OSError, match='no space'):
      _run(task, folder, epsilon=2.0)
  monkeypatch.setattr(train, '_store', store)
  rounds = []
  _, statement = _run(task, folder, epsilon=2.0, on_round=rounds.append)
  assert rounds == [*range(3, 15)]
  assert statement.num_rounds == 14 and statement.headline.guarantee.epsilon() <= 2.0


@pytest.mark.parametrize('name, message', [('model.npz', 'round'), ('ids.key', 'ids.key')])
def test_a_lost_model_or_key_is_not_made_anew(tmp_path, name, message):
  """A new key would give a person a second id, and so a second participation."""
  folder = tmp_path / 'run'
  with pytest.raises(KeyboardInterrupt):
    _run(small.task(), folder, epsilon=2.0, on_round=_interrupting([], 1, folder))
  (folder / name).unlink()
  with pytest.raises((ValueError, OSError), match=message):
    _run(small.task(), folder, epsilon=2.0)


def test_other_texts_seeds_and_rates_are_refused(tmp_path):
  folder = tmp_path / 'run'
  _run(small.task(), folder)
  with pytest.raises(ValueError, match='other learning_rate: name a new folder'):
    _run(small.task(), folder, rate=4.0)
  with pytest.raises(ValueError, match='other seed: name a new folder'):
    _run(small.task(seed=1), folder)
