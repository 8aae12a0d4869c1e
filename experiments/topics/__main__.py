"""Compares mechanisms on the language with topics, in one process and NumPy alone.

Example:
  python -m experiments.topics --output_dir=runs/studies/topics \\
    --publish=docs/study-topics.md

A study that was interrupted goes on when it is started again. --publish then writes the page,
with its figures beside it.
"""

import functools
import os
import pathlib
import sys

import fl_dpftrl as dpftrl
from experiments.stackoverflow import command_line
from experiments.stackoverflow.datasets import topics
from experiments.topics import run
from fl_dpftrl.studies import page

STUDY = {
  'title': 'Topics: mechanisms on 100,000 made-up clients',
  'mechanisms': (
    dpftrl.Mechanism(mechanism='identity'),
    dpftrl.Mechanism(mechanism='tree_online'),
    dpftrl.Mechanism(mechanism='tree_full'),
    # Each for the loss that its paper optimises.
    dpftrl.Mechanism(mechanism='blt', objective='max'),
    dpftrl.Mechanism(mechanism='banded', objective='rms'),
  ),
  'epsilons': (1, 2, 4),
  'server_learning_rates': (0.0704, 0.1197, 0.2035, 0.346),
  'extend_rates': 4,
  'seeds': tuple(range(10)),
  # A sixth of the rounds and of the min-sep of the papers' StackOverflow: six participations, too.
  'schema': dpftrl.MinSep(num_rounds=342, min_sep=57),
  'clip_norm': 0.5,
  'report_goal': 16,
  'deployment_report_goal': 80,
  'delta': 1e-6,
  'workload': dpftrl.Workload(momentum=0.9, warmup_fraction=0.15, cooldown_fraction=0.25),
}
TASK = run.Task()


def about() -> list[str]:
  """Returns what is trained, on what, and what the study does not show, in sentences."""
  data, schema = run.dataset_of(TASK), STUDY['schema']
  goal, deployed = STUDY['report_goal'], STUDY['deployment_report_goal']
  return [
    f'Data: {TASK.num_clients:,} clients speak a made-up language of {topics.WORDS} words and'
    f' {topics.TOPICS} topics. A client has {topics.MEAN_SENTENCES:.0f} sentences on average and'
    f' {topics.LEAST_SENTENCES} at least, as users of StackOverflow do. The tail of these sizes,'
    ' the topics of a client (a Dirichlet draw) and all words are assumptions. A sentence follows'
    ' from seed, client and number, and is made when it is read.',
    f'Best possible: a predictor that knows the language has {100 * data.best_accuracy:.2f} %.',
    f'Model: the log-bilinear network of the training script, with embeddings of {TASK.embedding}.'
    f' In a round {goal} clients take one step each on {TASK.num_sentences} of their sentences.',
    f'Participation: {schema.num_rounds} rounds and a min-sep of {schema.min_sep} are a sixth of'
    f' those of Table 4 of the BandMF paper, with the same {schema.participations} participations'
    ' at most.',
    f'Noise: that of {deployed} devices a round, in each of {goal}. BLT is optimised for MaxLoss'
    ' and banded for RmsLoss, as in their papers.',
    'Not shown: an order on real text, with a larger network or in more rounds; a gain over the'
    ' multi-epoch matrices of Table 4, which are not trained here; and the privacy that choosing'
    ' learning rates costs. Seeds differ in cohorts, initial weights and noise, not in the'
    ' language.',
  ]


def main() -> None:
  parser = command_line.Parser('topics', __doc__)
  parser.add_argument('--output_dir', required=True, help='folder of the study')
  parser.add_argument(
    '--publish',
    type=pathlib.Path,
    metavar='NAME.md',
    help='page to write, with figures and results.csv in NAME/',
  )
  arguments = parser.parse_args()
  target: pathlib.Path | None = arguments.publish
  try:
    if target is not None:
      page.check_target(target, argument='--publish')
    study = dpftrl.study(functools.partial(run.train, TASK), folder=arguments.output_dir, **STUDY)
    print(study)
    if target is not None:
      page.publish(study, target, how=command(target), image_kind='svg', about=about())
  except (ValueError, OSError) as problem:
    parser.error(str(problem))
  sys.exit(1 if study.failed else 0)


def command(target: pathlib.Path) -> str:
  """Returns the command line that trains the study, and writes its page."""
  return (
    '.venv/bin/python -m experiments.topics --output_dir=runs/studies/topics \\\n'
    f'  --publish={os.path.relpath(target)}'
  )


if __name__ == '__main__':
  main()
