"""Compares mechanisms at equal ε by fine-tuning, in several seeds.

Example:
  python -m experiments.finetune.study --text=changelogs --output_dir=people
"""

import dataclasses
import functools
import sys
from collections.abc import Mapping

import fl_dpftrl as dpftrl
from experiments.finetune import __main__ as command
from experiments.finetune import data, settings, train
from experiments.stackoverflow import command_line
from fl_dpftrl.study import Cell


def run(units: data.Units, cell: Cell) -> Mapping[str, Mapping[str, float]]:
  """Trains a cell; returns evaluations of two halves of the held-out units."""
  task, (mechanism, _) = task_of(units, cell.seed), cell.setting
  name = 'identity' if mechanism is None else mechanism.label
  chosen = dataclasses.replace(task.settings, mechanism=name)
  with cell.private_aggregator(task.model.zeros) as aggregator:
    b = train.train(dataclasses.replace(task, settings=chosen), aggregator)
  parts = {'validation': slice(0, None, 2), 'test': slice(1, None, 2)}
  return {name: task.evaluated(b, part) for name, part in parts.items()}


@functools.lru_cache(maxsize=1)
def task_of(units: data.Units, seed: int) -> train.Task:
  """Returns the task of a seed, whose frozen layers are stored."""
  chosen = settings.chosen(len(units.train), {'seed': seed})
  return train.prepare(train.task(units, chosen, command.weights()))


def main() -> None:
  parser = command_line.Parser('finetune.study', __doc__)
  parser.add_argument('--output_dir', required=True, help='folder of the study')
  parser.add_argument('--text', help='as `make finetune` takes it')
  parser.add_argument('--mechanisms', default='blt,identity,tree_online')
  parser.add_argument('--epsilons', default='1,2,4,8')
  parser.add_argument('--seeds', type=int, default=5, help='number of seeds')
  flags = parser.parse_args()
  try:
    units = data.load(flags.text, ('person', 'text'))
    chosen = task_of(units, 0).settings
    study = dpftrl.study(
      functools.partial(run, units),
      folder=flags.output_dir,
      mechanisms=flags.mechanisms.split(','),
      epsilons=[float(number) for number in flags.epsilons.split(',')],
      seeds=tuple(range(flags.seeds)),
      participation=chosen.participation,
      workload=chosen.workload,
      clip_norm=chosen.clip_norm,
      report_goal=chosen.cohort,
      delta=chosen.delta,
      metric='perplexity',
      lower_is_better=True,
      title=f'Fine-tuning with {units.source}',
      jobs=0,
    )
  except (ValueError, OSError) as problem:
    parser.error(str(problem))
  print(repr(study))
  sys.exit(1 if study.unfinished else 0)


if __name__ == '__main__':
  main()
