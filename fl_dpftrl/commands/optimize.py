"""The best strategy of a mechanism, into a strategy file."""

import argparse
import pathlib
import sys
import time
from typing import Any

from fl_dpftrl import catalogue
from fl_dpftrl import workloads
from fl_dpftrl.commands import flags
from fl_dpftrl.optimization import registry
from fl_dpftrl.strategies import base

HELP = 'finds the best strategy of a mechanism and writes a strategy file'

EXAMPLE = (
    'fl-dpftrl optimize --mechanism=blt --num_rounds=2052 --min_sep=342'
    ' --max_participations=6 --objective=max --output=blt.json'
)

_PROGRESS_SECONDS = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add('--mechanism', required=True, choices=tuple(registry.OPTIMIZERS))
  flags.add_schema(parser, required=True)
  add(
      '--objective', choices=catalogue.OBJECTIVES, default='max',
      help='the loss to make small (default: max)',
  )
  add(
      '--num_bands', type=int,
      help='of banded (default: as many as keep the sensitivity exact)',
  )
  add(
      '--num_buffers', type=int,
      help='of blt, 1 to 8; 0 chooses (default: 0)',
  )
  add(
      '--workload', choices=('prefix', 'momentum'), default='prefix',
      help='what the noise is to be small in (default: prefix)',
  )
  add('--momentum', type=float, help='of the momentum workload, below 1')
  for name, what in (('warmup', 'grows'), ('cooldown', 'falls')):
    add(
        f'--{name}_fraction', type=float, default=0.0,
        help=f'share of the rounds in which the learning rate {what} (default: 0)',
    )
  add('--output', metavar='FILE.json', help='write the strategy file there')


def run(args: argparse.Namespace) -> dict[str, Any]:
  """Optimises, evaluates, and writes the file if one is asked for."""
  schema = flags.schema(args)
  workload = _workload(args)
  optimizer = registry.OPTIMIZERS[args.mechanism]
  size = _size(args, optimizer)
  if args.output is not None:
    _check_output(pathlib.Path(args.output))
  start = time.monotonic()
  strategy = optimizer.optimize(
      schema,
      objective=args.objective,
      workload=workload,
      progress=_Progress(start),
      **size,
  )
  seconds = time.monotonic() - start
  made_for = {
      'schema': schema, 'objective': args.objective, 'workload': workload
  }
  if args.output is None:
    file = catalogue.evaluate(strategy, **made_for)
  else:
    file = _save(args.output, strategy, made_for)
  return {
      'mechanism': args.mechanism,
      **flags.schema_fields(schema),
      'objective': args.objective,
      **file.figures,
      'memory_copies': strategy.memory_copies(schema.num_rounds),
      'wall_seconds': seconds,
      'output': args.output,
  }


def _workload(args: argparse.Namespace) -> workloads.Workload:
  rates = {
      'warmup_fraction': args.warmup_fraction,
      'cooldown_fraction': args.cooldown_fraction,
  }
  if args.workload == 'prefix':
    if args.momentum is not None:
      raise ValueError(
          f'--momentum={args.momentum} needs --workload=momentum'
      )
    return workloads.Workload(**rates)
  if args.momentum is None:
    raise ValueError('--workload=momentum needs --momentum')
  return workloads.Workload(args.momentum, **rates)


def _size(
    args: argparse.Namespace, optimizer: registry.Optimizer
) -> dict[str, int]:
  """The size flag that the mechanism takes, and no other."""
  given = {
      name: getattr(args, name)
      for name in ('num_bands', 'num_buffers')
      if getattr(args, name) is not None
  }
  for name, value in given.items():
    if name != optimizer.size:
      raise ValueError(
          f'--{name}={value} is not for --mechanism={args.mechanism}'
      )
  return given


def _check_output(path: pathlib.Path) -> None:
  """Refuses before the work what could not be written after it."""
  if path.suffix != '.json':
    raise ValueError(f'--output={path}: a strategy file must end in .json')
  if not path.parent.is_dir():
    raise ValueError(f'--output={path}: its folder does not exist')


def _save(
    output: str, strategy: base.Strategy, made_for: dict[str, Any]
) -> catalogue.StrategyFile:
  try:
    return catalogue.save(output, strategy, **made_for)
  except OSError as e:
    raise ValueError(f'--output={output}: {e.strerror or e}') from e


class _Progress:
  """A line on stderr every few seconds of a long optimisation."""

  def __init__(self, start: float):
    self._start = self._last = start

  def __call__(self, steps: int, loss: float) -> None:
    now = time.monotonic()
    if now - self._last >= _PROGRESS_SECONDS:
      self._last = now
      print(
          f'optimize: {now - self._start:.0f} s, {steps} steps,'
          f' loss {loss:.6g}',
          file=sys.stderr,
          flush=True,
      )


def show(result: dict[str, Any]) -> str:
  """The figures as a table."""
  return flags.table(result)
