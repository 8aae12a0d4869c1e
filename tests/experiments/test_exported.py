"""Exported models give the logits of the network, and hold nothing else."""

import json
import pathlib
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from experiments.stackoverflow import configuration, datasets, evaluate, export, exported, networks
from fl_dpftrl.tff.training import report

pytestmark = pytest.mark.tff

NETWORKS = [
  networks.LogBilinear(num_tokens=11, embedding=4, context=3),
  networks.Lstm(num_tokens=11, embedding=3, units=5),
]


def drawn(network):
  """Weights of which none is zero, biases among them."""
  rng = np.random.default_rng(3)
  return [rng.normal(size=w.shape).astype(np.float32) for w in network.initial_weights(0)]


@pytest.mark.parametrize('network', NETWORKS, ids=lambda n: type(n).__name__)
def test_the_keras_model_has_the_logits_of_the_network(network):
  found = drawn(network)
  model = exported.keras_model(network, found, 6)
  tokens = tf.constant(np.random.default_rng(0).integers(11, size=(4, 6)), tf.int32)
  expected = network.logits([tf.constant(w) for w in found], tokens)
  np.testing.assert_allclose(model(tokens), expected, rtol=1e-5, atol=1e-5)
  own = {type(layer).__module__.partition('.')[0] for layer in model.layers}
  assert own <= {'keras', 'tf_keras'}  # It loads without this package.


FLAGS = ['--dataset=synthetic', '--report_goal=5', '--num_rounds=2', '--noise_multiplier=1']


@pytest.fixture(name='folder', scope='module')
def _folder(tmp_path_factory) -> pathlib.Path:
  """What an export needs of a run, and nothing else."""
  folder = tmp_path_factory.mktemp('run')
  hparams = configuration.from_arguments([*FLAGS, '--embedding=4'])
  hparams.record(folder)
  network = networks.chosen(hparams, datasets.load_for(hparams).vocabulary.size)
  own = tff.learning.models.ModelWeights(drawn(network), ())
  report.write_model(folder / report.MODEL_NAME, own)
  return folder


def run(monkeypatch, capsys, main, *arguments):
  monkeypatch.setattr(sys, 'argv', ['command', *map(str, arguments)])
  main()
  return capsys.readouterr().out


@pytest.mark.parametrize('format', ['keras', 'savedmodel'])
def test_an_exported_model_measures_the_same(folder, monkeypatch, capsys, format):
  expected = evaluate.evaluate(folder)
  path = run(monkeypatch, capsys, export.main, folder, f'--format={format}').strip()
  text = run(monkeypatch, capsys, evaluate.main, folder, f'--model={path}')
  assert json.loads(text) == pytest.approx(expected, rel=1e-5)
  words = (folder / 'words.txt').read_text().splitlines()
  assert len(words) == datasets.load('synthetic').vocabulary.size
  assert not list(folder.glob('.unfinished*'))
  with pytest.raises(SystemExit) as ended:
    run(monkeypatch, capsys, export.main, folder, f'--format={format}')
  line = capsys.readouterr().err
  assert ended.value.code == 2 and line.startswith('export: --output=') and 'exists' in line
