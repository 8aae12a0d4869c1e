"""Trains every run of a study file, and compares mechanisms: table, figures, page.

Example:
  python -m experiments.stackoverflow.study --study=studies/docstrings.json \\
    --output_dir=runs/studies/docstrings

A study that was interrupted goes on when it is started again. The folder gets results.csv,
table.txt, study.md, the figures, and in cells/ the folder and the output of each run.

For a scheduler, --cells prints ranges of numbers of cells: those of a line can run at the same
time, each with --cell=NUMBER, the second line after the first. Without --cell all are compared.
"""

from fl_dpftrl.support import signals
from fl_dpftrl.support.text import streams

if __name__ == '__main__':
  signals.end_at_once('study: interrupted')  # What is imported next takes a while.
  streams.prepare()

# pylint: disable=g-import-not-at-top,wrong-import-position
import argparse
import dataclasses
import functools
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import fl_dpftrl as dpftrl
from experiments.stackoverflow import command_line, configuration, run
from fl_dpftrl.mechanisms import workloads
from fl_dpftrl.study import cells, comparing, designs
from fl_dpftrl.study.result_tables import Metric
from fl_dpftrl.support import machine
from fl_dpftrl.support.files import json_files, paths
from fl_dpftrl.support.text import messages

# Flags that a study sets for each of its runs.
_PER_RUN = (
  *('mechanism', 'strategy', *configuration.NOISE_FLAGS, 'server_learning_rate', 'seed'),
  *('noise_seed', 'output_dir', 'resume', 'compare_with', 'figures'),
)
_REQUIRED = ('title', 'flags', 'mechanisms', 'epsilons', 'server_learning_rates', 'seeds')
_OPTIONAL = ('without_noise', 'metric', 'lower_is_better', 'deployment_report_goal')


def read(path: str | os.PathLike[str]) -> designs.Design:
  """Returns the design of a study file.

  Raises:
    OSError: if it cannot be read.
    ValueError: naming the file, the field and its value.
  """
  content = json_files.read(path)
  try:
    return design(content)
  except (ValueError, OSError) as problem:
    raise ValueError(f'{os.fspath(path)}: {problem}') from None


def design(content: Any) -> designs.Design:
  """Returns the design that the JSON value of a study file describes, as `read` does."""
  fields = _object('a study', content, (*_REQUIRED, *_OPTIONAL), _REQUIRED)
  flags = fields['flags']
  if not isinstance(flags, list) or not all(isinstance(flag, str) for flag in flags):
    raise ValueError(f'flags must be a list of texts, got {messages.quoted(flags)}')
  for flag in flags:
    name = flag.partition('=')[0].lstrip('-')
    if not flag.startswith('--') or name in _PER_RUN:
      raise ValueError(
        f'flags has {messages.quoted(flag)}: give --name=value, and leave what a study sets itself'
        ' (noise, learning rate, seed, folder) to its other fields'
      )
  hparams = configuration.from_arguments([*flags, '--mechanism=identity', '--noise_multiplier=0'])
  if hparams.timer_hours is not None:
    raise ValueError('flags has --timer_hours, which enforces no min-sep: give --timer_rounds')
  if hparams.max_participations is not None:
    raise ValueError('flags has --max_participations, of a run without an end: a study has one')
  metric = Metric(fields.pop('metric', 'accuracy'), fields.pop('lower_is_better', None))
  mechanisms = fields['mechanisms']
  if not isinstance(mechanisms, list):
    raise ValueError(f'mechanisms must be a list, got {messages.quoted(mechanisms)}')
  fields['mechanisms'] = [_mechanism(m) if isinstance(m, dict) else m for m in mechanisms]
  return designs.Design(
    **{**fields, 'flags': tuple(flags)},
    metric=metric,
    participation=run.enforced(hparams),
    clip_norm=hparams.clip_norm,
    report_goal=hparams.report_goal,
    delta=hparams.delta,
    workload=workloads.Workload(
      momentum=hparams.server_momentum,
      warmup_fraction=hparams.warmup_fraction,
      cooldown_fraction=hparams.cooldown_fraction,
    ),
  )


def _mechanism(entry: Mapping[str, Any]) -> dpftrl.Mechanism:
  names = [field.name for field in dataclasses.fields(dpftrl.Mechanism)]
  return dpftrl.Mechanism(**_object('a mechanism', entry, names, ['mechanism']))


def _object(what: str, value: Any, names: Sequence[str], required: Sequence[str]) -> dict[str, Any]:
  if not isinstance(value, dict):
    raise ValueError(f'{what} must be a JSON object, got {messages.quoted(value)}')
  for name in value:
    if name not in names:
      raise ValueError(f'{what} has no field {messages.quoted(name)}; it has {", ".join(names)}')
  for name in required:
    if name not in value:
      raise ValueError(f'{what} must have the field {name}')
  return dict(value)


def arguments(cell: cells.Cell) -> list[str]:
  """Returns the arguments of the training script for a cell."""
  noise = ['--mechanism=identity', '--noise_multiplier=0']
  if cell.noise is not None:
    noise = [f'--strategy={cell.noise.strategy}', f'--noise_multiplier={cell.noise_multiplier!r}']
  return [
    *cell.design.flags,
    *noise,
    f'--server_learning_rate={cell.server_learning_rate!r}',
    f'--seed={cell.seed}',
    f'--output_dir={cell.folder}',
    '--resume',
  ]


def train(concurrent_clients: int, cell: cells.Cell) -> Mapping[str, Any]:
  """Trains a cell by the training script, in this process; returns its summary.

  Raises:
    SystemExit: with the script's exit status, if it failed.
  """
  from experiments.stackoverflow import train as script

  try:
    script.start([*arguments(cell), f'--max_concurrent_clients={concurrent_clients}'])
  except SystemExit as ended:
    if ended.code:
      raise
  return json_files.read(cell.folder / configuration.SUMMARY_NAME)


def main() -> None:
  parser = command_line.Parser('study', __doc__)
  parser.add_argument('--study', required=True, help='study file; see studies/')
  parser.add_argument('--output_dir', required=True, help='folder of the study')
  parser.add_argument(
    '--jobs', type=int, default=1, help='runs at the same time, which share processors (default: 1)'
  )
  parser.add_argument('--cell', type=int, metavar='NUMBER', help='train only this cell')
  parser.add_argument(
    '--cells', action='store_true', help='print the ranges of numbers of the cells, and end'
  )
  arguments = parser.parse_args()
  try:
    with signals.cleaned_up('study: interrupted; the same command goes on'):
      status = _run(arguments)
  except FileNotFoundError as problem:
    parser.error(
      f'{problem.filename} is not there; a relative path starts at the working directory,'
      f' {pathlib.Path.cwd()}'
    )
  except (ValueError, OSError) as problem:
    parser.error(str(problem))
  sys.exit(status)


def _run(arguments: argparse.Namespace) -> int:
  """Runs the study, or a cell of it; returns 1 if a run failed."""
  if arguments.jobs < 1:
    raise ValueError(f'--jobs={arguments.jobs} must be at least 1')
  study = read(arguments.study)
  if arguments.cells:
    places = study.places()
    first = sum(seed == study.seeds[0] or rate is not None for _, rate, seed in places)
    for low, high in ((0, first), (first, len(places))):
      if low < high:
        print(f'{low}-{high - 1}')
    return 0
  found = comparing.compare(
    study,
    functools.partial(train, max(1, machine.cores() // arguments.jobs)),
    paths.local(arguments.output_dir),
    jobs=arguments.jobs,
    cell=arguments.cell,
    say=lambda line: print(messages.lines(line), file=sys.stderr, flush=True),
  )
  if arguments.cell is not None:
    return 0
  print(messages.lines(found.table))
  return 1 if found.unfinished else 0


if __name__ == '__main__':
  main()
