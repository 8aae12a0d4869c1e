"""Secrets of made-up people: who takes part, what is told apart, and that noise hides it."""

import dataclasses
import math

import numpy as np
import pytest

from experiments import secret_twins
from experiments.finetune import data, secret_texts, train
from tests.finetune import small


def prepared(number):
  task = secret_texts.beside(small.task(length=48), number)
  features = np.asarray(task.model.features(task.tokens[:, :-1]), np.float16)
  return dataclasses.replace(task, features=features)


def trained(task, folder, epsilon):
  settings = dataclasses.replace(task.settings, epsilon=epsilon, learning_rate=20.0)
  task = dataclasses.replace(task, settings=settings)
  with pytest.warns(UserWarning, match='updates for report_goal'):
    with train.open_run(task.settings, task.model.zeros, folder) as aggregator:
      return train.train(task, aggregator), aggregator.statement()


def test_made_up_people_take_part_beside_the_others():
  plain, task = small.task(length=48), prepared(28)
  rounds = [task.units_of_round(t) for t in range(14)]
  for t, numbers in enumerate(rounds):
    assert numbers[: plain.settings.cohort].tolist() == plain.units_of_round(t).tolist()
  beside = np.concatenate([numbers[plain.settings.cohort :] for numbers in rounds])
  assert sorted(beside) == list(range(30, 58)) and len(task.twins) == 28
  trained_on, other, *never = task.twins.swapaxes(0, 1)
  assert (trained_on != other).any(axis=1).all()
  assert (task.twins[:, :, :25] == trained_on[:, None, :25]).all()  # The names, and no digit.
  assert len(never) == 36  # Times 28: 1,000 or a little more.
  assert (task.tokens[-28:, : trained_on.shape[1]] == trained_on).all()


@pytest.mark.parametrize('number', [1, pytest.param(28, marks=pytest.mark.thorough), 700])
def test_losses_are_those_of_the_digits_of_each_text_by_itself(number):
  """Beginnings are computed once for secrets of a name, and none sees the digits of another."""
  task = secret_texts.beside(small.task(length=48), number)
  b = np.random.default_rng(number).normal(size=task.model.zeros.shape).astype(np.float32)
  losses = secret_texts._losses(task, [task.model.zeros, b])
  assert losses.shape == (2, *task.twins.shape[:2])
  texts = task.twins.reshape(-1, task.twins.shape[2])
  targets = texts[:, 1:].copy()
  targets[:, : (task.twins == task.twins[:, :1]).all(axis=(0, 1)).argmin() - 1] = data.PADDING
  for scale, of_model in zip((0.0, 1.0), losses):
    total, _, _ = task.model.sums(task.model.features(texts[:, :-1]), targets, scale * b)
    np.testing.assert_allclose(of_model.ravel(), total, rtol=1e-5)


def test_seeds_with_one_cache_have_the_features_of_their_own_secrets(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for seed in (0, 1):
    task = train.prepare(secret_texts.beside(small.task(length=48, seed=seed), 28))
    expected = np.asarray(task.model.features(task.tokens[:, :-1]), np.float16)
    np.testing.assert_allclose(task.features, expected, rtol=1e-2, atol=1e-2)


def test_texts_that_do_not_fit_are_refused():
  with pytest.raises(ValueError, match='--secrets: texts with secrets need --tokens=40 or more'):
    secret_texts.beside(small.task(length=39), 4)


@pytest.mark.slow
def test_the_twin_that_a_model_was_trained_on_is_told_and_stands_out(tmp_path):
  task = prepared(number=1)
  b, statement = trained(task, tmp_path / 'run', math.inf)
  assert statement.num_devices == 28 + 1
  before, told, b = b, 'without noise', task.model.zeros
  nothing = secret_texts.remembered(task, {told: task.model.zeros})[told]
  assert (
    nothing['accuracy'] == 0.0 and nothing['lower_mu'] == 0.0 == nothing['exposure']
  )  # No loss fell.
  for _ in range(20):  # Of the secret only, without clipping.
    b = b + 4.0 * task.updates([task.num_people], b)[0][0]
  results = secret_texts.remembered(task, {'before': before, told: b})
  assert results['before'] == secret_texts.remembered(task, {'x': before})['x']
  result = results[told]
  assert result['accuracy'] == 1.0 and result['exposure'] > 1.0
  assert 'twins told apart' in secret_twins.words(result)
  secret_twins.draw(tmp_path / 'secrets.png', {'without noise': result, 'with blt noise': nothing})
  assert (tmp_path / 'secrets.png').stat().st_size > 1000
