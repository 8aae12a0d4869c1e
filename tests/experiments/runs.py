"""Flags of the runs that tests of several modules share, and readings of a run's folder."""

import csv
import json
import pathlib
import signal
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
from absl.testing import flagsaver

from experiments.stackoverflow import train
from fl_dpftrl.logs import keys, ledger_format
from fl_dpftrl.tff.training import loop
from tests.experiments import starts

NUM_ROUNDS = 12
SEEDED = [
  '--dataset=synthetic', '--mechanism=blt', '--noise_multiplier=1', '--noise_seed=11',
  '--report_goal=6', f'--num_rounds={NUM_ROUNDS}', '--timer_rounds=4', '--rounds_per_evaluation=6',
  '--seed=3', '--clip_norm=0.5',
]  # fmt: skip
FLAGS = [*SEEDED, '--clip_quantile=0.7', '--clip_rounds=8']
"""Flags of a run with a noise seed, whose clip norm is adaptive."""

ENGINE_ROUNDS = 20  # Past a snapshot of an engine.
ENGINE = [
  *SEEDED,
  '--noise_memory=engine',
  f'--num_rounds={ENGINE_ROUNDS}',
  f'--rounds_per_evaluation={ENGINE_ROUNDS}',
]
"""Flags of a run whose noise is made outside TFF."""

GUARANTEED = [
  '--flagfile=experiments/stackoverflow/flags/synthetic.flags',
  f'--num_rounds={NUM_ROUNDS}',
  '--report_goal=10',
  '--noise_multiplier=2',
  '--timer_rounds=5',
  '--rounds_per_evaluation=4',
]
"""Flags of a run with a guarantee."""


class Finished(NamedTuple):
  """A run that tests copy, and do not change."""

  folder: pathlib.Path
  out: str
  err: str


def start(folder: pathlib.Path, *flags: str, base=FLAGS, **kwargs) -> starts.Start:
  """Starts a run, or goes on with it."""
  return starts.Start(*base, *flags, f'--output_dir={folder}', '--resume', **kwargs)


def finish(folder: pathlib.Path, *flags: str, base=FLAGS, **kwargs) -> tuple[str, str]:
  """Runs to the end; returns what was written to stdout and stderr."""
  process = start(folder, *flags, base=base, **kwargs)
  assert process.wait() == 0, process.err
  return process.out, process.err


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 2) -> str:
  """Returns the one line with which the command, in this process, ends with a status."""
  with flagsaver.flagsaver(), pytest.raises(SystemExit) as end:
    train.app.run(train.main, argv=['train', *arguments], flags_parser=train._parse)
  out, err = capsys.readouterr()
  (line,) = (each for each in err.splitlines() if each.startswith('train: '))
  assert end.value.code == status and not out and 'Traceback' not in err, err
  return line


def killed(folder: pathlib.Path, step: str, t: int, *flags: str, base=FLAGS) -> tuple[str, str]:
  """Runs until the process kills itself; returns what was written to stdout and stderr."""
  process = start(folder, *flags, base=base, kill_at=(step, t))
  assert process.wait() == -signal.SIGKILL, process.err
  return process.out, process.err


def ended(process: starts.Start) -> tuple[int, str, str]:
  """Waits for the end; returns status, stdout and stderr, which have no traceback."""
  code, out, err = process.wait(), process.out, process.err
  assert 'Traceback' not in err and 'Exception ignored' not in err, err
  return code, out, err


def state(folder: pathlib.Path) -> list[np.ndarray]:
  """Returns the arrays of the last checkpoint."""
  last = sorted((folder / loop.CHECKPOINTS_NAME).glob('round-*.npz'))[-1]
  with np.load(last, allow_pickle=False) as archive:
    return [archive[name] for name in archive.files]


def noise_state(folder: pathlib.Path) -> list[np.ndarray]:
  """Returns seed, row, standard deviation and trail of the noise."""
  leaves = state(folder)
  seed = next(i for i, leaf in enumerate(leaves) if (leaf.shape, leaf.dtype) == ((4,), np.int64))
  return leaves[seed : seed + 4]


def table(folder: pathlib.Path) -> list[dict[str, str]]:
  """Returns the rows of metrics.csv, without what every run has of its own."""
  own = ('seconds', 'sha256')
  with (folder / 'metrics.csv').open(newline='') as file:
    return [{k: v for k, v in row.items() if k not in own} for row in csv.DictReader(file)]


def read(folder: pathlib.Path, name: str):
  return json.loads((folder / name).read_text())


def assert_same_run(folder: pathlib.Path, expected: pathlib.Path) -> None:
  """Checks that two runs have the same state, table, log, model and statement."""
  for own, other in zip(state(folder), state(expected), strict=True):
    np.testing.assert_array_equal(own, other)
  assert table(folder) == table(expected)
  assert log(folder) == log(expected)
  assert (folder / 'model.npz').read_bytes() == (expected / 'model.npz').read_bytes()
  stated, other = (read(f, 'privacy.json') for f in (folder, expected))
  assert stated | {'log': None} == other | {'log': None}  # Files have the identity of their run.


def log(folder: pathlib.Path) -> tuple[list, dict]:
  """Returns rows and metadata of a run's log, but for the identity of the run."""
  rows = pq.read_table(folder / ledger_format.NAME)
  stated = {k.decode(): v for k, v in rows.schema.metadata.items()}
  return rows.to_pylist(), {k: stated[k] for k in stated.keys() - {keys.RUN_KEY, keys.METADATA_KEY}}
