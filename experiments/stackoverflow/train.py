"""Trains a next-word model with correlated noise and reports the ε it gave.

Example:
  python -m experiments.stackoverflow.train \
    --flagfile=experiments/stackoverflow/flags/docstrings.flags \
    --output_dir=runs/docstrings

The output folder gets hparams.json, strategy.json, metrics.csv, TensorBoard
event files, participation.parquet (the log), privacy.json, privacy.html,
accuracy.png, summary.json, model.npz, checkpoints/ and, for a run with a guarantee,
bundle/ for `fl-dpftrl verify`. An interrupted run goes on with --resume.
"""

from fl_dpftrl import signals

if __name__ == '__main__':
  signals.end_at_once('train: interrupted')  # What is imported next takes a while.

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
from collections.abc import Iterator, Sequence
from typing import NoReturn

from absl import app, flags, logging

from experiments.stackoverflow import configuration, flag_files
from experiments.stackoverflow import machines as machines_lib
from fl_dpftrl import files, json_files, messages
from fl_dpftrl.learning import interrupts
from fl_dpftrl.noise.engine import certificates, shards

LOCK_NAME = 'lock'
TEMPORARY_NAME = '.temporary'
_CHECKPOINTS_NAME = 'checkpoints'  # of `learning.loop`, which is slow to load
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
_WORKER_ADDRESSES = flags.DEFINE_list(
  'worker_addresses',
  [],
  'host:port of each `fl-dpftrl worker` that trains clients: none for one here.',
)
_MAX_CONCURRENT_CLIENTS = flags.DEFINE_integer(
  'max_concurrent_clients',
  0,
  'Clients trained at the same time on this machine; 0 for as many as processors and memory allow.',
)
_RUNTIME = flags.DEFINE_enum(
  'runtime',
  'in_process',
  list(machines_lib.RUNTIMES),
  'Where clients train on this machine: in this process, or in a worker process'
  ' of TensorFlow Federated.',
)
_NOISE_WORKER_ADDRESSES = flags.DEFINE_list(
  'noise_worker_addresses',
  [],
  'host:port of each `fl-dpftrl noise_worker` that makes a slice of the noise.',
)
_NOISE_CERTIFICATES = flags.DEFINE_string(
  'noise_certificates',
  None,
  'Folder with authority.pem, run.pem and run.key, of those that the first'
  ' `fl-dpftrl noise_worker --certificates=FOLDER` makes.',
)
_NOISE_AUTHORITY_FILE = flags.DEFINE_string(
  'noise_authority_file',
  None,
  "In place of --noise_certificates: certificate of the noise workers' authority, in PEM.",
)
_NOISE_CERTIFICATE_FILE = flags.DEFINE_string(
  'noise_certificate_file', None, "This run's certificate for noise workers, in PEM."
)
_NOISE_KEY_FILE = flags.DEFINE_string(
  'noise_key_file', None, 'Private key of --noise_certificate_file, in PEM.'
)
_INSECURE_NETWORK = flags.DEFINE_bool(
  'insecure_network',
  False,
  'Accept --worker_addresses other than localhost: what is sent to workers is neither encrypted'
  ' nor authenticated, so the network must be private.',
)
_WORKER_TIMEOUT = flags.DEFINE_float(
  'worker_timeout',
  shards.TIMEOUT_SECONDS,
  'Seconds that a worker may take for its part of a round, or that a noise worker may give no sign'
  ' while a row is waited for (each row on the way and each part of it is one); then the round'
  ' ends. Allow several times what the longest round or row takes.',
)


def main(argv: list[str]) -> None:
  try:
    if len(argv) > 1:
      raise ValueError(f'{messages.quoted(argv[1])} is not a flag; flags are --name=value')
    if not _OUTPUT_DIR.value:
      raise ValueError('--output_dir is missing: name a folder for the run')
    hparams = configuration.from_flags()
    machines = _machines()
    folder = pathlib.Path(_OUTPUT_DIR.value)
    _check_folder(folder, hparams)
    # Registers its own plug-ins with much ado; real trouble is raised.
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
    # Several clients at a time need it: see fl_dpftrl/runtime/memory.py.
    os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')
    logging.set_verbosity(logging.WARNING)  # TFF tells of every lost call.
    with _held(folder), _own_temporary_folder(folder):
      hparams = _check_folder(folder, hparams)  # Again: now nobody else changes it.
      interrupts.run(lambda asked: _run(hparams, machines, folder, asked))
  except (ValueError, OSError) as error:
    _fail(error, status=1 if getattr(error, 'errno', 0) in _NO_ROOM else 2)
  except MemoryError as error:
    _fail(ValueError(f'not enough memory: {error}'))
  except RuntimeError as error:  # A failed round, or a worker that cannot start.
    _fail(error, status=1)
  except signals.Interrupted as interrupted:
    sys.stderr.write(
      '\ninterrupted; the same command with --resume goes on (`make train` has it)\n'
    )
    interrupts.leave(interrupted.status)


def _run(
  hparams: configuration.Hparams,
  machines: machines_lib.Machines,
  folder: pathlib.Path,
  interrupt: interrupts.Interrupt,
) -> None:
  # SciPy is slow to load: not before each flag is known to be right by itself.
  from experiments.stackoverflow import run

  run.run(
    hparams,
    folder,
    machines=machines,
    compare_with=_COMPARE_WITH.value and pathlib.Path(_COMPARE_WITH.value),
    figures=_FIGURES.value,
    interrupt=interrupt,
  )


@contextlib.contextmanager
def _held(folder: pathlib.Path) -> Iterator[None]:
  """Holds a run's folder from before the first file is written to the end.

  Where nothing was written in the end, such as for flags that do not fit the
  data, a folder that was made for it is gone again.

  Raises:
    ValueError: where another process holds it.
  """
  folder.mkdir(parents=True, exist_ok=True)
  lock = folder / LOCK_NAME
  with files.exclusive(lock):
    files.remove_leftovers(folder)
    try:
      yield
    finally:
      if {path.name for path in folder.iterdir()} == {LOCK_NAME}:
        lock.unlink()
        with contextlib.suppress(OSError):  # Another start may be at it by now.
          folder.rmdir()


@contextlib.contextmanager
def _own_temporary_folder(folder: pathlib.Path) -> Iterator[None]:
  """Keeps temporary files in the run's folder, so that those of a killed run go when it resumes.

  They also go where the process ends at once, as `interrupts.leave` does. TensorFlow writes code
  there, and removes it where the interpreter comes to its end; without room for it, it would
  try for minutes to do without.

  Raises:
    OSError: if there is no room.
  """
  if shutil.disk_usage(folder).free < _LEAST_BYTES:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
  before, temporary = tempfile.tempdir, folder / TEMPORARY_NAME
  shutil.rmtree(temporary, ignore_errors=True)
  temporary.mkdir(mode=0o700)
  tempfile.tempdir = str(temporary.resolve())
  try:
    yield
  finally:
    tempfile.tempdir = before
    shutil.rmtree(temporary, ignore_errors=True)


def _fail(error: Exception, status: int = 2) -> NoReturn:
  sys.stderr.write(messages.one_line(f'train: {error}') + '\n')
  sys.exit(status)


def _machines() -> machines_lib.Machines:
  own = None
  named = (
    _NOISE_CERTIFICATES.value,
    _NOISE_AUTHORITY_FILE.value,
    _NOISE_CERTIFICATE_FILE.value,
    _NOISE_KEY_FILE.value,
  )
  if _NOISE_WORKER_ADDRESSES.value:
    own = certificates.chosen(certificates.RUN, 'noise_', *named)
  elif any(named):
    raise ValueError(
      '--noise_certificates and files of certificates are for --noise_worker_addresses alone'
    )
  if _MAX_CONCURRENT_CLIENTS.value and _WORKER_ADDRESSES.value:
    raise ValueError(
      '--max_concurrent_clients is for this machine; with --worker_addresses'
      ' give --max_concurrent_calls to each `fl-dpftrl worker`'
    )
  return machines_lib.Machines(
    concurrent_clients=_MAX_CONCURRENT_CLIENTS.value,
    runtime=_RUNTIME.value,
    workers=tuple(_WORKER_ADDRESSES.value),
    noise_workers=tuple(_NOISE_WORKER_ADDRESSES.value),
    noise_certificates=own,
    insecure_network=_INSECURE_NETWORK.value,
    worker_timeout=_WORKER_TIMEOUT.value,
  )


def _check_folder(folder: pathlib.Path, hparams: configuration.Hparams) -> configuration.Hparams:
  """Refuses a folder with another run, or with anything else, in it.

  Returns:
    The flags; a calibrated noise multiplier is that of the run's first start.
  """
  path = folder / configuration.HPARAMS_NAME
  if not path.exists():
    if folder.exists() and any(
      path.name not in (LOCK_NAME, TEMPORARY_NAME)
      and not path.name.startswith(files.TEMPORARY_PREFIX)
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
  if hparams.calibrates:
    now['noise_multiplier'] = before['noise_multiplier']
  for name in sorted(now.keys() | before.keys()):
    if before.get(name) != now.get(name):
      raise ValueError(
        f'--{name}={now.get(name)} differs from the run in {folder}, which has'
        f' {messages.quoted(before.get(name))}; resume with the same flags'
      )
  return dataclasses.replace(hparams, noise_multiplier=now['noise_multiplier'])


def _parse(argv: list[str]) -> list[str]:
  if {'--help', '-help', '--helpfull', '--helpshort'} & set(argv):
    from fl_dpftrl.optimization import registry  # Slow to load.

    print(__doc__)
    print(textwrap.fill(f'Mechanisms: {", ".join(registry.OPTIMIZERS)}.', width=80))
    for module in (configuration, sys.modules[__name__]):
      print(flags.FLAGS.module_help(module))
    sys.exit(0)
  try:
    return flags.FLAGS([*argv[:1], *flag_files.expand(argv[1:])])
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
