"""A start from public text, only where there is such text."""

import dataclasses

import numpy as np
import pytest

from experiments.stackoverflow import configuration, datasets, networks, run, training_model

pytestmark = pytest.mark.tff


def test_it_learns_the_same_for_the_same_seed():
  data = datasets.load('synthetic')
  public = np.concatenate([*map(data.sentences, data.train_clients[:20])])
  data = dataclasses.replace(data, public=public)
  network = networks.LogBilinear(num_tokens=data.vocabulary.size, embedding=8)
  first, again, other = (
    training_model.learnt_from_public_text(network, data, epochs=10, seed=seed)
    for seed in (3, 3, 4)
  )
  accuracy = training_model.evaluate(network, first, data.test, data.vocabulary)['accuracy']
  assert accuracy > data.unigram_accuracy + 0.05
  assert all(map(np.array_equal, first, again)) and not np.array_equal(first[0], other[0])


def test_text_that_is_not_there_is_named(tmp_path):
  flags = ['--dataset=synthetic', '--report_goal=5', '--num_rounds=2', '--noise_multiplier=0']
  hparams = configuration.from_arguments([*flags, '--public_epochs=1'])
  with pytest.raises(ValueError, match='--public_epochs=1 needs public text'):
    run.run(hparams, tmp_path / 'run')
  with pytest.raises(ValueError, match='--public_epochs and --initial_weights exclude'):
    configuration.from_arguments([*flags, '--public_epochs=1', '--initial_weights=model.npz'])
