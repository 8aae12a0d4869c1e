"""Trains every run of a study, and compares mechanisms: table, figures, page.

Example:
  python -m experiments.stackoverflow.study --study=studies/docstrings.json \\
    --output_dir=runs/studies/docstrings

A study that was interrupted goes on when it is started again. The folder gets
cells/ (the run folder and the output of each run), strategies/, results.csv,
table.txt, table.md, figures and study.html. --publish=NAME.md writes a page of
the results so far, and trains nothing.
"""

from fl_dpftrl import signals

if __name__ == '__main__':
  signals.end_at_once('study: interrupted')  # What is imported next takes a while.

# pylint: disable=g-import-not-at-top,wrong-import-position
import argparse
import os
import pathlib
import sys

from experiments.stackoverflow import command_line
from experiments.stackoverflow import machines as machines_lib
from experiments.stackoverflow.study import task as task_lib
from fl_dpftrl.studies import design as design_lib
from fl_dpftrl.studies import estimate, folders, processes, run, table
from fl_dpftrl.text import messages

IMAGE_KINDS = ('png', 'svg', 'pdf')
_INTERRUPTED = 'study: interrupted; the same command goes on'


def main() -> None:
  parser = command_line.Parser('study', __doc__)
  parser.add_argument('--study', required=True, help='study file; see studies/')
  parser.add_argument('--output_dir', required=True, help='folder of the study')
  parser.add_argument(
    '--jobs',
    type=int,
    help='runs at the same time; processors are shared out (default:'
    f' {processes.default_jobs()} here, 1 with --machines)',
  )
  parser.add_argument(
    '--figures', choices=IMAGE_KINDS, default='png', help='kind of the figures (default: png)'
  )
  parser.add_argument(
    '--publish',
    metavar='NAME.md',
    help='only write a page of the results so far, with figures and results.csv in NAME/',
  )
  parser.add_argument(
    '--until_told_apart',
    type=float,
    metavar='HOURS',
    help='after the seeds of the study file, add seeds for so many hours where the best mechanism'
    ' and the next are not told apart; intervals are wider then, for looking again',
  )
  parser.add_argument(
    '--estimate', action='store_true', help='only say how long the study takes, and end'
  )
  parser.add_argument(
    '--machines',
    metavar='ADDRESS',
    help="host:port of the head of a Ray cluster that trains the clients, or 'auto'",
  )
  for name, kind, words in (
    ('actors', int, 'processes of --machines that train clients of a run (default: all that fit)'),
    ('clients_per_actor', int, 'clients that such a process trains at the same time (default: 1)'),
    ('actor_cpus', float, 'processors of such a process (default: 1)'),
    ('actor_gpus', float, 'GPUs of such a process (default: 0)'),
  ):
    default = getattr(machines_lib.Machines, name)
    parser.add_argument(f'--{name}', type=kind, default=default, help=words)
  parser.add_argument(
    '--insecure_network',
    action='store_true',
    help='accept --machines on a private network without token and TLS',
  )
  arguments = parser.parse_args()
  try:
    with signals.cleaned_up(_INTERRUPTED):
      complete = _run(arguments)
  except FileNotFoundError as problem:
    parser.error(
      f'{problem.filename} is not there; a relative path starts at the working directory,'
      f' {pathlib.Path.cwd()}'
    )
  except (ValueError, OSError) as problem:
    parser.error(str(problem))
  sys.exit(0 if complete else 1)


def _run(arguments: argparse.Namespace) -> bool:
  """Publishes or runs the study; returns False if a run failed."""
  path, folder = pathlib.Path(arguments.study), pathlib.Path(arguments.output_dir)
  machines = machines_lib.Machines(
    address=arguments.machines,
    actors=arguments.actors,
    clients_per_actor=arguments.clients_per_actor,
    actor_cpus=arguments.actor_cpus,
    actor_gpus=arguments.actor_gpus,
    insecure_network=arguments.insecure_network,
  )
  jobs = arguments.jobs
  if jobs is None:
    jobs = processes.default_jobs() if machines.address is None else 1
  if jobs < 1:
    raise ValueError(f'--jobs={jobs} must be at least 1')
  if machines.address is not None:
    if arguments.publish is not None:
      raise ValueError('--publish trains nothing: leave --machines out')
    if jobs > 1 and not machines.actors:
      raise ValueError(
        f'--jobs={jobs} runs share the room of --machines: say with --actors how many each takes'
      )
  design = design_lib.read(path)
  task = task_lib.task(design, machines, jobs)
  say = lambda line: print(messages.lines(line), file=sys.stderr, flush=True)
  if arguments.publish is not None:
    from fl_dpftrl.studies import page  # matplotlib is slow to load.

    target, kind = pathlib.Path(arguments.publish), arguments.figures
    page.check_target(target, argument='--publish')
    if kind == 'pdf':
      raise ValueError('--figures=pdf cannot be shown by a page: give png or svg')
    how = commands(path, target, kind)
    page.publish(run.gather(design, task, folder), target, how=how, image_kind=kind)
    return True
  if arguments.estimate:
    with folders.held(design, task, folder):
      say('timing a few rounds, to say how long the study takes')
      say(estimate.measure(design, task, folder, jobs=jobs).text())
    return True
  study = run.run(
    design,
    task,
    folder,
    jobs=jobs,
    say=say,
    image_kind=arguments.figures,
    until_told_apart=arguments.until_told_apart,
  )
  print(messages.lines(table.text(study.rows)))
  return not study.failed


def commands(study: pathlib.Path, target: pathlib.Path, image_kind: str) -> str:
  """Returns the command lines that train a study, and write its page."""
  train = (
    f'.venv/bin/python -m experiments.stackoverflow.study --study={os.path.relpath(study)} \\\n'
    f'  --output_dir=runs/studies/{study.stem}'
  )
  return f'{train}\n{train} \\\n  --publish={os.path.relpath(target)} --figures={image_kind}'


if __name__ == '__main__':
  main()
