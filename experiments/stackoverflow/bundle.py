"""The bundle of a finished run, with which others check its guarantee."""

import pathlib
import shutil

from fl_dpftrl.bundles import writing
from fl_dpftrl.replaying import runs

NAME = 'bundle'


def write(folder: pathlib.Path, run: runs.Run, *, delta: float) -> list[tuple[str, str]]:
  """Writes the bundle of a run into its folder, and returns lines for the run's summary.

  A bundle of an earlier end of the same run is replaced: it follows from the log alone.

  Args:
    folder: of the run.
    run: its log, noise and declared schema.
    delta: δ of the guarantee.
  """
  path = folder / NAME
  if path.exists():
    shutil.rmtree(path)
  digest = writing.write_bundle(path, run, deltas=delta).digest
  return [('Bundle, for others to check', str(path)), ('  digest, to keep elsewhere', digest)]
