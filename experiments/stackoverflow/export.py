"""Exports the model of a finished run as a Keras file or a SavedModel.

Example:
  python -m experiments.stackoverflow.export runs/docstrings --format=savedmodel

reads model.npz and the flags in hparams.json, and writes runs/docstrings/saved_model
(model.keras with --format=keras) and, beside it, words.txt with the word of each
token id. It needs neither checkpoints nor anything secret.
"""

from fl_dpftrl.support import signals
from fl_dpftrl.support.text import streams

if __name__ == '__main__':
  signals.end_at_once('export: interrupted')  # What is imported next takes a while.
  streams.prepare()

# pylint: disable=g-import-not-at-top,wrong-import-position
import os
import pathlib

from experiments.stackoverflow import command_line, datasets, evaluate
from fl_dpftrl.support.files import durable

WORDS_NAME = 'words.txt'
_FORMATS = ('keras', 'savedmodel')


def main() -> None:
  parser = command_line.Parser('export', __doc__)
  parser.add_argument('run', type=pathlib.Path, help='output folder of the run')
  parser.add_argument('--format', choices=_FORMATS, required=True, help='kind of the model')
  parser.add_argument(
    '--output', type=pathlib.Path, help="path of the model (default: in the run's folder)"
  )
  arguments = parser.parse_args()
  try:
    with signals.cleaned_up('export: interrupted'):
      path = export(arguments.run, arguments.format, arguments.output)
  except (ValueError, OSError) as problem:
    parser.error(str(problem))
  print(path)


def export(folder: pathlib.Path, format: str, output: pathlib.Path | None = None) -> pathlib.Path:
  """Writes the model of a run, and returns its path.

  Raises:
    OSError: if a file cannot be read or written.
    ValueError: naming a file that does not fit.
  """
  hparams = evaluate.read_hparams(folder)
  dataset = datasets.load_for(hparams)
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  # TensorFlow is slow to load: not before the flags are known to fit the data.
  from experiments.stackoverflow import exported, networks
  from fl_dpftrl.tff.training import report

  network = networks.chosen(hparams, dataset.vocabulary.size)
  weights = networks.read_weights(folder / report.MODEL_NAME, network, flag='run')
  path = output or folder / exported.NAMES[format]
  exported.write(exported.keras_model(network, weights, dataset.sequence_length), path, format)
  words = [dataset.vocabulary.decode([token]) for token in range(dataset.vocabulary.size)]
  durable.write_durably(path.with_name(WORDS_NAME), ('\n'.join(words) + '\n').encode())
  return path


if __name__ == '__main__':
  main()
