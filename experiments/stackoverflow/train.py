"""Trains a next-word model with correlated noise and reports the ε it gave.

Example:
  python -m experiments.stackoverflow.train \
    --flagfile=experiments/stackoverflow/flags/docstrings.flags \
    --output_dir=runs/docstrings

The output folder gets hparams.json, strategy.json, metrics.csv, TensorBoard event files,
participation.parquet (the log), privacy.json, privacy.html, accuracy.png, summary.json, model.npz,
checkpoints/ and, for a run with a guarantee, claim.json. An interrupted run goes on with --resume.
"""

from fl_dpftrl.support import signals
from fl_dpftrl.support.text import streams

if __name__ == '__main__':
  signals.end_at_once('train: interrupted')  # What is imported next takes a while.
  streams.prepare()

# pylint: disable=g-import-not-at-top,wrong-import-position
import contextlib
import dataclasses
import errno
import os
import pathlib
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from absl import app, flags, logging

from experiments.stackoverflow import configuration, flag_files, interrupts, remote_machines
from fl_dpftrl.support.files import durable, json_files, paths
from fl_dpftrl.support.text import messages

LOCK_NAME = 'lock'
TEMPORARY_NAME = '.temporary'
_CHECKPOINTS_NAME = 'checkpoints'  # of `tff.training.loop`, which is slow to load
_LEAST_BYTES = 4 * 2**20  # of a disk, several times what TensorFlow writes
# A full disk is no bad input: the run can be resumed once there is room.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_OUTPUT_DIR = flags.DEFINE_string('output_dir', None, 'Folder for everything that the run writes.')
_RESUME = flags.DEFINE_bool('resume', False, 'Go on with the run in output_dir, if there is one.')
_COMPARE_WITH = flags.DEFINE_string(
  'compare_with', None, 'Output folder of the same run without noise, for the summary.'
)
_FIGURES = flags.DEFINE_enum(
  'figures', 'png', ['png', 'svg', 'pdf'], 'Kind of the plot of accuracy.'
)


def main(argv: list[str]) -> None:
  try:
    if len(argv) > 1:
      raise ValueError(f'{messages.quoted(argv[1])} is not a flag; flags are --name=value')
    if not _OUTPUT_DIR.value:
      raise ValueError('--output_dir is missing: name a folder for the run')
    hparams = configuration.from_flags()
    machines = remote_machines.from_flags()
    folder = paths.local(_OUTPUT_DIR.value)
    _check_folder(folder, hparams)
    # Registers its own plug-ins with much ado; real trouble is raised.
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
    # Several clients at a time need it: see tff_inprocess/memory.py.
    os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')
    logging.set_verbosity(logging.WARNING)  # TFF tells of every lost call.
    with _held(folder) as is_ours, _own_temporary_folder(folder, is_ours):
      hparams = _check_folder(folder, hparams)  # Again: now nobody else changes it.
      interrupts.run(lambda asked: _run(hparams, machines, folder, asked))
  except (ValueError, OSError) as error:
    _fail(error, status=1 if getattr(error, 'errno', 0) in _NO_ROOM else 2)
  except MemoryError as error:
    _fail(ValueError(f'not enough memory: {error}'))
  except RuntimeError as error:  # A failed round.
    _fail(error, status=1)
  except signals.Interrupted as interrupted:
    sys.stderr.write(
      '\ninterrupted; the same command with --resume goes on (`make train` has it)\n'
    )
    interrupts.leave(interrupted.status)


def _run(
  hparams: configuration.Hparams,
  machines: remote_machines.Machines,
  folder: pathlib.Path,
  interrupt: interrupts.Interrupt,
) -> None:
  # SciPy is slow to load: not before each flag is known to be right by itself.
  from experiments.stackoverflow import run

  run.run(
    hparams,
    folder,
    machines=machines,
    compare_with=_COMPARE_WITH.value and paths.local(_COMPARE_WITH.value),
    figures=_FIGURES.value,
    interrupt=interrupt,
  )


@contextlib.contextmanager
def _held(folder: pathlib.Path) -> Iterator[Callable[[], bool]]:
  """Holds a run's folder from before the first file is written to the end.

  Yields whether it is still that folder: somebody may have removed it, and begun another run.
  """
  folder.mkdir(parents=True, exist_ok=True)
  lock = folder / LOCK_NAME
  with durable.locked(lock) as file:
    is_ours = lambda: durable.is_at(file, lock)
    durable.remove_leftovers(folder)
    try:
      yield is_ours
    finally:
      if is_ours() and {path.name for path in folder.iterdir()} == {LOCK_NAME}:
        lock.unlink()
        with contextlib.suppress(OSError):  # Another start may be at it by now.
          folder.rmdir()


@contextlib.contextmanager
def _own_temporary_folder(folder: pathlib.Path, is_ours: Callable[[], bool]) -> Iterator[None]:
  """Keeps temporary files in the run's folder, so that those of a killed run go when it resumes."""
  if shutil.disk_usage(folder).free < _LEAST_BYTES:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
  before, temporary = tempfile.tempdir, folder / TEMPORARY_NAME
  shutil.rmtree(temporary, ignore_errors=True)
  temporary.mkdir(mode=0o700)
  tempfile.tempdir = str(temporary.resolve())
  try:
    yield
    tempfile.tempdir = before
  except Exception:
    tempfile.tempdir = before
    raise
  finally:  # An interrupt may leave a thread at work, which must not write anywhere else.
    if is_ours():
      shutil.rmtree(temporary, ignore_errors=True)


def _fail(error: Exception, status: int = 2) -> NoReturn:
  sys.stderr.write(messages.one_line(f'train: {error}') + '\n')
  sys.exit(status)


def _check_folder(folder: pathlib.Path, hparams: configuration.Hparams) -> configuration.Hparams:
  """Refuses a folder with another run, or with anything else, in it."""
  path = folder / configuration.HPARAMS_NAME
  if not path.exists():
    if folder.exists() and any(
      path.name not in (LOCK_NAME, TEMPORARY_NAME)
      and not path.name.startswith(durable.TEMPORARY_PREFIX)
      for path in folder.iterdir()
    ):
      if (folder / _CHECKPOINTS_NAME).is_dir():
        raise ValueError(
          f'--output_dir={folder} holds a run without {configuration.HPARAMS_NAME}, which has its'
          ' flags: put that file back, or name a new folder'
        )
      raise ValueError(f'--output_dir={folder} holds other files; name a new folder')
    return hparams
  if not _RESUME.value:
    raise ValueError(
      f'--output_dir={folder} holds a run; name another folder, or go on with --resume'
    )
  before = json_files.read(path)
  if not isinstance(before, dict):
    raise ValueError(f'{path} is not of a run: it must hold a JSON object')
  now, before = hparams.to_json(), configuration.recorded(before)
  if hparams.epsilon is not None:
    now['noise_multiplier'] = before['noise_multiplier']
  if hparams.max_participations is not None and hparams.num_rounds > before['num_rounds']:
    before['num_rounds'] = now['num_rounds']  # A run without an end is lengthened.
  for name in sorted(now.keys() | before.keys()):
    if before.get(name) != now.get(name):
      raise ValueError(
        f'--{name}={now.get(name)} differs from the run in {folder}, which has'
        f' {messages.quoted(before.get(name))}; resume with the same flags'
      )
  return dataclasses.replace(hparams, noise_multiplier=now['noise_multiplier'])


def _parse(argv: list[str]) -> list[str]:
  if {'--help', '-help', '--helpfull', '--helpshort'} & set(argv):
    from fl_dpftrl.mechanisms.search import optimizers  # Slow to load.

    print(__doc__)
    print(textwrap.fill(f'Mechanisms: {", ".join(optimizers.OPTIMIZERS)}.', width=80))
    for module in (configuration, sys.modules[__name__]):
      print(flags.FLAGS.module_help(module))
    sys.exit(0)
  try:
    arguments = flag_files.expand(argv[1:])
    return flags.FLAGS([*argv[:1], *arguments])
  except (flags.Error, OSError, ValueError) as error:
    _fail(error)


def start(arguments: Sequence[str]) -> NoReturn:
  """Runs the command with these arguments, and ends the process.

  Raises:
    SystemExit: with the exit status of the command.
  """
  app.run(main, argv=['train', *arguments], flags_parser=_parse)
  sys.exit(0)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
