"""Evaluates the exported model of a finished run.

Example:
  python -m experiments.stackoverflow.evaluate runs/docstrings

reads model.npz and the flags in hparams.json, and prints loss and accuracies on
test data as one JSON object. --model=PATH measures a model that `export` wrote.
It needs neither checkpoints nor anything secret.
"""

from fl_dpftrl.support import signals
from fl_dpftrl.support.text import streams

if __name__ == '__main__':
  signals.end_at_once('evaluate: interrupted')  # What is imported next takes a while.
  streams.prepare()

# pylint: disable=g-import-not-at-top,wrong-import-position
import json
import os
import pathlib

from experiments.stackoverflow import command_line, configuration, datasets
from fl_dpftrl.support import metrics
from fl_dpftrl.support.files import json_files


def main() -> None:
  parser = command_line.Parser('evaluate', __doc__)
  parser.add_argument('run', type=pathlib.Path, help='output folder of the run')
  parser.add_argument(
    '--split', choices=('test', 'validation'), default='test', help='data (default: test)'
  )
  parser.add_argument(
    '--model',
    type=pathlib.Path,
    help="file NAME.keras or folder of a SavedModel (default: model.npz in the run's folder)",
  )
  arguments = parser.parse_args()
  try:
    measured = evaluate(arguments.run, arguments.split, arguments.model)
  except (ValueError, OSError) as problem:
    parser.error(str(problem))
  print(json.dumps(measured, indent=2))


def evaluate(
  folder: pathlib.Path, split: str = 'test', model_path: pathlib.Path | None = None
) -> dict[str, float | None]:
  """Returns loss and accuracies of a run's model; null where not finite.

  Raises:
    OSError: if a file cannot be read.
    ValueError: naming a file that does not fit.
  """
  hparams = read_hparams(folder)
  dataset = datasets.load_for(hparams)
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  # TensorFlow is slow to load: not before the flags are known to fit the data.
  from experiments.stackoverflow import exported, networks, training_model
  from fl_dpftrl.tff.training import report

  size = dataset.vocabulary.size
  network = networks.chosen(hparams, size)
  if model_path is None:
    weights = networks.read_weights(folder / report.MODEL_NAME, network, flag='run')
  else:
    network, weights = exported.read(model_path, size, dataset.sequence_length), ()
  rows = {'test': dataset.test, 'validation': dataset.validation}[split]
  return metrics.finite(training_model.evaluate(network, weights, rows, dataset.vocabulary))


def read_hparams(folder: pathlib.Path) -> configuration.Hparams:
  """Returns the flags of the run in a folder.

  Raises:
    OSError: if hparams.json cannot be read.
    ValueError: naming the file, if it has not the flags of a run.
  """
  path = folder / configuration.HPARAMS_NAME
  try:
    content = json_files.read(path)
  except FileNotFoundError:
    raise ValueError(
      f'{path} is missing, which has the flags of a run: name the output folder of a run'
    ) from None
  try:
    # A noise seed is recorded as given, without its value.
    return configuration.Hparams(**{**configuration.recorded(content), 'noise_seed': None})
  except (TypeError, ValueError) as problem:
    raise ValueError(f'{path} has not the flags of a run: {problem}') from None


if __name__ == '__main__':
  main()
