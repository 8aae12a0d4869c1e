"""Trains a next-word model with correlated noise and reports the ε it gave.

Example:
  python -m experiments.stackoverflow.train \
    --flagfile=experiments/stackoverflow/flags/docstrings.flags \
    --output_dir=runs/docstrings

The output folder gets hparams.json, strategy.json, metrics.csv, TensorBoard
event files, participation.parquet (the log), privacy.json, privacy.html,
accuracy.png, summary.json and checkpoints/. An interrupted run goes on with
--resume.
"""

import json
import os
import pathlib
import sys

from absl import app
from absl import flags

from experiments.stackoverflow import configuration
from fl_dpftrl import files

_OUTPUT_DIR = flags.DEFINE_string(
    'output_dir', None, 'Folder for everything that the run writes.'
)
_RESUME = flags.DEFINE_bool(
    'resume', False, 'Go on with the run in output_dir, if there is one.'
)
_COMPARE_WITH = flags.DEFINE_string(
    'compare_with',
    None,
    'Output folder of the same run without noise, for the summary.',
)


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; flags are --name=value')
  try:
    if not _OUTPUT_DIR.value:
      raise ValueError('--output_dir is missing: name a folder for the run')
    hparams = configuration.from_flags()
    folder = _claim(pathlib.Path(_OUTPUT_DIR.value), hparams)
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
    # TensorFlow is slow to load: not before the flags are known to be right.
    from experiments.stackoverflow import run  # pylint: disable=g-import-not-at-top

    run.run(
        hparams,
        folder,
        compare_with=_COMPARE_WITH.value and pathlib.Path(_COMPARE_WITH.value),
    )
  except (ValueError, OSError) as error:
    sys.stderr.write(f'train: {" ".join(str(error).split())}\n')
    sys.exit(2)
  except KeyboardInterrupt:
    sys.stderr.write(
        f'\ninterrupted; --resume --output_dir={_OUTPUT_DIR.value} goes on\n'
    )
    sys.exit(130)


def _claim(
    folder: pathlib.Path, hparams: configuration.Hparams
) -> pathlib.Path:
  """Makes the folder, or checks that the run in it has the same flags."""
  path = folder / configuration.HPARAMS_NAME
  stored = hparams.to_json()
  if path.exists():
    if not _RESUME.value:
      raise ValueError(
          f'--output_dir={folder} holds a run; name another folder, or go on'
          ' with --resume'
      )
    try:
      before = json.loads(path.read_text())
    except ValueError as error:
      raise ValueError(f'{path} is not readable: {error}') from error
    for name in sorted(stored.keys() | before.keys()):
      if before.get(name) != stored.get(name):
        raise ValueError(
            f'--{name}={stored.get(name)} differs from the run in {folder},'
            f' which has {before.get(name)}; resume with the same flags'
        )
    return folder
  if folder.exists() and any(
      not path.name.startswith(files.TEMPORARY_PREFIX)
      for path in folder.iterdir()
  ):
    raise ValueError(
        f'--output_dir={folder} holds other files; name a new folder'
    )
  folder.mkdir(parents=True, exist_ok=True)
  files.write_durably(path, (json.dumps(stored, indent=2) + '\n').encode())
  return folder


def _parse(argv: list[str]) -> list[str]:
  if {'--help', '-help', '--helpfull', '--helpshort'} & set(argv):
    print(__doc__)
    for module in (configuration, sys.modules[__name__]):
      print(flags.FLAGS.module_help(module))
    sys.exit(0)
  try:
    return flags.FLAGS(argv)
  except (flags.Error, OSError) as error:
    sys.stderr.write(f'train: {" ".join(str(error).split())}\n')
    sys.exit(2)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
