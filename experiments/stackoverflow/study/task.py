"""Runs of a study of next-word models: their flags, participation and training."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence

from experiments.stackoverflow import configuration, datasets, run
from experiments.stackoverflow import machines as machines_lib
from fl_dpftrl import workloads
from fl_dpftrl.participation import schemas, seen
from fl_dpftrl.studies import cells, processes
from fl_dpftrl.studies import design as design_lib
from fl_dpftrl.text import messages

# Flags that a study sets for each of its runs.
_PER_RUN = (
  *('mechanism', 'strategy', *configuration.NOISE_FLAGS, 'server_learning_rate', 'seed'),
  *('noise_seed', 'output_dir', 'resume', 'compare_with', 'figures'),
)
_PRELOADED = ('experiments.stackoverflow.train', 'experiments.stackoverflow.training')


def task(design: design_lib.Design, machines: machines_lib.Machines, jobs: int) -> cells.Task:
  """Returns what a study trains: the training script, with the flags of each cell.

  Args:
    design: design of the study.
    machines: machines that train the clients of each run.
    jobs: runs at the same time.
  """
  if machines.address is None:
    machines = dataclasses.replace(machines, concurrent_clients=processes.threads(jobs))
  return cells.Task(
    conditions=functools.cache(functools.partial(conditions, design)),
    train=functools.partial(train, machines.arguments()),
    timed=timed,
    preload=_PRELOADED,
  )


def base_flags(design: design_lib.Design, of: design_lib.Setting) -> configuration.Hparams:
  """Returns the flags of a setting, without its noise.

  Raises:
    ValueError: for flags that do not fit, or that a study sets itself.
  """
  flags = [*design.flags, *of.flags]
  for flag in flags:
    if not flag.startswith('--') or flag.partition('=')[0].lstrip('-') in _PER_RUN:
      raise ValueError(
        f'flags has {messages.quoted(flag)}: give --name=value, and leave what'
        ' a study sets itself (noise, learning rate, seed, folder) to its other fields'
      )
  return configuration.from_arguments([*flags, '--mechanism=identity', '--noise_multiplier=0'])


def conditions(design: design_lib.Design, of: design_lib.Setting) -> cells.Conditions:
  """Returns the conditions of a setting's runs, by its flags.

  Raises:
    ValueError: for flags that do not fit each other or the data.
  """
  hparams = base_flags(design, of)
  return cells.Conditions(
    schema=schema(hparams, design.seeds),
    clip_norm=hparams.clip_norm,
    report_goal=hparams.report_goal,
    delta=hparams.delta,
    workload=workloads.Workload(
      momentum=hparams.server_momentum,
      warmup_fraction=hparams.warmup_fraction,
      cooldown_fraction=hparams.cooldown_fraction,
    ),
    deployment_report_goal=hparams.deployment_report_goal,
    rounds_per_evaluation=hparams.rounds_per_evaluation,
    simulated=hparams.timer_hours is not None,
  )


def schema(hparams: configuration.Hparams, seeds: Sequence[int]) -> schemas.MinSep:
  """Returns a schema that every run of a setting keeps to.

  A timer in rounds enforces its min-sep. A timer in hours enforces none: how
  many rounds pass meanwhile follows from the population. Cohorts follow from
  flags and seed alone, and neither from the text nor from training. So they are
  simulated beforehand, and the schema is the tightest for all seeds.

  Args:
    hparams: flags of the run.
    seeds: seeds of its runs.

  Raises:
    ValueError: for flags that do not fit the data, or a simulation that stalls.
  """
  if hparams.timer_hours is None:
    return run.enforced_schema(hparams)
  of_seeds = [_simulated(dataclasses.replace(hparams, seed=seed)) for seed in seeds]
  return schemas.MinSep(
    num_rounds=hparams.num_rounds,
    min_sep=min(schema.min_sep for schema in of_seeds),
    max_participations=max(schema.participations for schema in of_seeds),
  )


@functools.lru_cache(maxsize=128)
def _simulated(hparams: configuration.Hparams) -> schemas.MinSep:
  """Returns the tightest schema of the cohorts of a run with these flags."""
  clients = datasets.load_for(hparams).train_clients
  rounds = run.scenario(hparams, len(clients)).simulation().rounds()
  followed = seen.Seen(numbered=True)
  for cohort in itertools.islice(rounds, hparams.num_rounds):
    followed.add(cohort.device_ids)
  return followed.schema


def timed(cell: cells.Cell, num_rounds: int) -> cells.Cell:
  """Returns a cell of the same work with so many rounds, and one evaluation."""
  timers = [] if cell.conditions.simulated else ['--timer_rounds=1']
  few = [f'--num_rounds={num_rounds}', f'--rounds_per_evaluation={num_rounds}']
  return dataclasses.replace(cell, flags=(*cell.flags, *timers, *few))


def arguments(cell: cells.Cell) -> list[str]:
  """Returns the arguments of the training script for a cell."""
  if cell.noise is None:
    noise = ['--mechanism=identity', '--noise_multiplier=0']
  else:
    noise = [f'--strategy={cell.noise.strategy}', f'--noise_multiplier={cell.noise_multiplier!r}']
  return [
    *cell.flags,
    *noise,
    f'--server_learning_rate={cell.server_learning_rate!r}',
    f'--seed={cell.seed}',
    f'--output_dir={cell.folder}',
    '--resume',
  ]


def train(machines: Sequence[str], cell: cells.Cell) -> None:
  """Trains a cell by the script, which writes summary.json; ends the process.

  Args:
    machines: flags of the machines that train its clients.
    cell: the cell.
  """
  from experiments.stackoverflow import train as command

  command.start([*arguments(cell), *machines])
