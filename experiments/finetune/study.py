"""Compares mechanisms at equal ε by fine-tuning, in several seeds.

Example, which first chooses factors of the learning rates with public text:
  python -m experiments.finetune.study --text=public --factors=0.5,1,2 --seeds=1 --output_dir=rates
  python -m experiments.finetune.study --text=changelogs --factors=1 --output_dir=people

A study that was interrupted goes on when it is started again.
"""

import dataclasses
import functools
import sys
from collections.abc import Mapping

import fl_dpftrl as dpftrl
from experiments.finetune import __main__ as command
from experiments.finetune import data, settings, train
from experiments.finetune.flags import NAMES
from experiments.stackoverflow import command_line
from fl_dpftrl.study import Cell
from fl_dpftrl.support.files import paths


def run(units: data.Units, cell: Cell) -> Mapping[str, Mapping[str, float]]:
  """Trains a cell; returns evaluations of two halves of the held-out units."""
  task, (mechanism, _) = task_of(units, cell.seed), cell.setting
  name = 'identity' if mechanism is None else mechanism.label
  chosen = dataclasses.replace(task.settings, mechanism=name)
  with cell.private_aggregator(task.model.zeros) as aggregator:
    rate = train.server_rate(chosen, aggregator, task.model.zeros.size)
    b = train.train(task, aggregator, rate=cell.server_learning_rate * rate)
  parts = {'validation': slice(0, None, 2), 'test': slice(1, None, 2)}
  return {name: task.evaluated(b, part) for name, part in parts.items()}


@functools.lru_cache(maxsize=1)
def task_of(units: data.Units, seed: int) -> train.Task:
  """Returns the task of a seed, whose frozen layers are stored."""
  chosen = settings.chosen(len(units.train), {'seed': seed}, units.most)
  return train.prepare(train.task(units, chosen, command.weights()), say=command.say)


def main() -> None:
  parser = command_line.Parser('finetune.study', __doc__)
  parser.add_argument('--output_dir', required=True, help='folder of the study')
  text = f'one of {", ".join(NAMES)}, or a table or folder as `make finetune` takes it'
  parser.add_argument('--text', default='changelogs', help=text)
  parser.add_argument('--mechanisms', default='blt,identity,tree_online')
  parser.add_argument('--epsilons', default='1,2,4,8')
  parser.add_argument('--factors', default='1', help='of the learning rates, to try with each')
  parser.add_argument('--seeds', type=int, default=5, help='number of seeds')
  flags = parser.parse_args()
  try:
    numbers = lambda text: tuple(float(number) for number in text.split(','))
    if flags.text in NAMES:
      units = data.load(flags.text)
    else:
      units = data.own(paths.local(flags.text), 'person', 'text', command.say)
    chosen = task_of(units, 0).settings
    study = dpftrl.study(
      functools.partial(run, units),
      folder=flags.output_dir,
      mechanisms=flags.mechanisms.split(','),
      epsilons=numbers(flags.epsilons),
      server_learning_rates=numbers(flags.factors),
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
