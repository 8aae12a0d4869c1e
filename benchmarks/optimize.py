"""Finding a strategy: fl-dpftrl and jax-privacy.

Each run is a cold process: imports, compilation and the search. Seconds are the median (least–most)
of all runs. Names are mechanism, n, b, k, objective and size. Losses of both sides are evaluated by
the same code.
"""

import dataclasses
import json
import math
import tempfile
from typing import Any

from benchmarks import runner
from benchmarks.runner import Runs, Side, call, ratio

CORES, PEER = 1, '.venv-bench'
FIGURES = ('rms_loss', 'max_loss', 'memory_copies')


@dataclasses.dataclass(frozen=True)
class Case:
  """Problem in the terms of `fl-dpftrl optimize`; limits of seconds, and of useful repeats.

  0 buffers are chosen. None is of families without bands or buffers.
  """

  mechanism: str
  num_rounds: int
  min_sep: int = 1
  max_participations: int = 1
  objective: str = 'rms'
  num_bands: int | None = None
  num_buffers: int | None = None
  timeout: float = 600.0
  repeats: int = 100

  @property
  def name(self) -> str:
    """Name of the case, such as blt-n2052-b342-k6-max-4buffers."""
    size = '' if self.num_bands is None else f'-{self.num_bands}bands'
    size += '' if self.num_buffers is None else f'-{self.num_buffers or "choose"}buffers'
    schema = f'n{self.num_rounds}-b{self.min_sep}-k{self.max_participations}'
    return f'{self.mechanism}-{schema}-{self.objective}{size}'

  @property
  def command(self) -> list[str]:
    """The `fl-dpftrl optimize` command."""
    flags = dataclasses.asdict(self)
    del flags['timeout'], flags['repeats']
    given = [f'--{name}={value}' for name, value in flags.items() if value is not None]
    return [runner.PROGRAM, 'optimize', '--json', *given]


def _blt(n: int, b: int, k: int, objective: str, buffers: int, **limits: Any) -> Case:
  return Case('blt', n, b, k, objective, None, buffers, **limits)


_PROBLEMS = (
  *(_blt(2052, 342, 6, objective, n) for objective in ('max', 'rms') for n in (2, 3, 4, 5)),
  *(_blt(2052, 342, 6, objective, 0, repeats=3) for objective in ('max', 'rms')),
  *(_blt(2000, 1, 1, objective, 4) for objective in ('max', 'rms')),
  *(_blt(4000, 400, 5, objective, 4) for objective in ('max', 'rms')),
  _blt(100_000, 1000, 10, 'max', 4, repeats=1, timeout=1800.0),
  Case('banded_toeplitz', 2052, 342, 6, num_bands=342),
  Case('banded_toeplitz', 16_384, num_bands=16),
  Case('banded', 1024, num_bands=32),
  Case('dense', 512),
)
CASES = {case.name: case for case in _PROBLEMS}

LOSSES = '{rms_loss:.4f} / {max_loss:.4f}'
TABLE = (
  'case={case.name}|ours, s={ours}|peer, s={peer}|faster={faster:.1f}|'
  'ours, RmsLoss / MaxLoss={losses}|peer, RmsLoss / MaxLoss={peer_losses}|'
  "our loss over the peer's={excess_loss:+z.2%}|ours, MiB={ours:MiB}|peer, MiB={peer:MiB}"
)


def read(output: str) -> dict[str, float]:
  """Returns finite losses that `optimize` printed, and the model copies of the noise."""
  figures = {name: json.loads(output)[name] for name in FIGURES}
  if not all(map(math.isfinite, figures.values())):
    raise ValueError(f'figures are not finite: {figures}')
  return figures


def measure(case: Case, options: runner.Options) -> dict[str, Any]:
  """Runs both sides in turn; the peer's strategy is judged once, not timed."""
  setting = dataclasses.asdict(case)
  with tempfile.TemporaryDirectory() as folder:
    path = f'{folder}/found.npz'
    peer = call('jax_privacy', 'optimize', setting, path, python=options.peer)
    sides = {
      'ours': Side(case.command, timeout=case.timeout, read=read),
      'peer': Side(peer, timeout=case.timeout, read=lambda output: None),
    }
    runs = runner.turns(case.name, sides, min(options.repeats, case.repeats))
    judged = Runs()
    if runs['peer'].seconds:
      runner.run(Side(call('strategies', 'losses', setting, path), timeout=case.timeout), judged)
      runs['peer'].failures += judged.failures
  objective = lambda figures: figures and figures[f'{case.objective}_loss']
  excess = ratio(objective(runs['ours'].result), objective(judged.result))
  losses = lambda figures: figures and LOSSES.format_map(figures)
  return {
    **dict(case=case, **runs, peer_figures=judged.result),
    **dict(losses=losses(runs['ours'].result), peer_losses=losses(judged.result)),
    'faster': ratio(runs['peer'].median, runs['ours'].median),
    'excess_loss': None if excess is None else excess - 1.0,
  }


def main(options: runner.Options) -> int:
  """Measures the selected problems and writes the page after each."""
  ours = runner.versions('numpy', 'scipy')
  peer = runner.versions('jax-privacy', 'jax', 'numpy', 'scipy', python=options.peer)
  rows: list[dict[str, Any]] = []
  for case in options.select(CASES).values():
    rows.append(measure(case, options))
    runner.write(options, __doc__, 'optimize', [runner.table(TABLE, rows)], rows, ours, peer)
  return int(runner.any_failed(rows))
