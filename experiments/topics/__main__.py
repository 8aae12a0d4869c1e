"""Compares mechanisms on the language with topics, only in NumPy.

Example:
  python -m experiments.topics --output_dir=runs/studies/topics

A study that was interrupted goes on when it is started again. The folder gets results.csv,
table.txt, study.md and the figures.
"""

import functools
import sys

import fl_dpftrl as dpftrl
from experiments.stackoverflow import command_line
from experiments.topics import run

_LOW = (0.0244, 0.0414, 0.0704, 0.1197, 0.2035, 0.346)
_HIGH = (0.0704, 0.1197, 0.2035, 0.346, 0.5883, 1.0)
STUDY = {
  'title': 'Topics: mechanisms on 100,000 made-up clients',
  'mechanisms': (
    dpftrl.Mechanism(mechanism='identity', server_learning_rates=_LOW),
    dpftrl.Mechanism(mechanism='tree_online', server_learning_rates=_LOW),
    dpftrl.Mechanism(mechanism='tree_full', server_learning_rates=_HIGH),
    # Each for the loss that its paper optimises.
    dpftrl.Mechanism(mechanism='blt', objective='max', server_learning_rates=_HIGH),
    dpftrl.Mechanism(mechanism='banded', objective='rms', server_learning_rates=_HIGH),
  ),
  'epsilons': (1, 2, 4),
  'server_learning_rates': (0.346, 0.5883, 1.0, 1.7, 2.89),  # Without noise.
  'seeds': tuple(range(10)),
  # A sixth of the rounds and of the min-sep of the papers' StackOverflow: six participations, too.
  'participation': dpftrl.MinSep(num_rounds=342, min_sep=57),
  'clip_norm': 0.5,
  'report_goal': 16,
  'deployment_report_goal': 80,
  'delta': 1e-6,
  'workload': dpftrl.Workload(momentum=0.9, warmup_fraction=0.15, cooldown_fraction=0.25),
}
TASK = run.Task()


def main() -> None:
  parser = command_line.Parser('topics', __doc__)
  parser.add_argument('--output_dir', required=True, help='folder of the study')
  parser.add_argument(
    '--jobs',
    type=int,
    default=0,
    help='runs at the same time, each in a process (default: one after another in this one)',
  )
  parser.add_argument('--cell', type=int, metavar='NUMBER', help='train only this cell')
  arguments = parser.parse_args()
  try:
    study = dpftrl.study(
      functools.partial(run.train, TASK),
      folder=arguments.output_dir,
      jobs=arguments.jobs,
      cell=arguments.cell,
      **STUDY,
    )
  except (ValueError, OSError) as problem:
    parser.error(str(problem))
  print(study.table if arguments.cell is None else repr(study))
  sys.exit(1 if study.unfinished and arguments.cell is None else 0)


if __name__ == '__main__':
  main()
