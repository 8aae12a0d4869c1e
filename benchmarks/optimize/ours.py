"""Our side of the benchmark: the command line."""

import json
import math
import pathlib
import sys

from benchmarks.optimize import cases

FIGURES = ('rms_loss', 'max_loss', 'memory_copies')


def command(case: cases.Case) -> list[str]:
  """Returns the `fl-dpftrl optimize` command of a case, for this environment."""
  flags = {
    'mechanism': case.mechanism,
    'num_rounds': case.num_rounds,
    'min_sep': case.min_sep,
    'max_participations': case.max_participations,
    'objective': case.objective,
    'num_bands': case.num_bands,
    'num_buffers': case.num_buffers,
  }
  return [
    str(pathlib.Path(sys.executable).with_name('fl-dpftrl')),
    'optimize',
    '--json',
    *(f'--{k}={v}' for k, v in flags.items() if v is not None),
  ]


def losses(output: str) -> dict[str, float]:
  """Parses the printed losses and the number of model copies of the noise.

  Raises:
    ValueError: if the output is no such object, or a loss is not finite.
  """
  figures = json.loads(output)
  found = {name: figures.get(name) for name in FIGURES}
  if not all(isinstance(v, (int, float)) and math.isfinite(v) for v in found.values()):
    raise ValueError(f'figures are not finite: {found}')
  return found
